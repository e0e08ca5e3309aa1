//! What is remembered about short texts: many readers, bounded memory.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{PoisonError, RwLock};

/// Locks are per shard, so that generator threads rarely meet.
const SHARDS: usize = 16;
/// Texts of a haystack (words, sentences, lines) are far shorter; longer ones rarely come back.
const MAX_TEXT_BYTES: usize = 512;
/// 16 shards of 16,384 texts at some 100 bytes: at most a few tens of MiB.
const MAX_TEXTS_PER_SHARD: usize = 1 << 14;

/// Values by text. A full shard forgets everything: whatever is in use comes back at once.
#[derive(Debug)]
pub(crate) struct TextCache<V> {
    shards: [RwLock<HashMap<Box<str>, V>>; SHARDS],
    hasher: RandomState,
}

impl<V> TextCache<V> {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| RwLock::default()), hasher: RandomState::new() }
    }

    /// Shows `read` the value of `text`, which `compute` finds out the first time. Errors are not remembered.
    pub(crate) fn read<R, E>(
        &self,
        text: &str,
        compute: impl FnOnce() -> Result<V, E>,
        read: impl FnOnce(&V) -> R,
    ) -> Result<R, E> {
        if text.len() > MAX_TEXT_BYTES {
            return compute().map(|value| read(&value));
        }
        let shard = &self.shards[self.hasher.hash_one(text) as usize % SHARDS];
        // A panic elsewhere cannot leave a map of finished values half written.
        if let Some(known) = shard.read().unwrap_or_else(PoisonError::into_inner).get(text) {
            return Ok(read(known));
        }
        let value = compute()?;
        let result = read(&value);
        let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
        if shard.len() >= MAX_TEXTS_PER_SHARD {
            shard.clear();
        }
        shard.insert(text.into(), value);
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn get(cache: &TextCache<usize>, text: &str, compute: impl FnOnce() -> usize) -> usize {
        let Ok(value) = cache.read(text, || Ok::<_, Infallible>(compute()), |value| *value);
        value
    }

    #[test]
    fn a_value_is_computed_once_and_for_long_texts_every_time() {
        let cache = TextCache::new();
        assert_eq!(get(&cache, "a", || 7), 7);
        assert_eq!(get(&cache, "a", || panic!("must be remembered")), 7);
        let long = "x".repeat(MAX_TEXT_BYTES + 1);
        assert_eq!(get(&cache, &long, || 1), 1);
        assert_eq!(get(&cache, &long, || 2), 2);
    }

    #[test]
    fn errors_are_not_remembered() {
        let cache = TextCache::new();
        assert_eq!(cache.read("a", || Err("no"), |value: &usize| *value), Err("no"));
        assert_eq!(get(&cache, "a", || 7), 7);
    }

    #[test]
    fn memory_is_bounded() {
        let cache = TextCache::new();
        for number in 0..2 * SHARDS * MAX_TEXTS_PER_SHARD {
            get(&cache, &number.to_string(), || number);
        }
        let texts: usize = cache.shards.iter().map(|shard| shard.read().unwrap().len()).sum();
        assert!(texts <= SHARDS * MAX_TEXTS_PER_SHARD);
    }
}
