//! The only random source.
//!
//! Every draw comes from ChaCha8 seeded by the BLAKE3 hash of a *name* (suite, task, bin, index, seed): nothing is
//! sequential across items, so an item does not change when another is added. The algorithms on top of the stream
//! (`below`, `shuffle`, `choose`) are ours because a library may change them between versions, and an item has to stay
//! the same bytes for ever.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};

/// A deterministic stream of random numbers.
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// A stream that belongs to the name `parts`. Parts are length-prefixed, so `["a", "bc"]` and `["ab", "c"]` differ.
    pub fn from_name(parts: &[&str]) -> Self {
        Self(ChaCha8Rng::from_seed(*hash_name(parts).as_bytes()))
    }

    /// Sixty-four random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in `0..bound` (Lemire's multiply-shift with rejection, so without bias).
    ///
    /// # Panics
    /// When `bound` is zero.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "an empty range has no element");
        let bound = bound as u64;
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            if product as u64 >= threshold {
                return (product >> 64) as usize;
            }
        }
    }

    /// Uniform in `0.0..1.0` with 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One element of `choices`, uniformly.
    ///
    /// # Panics
    /// When `choices` is empty.
    pub fn choose<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// Fisher–Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// `count` different indices below `bound`, in random order.
    ///
    /// # Panics
    /// When `count > bound`.
    pub fn distinct(&mut self, count: usize, bound: usize) -> Vec<usize> {
        assert!(count <= bound, "cannot draw {count} different numbers below {bound}");
        let mut indices: Vec<usize> = (0..bound).collect();
        for place in 0..count {
            let other = place + self.below(bound - place);
            indices.swap(place, other);
        }
        indices.truncate(count);
        indices
    }
}

/// The BLAKE3 hash of a list of length-prefixed parts.
pub fn hash_name(parts: &[&str]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chacha8_is_the_published_stream() {
        let mut raw = ChaCha8Rng::seed_from_u64(42);
        assert_eq!(raw.next_u64(), 0xae90_bfb5_395d_5ba1);
        assert_eq!(raw.next_u64(), 0xf345_3fc6_2579_9188);
    }

    #[test]
    fn names_are_kept_apart() {
        assert_ne!(hash_name(&["a", "bc"]), hash_name(&["ab", "c"]));
        assert_eq!(Rng::from_name(&["x"]).next_u64(), Rng::from_name(&["x"]).next_u64());
    }

    #[test]
    fn below_is_in_range_and_reaches_every_value() {
        let mut rng = Rng::from_name(&["below"]);
        let mut seen = [0usize; 7];
        for _ in 0..7000 {
            seen[rng.below(7)] += 1;
        }
        assert!(seen.iter().all(|count| (850..1150).contains(count)), "{seen:?}");
    }

    #[test]
    fn distinct_draws_are_distinct() {
        let mut drawn = Rng::from_name(&["distinct"]).distinct(50, 60);
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 50);
    }
}
