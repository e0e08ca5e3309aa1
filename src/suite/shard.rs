//! A part of a plan that one of several machines asks.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{GroupSpec, Plan};
use crate::rng::hash_name;

/// Most parts of one run: more jobs than a matrix, an array or an indexed job is usually allowed.
pub const MAX_SHARDS: u16 = 1024;

/// One of several parts of a plan, written `2/4`.
///
/// A haystack falls to a shard by its own id: its questions stay together, and where it falls depends on no other haystack and no
/// order. So shards are of about equal size, not of equal size, and of a small plan some may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Shard {
    number: u16,
    of: u16,
}

impl Shard {
    /// Shard `number`, counted from 1, of `of`.
    ///
    /// # Errors
    /// What is wrong with the numbers, in words.
    pub fn new(number: u16, of: u16) -> Result<Self, String> {
        if of == 0 || of > MAX_SHARDS {
            return Err(format!("a run has 1 to {MAX_SHARDS} shards, not {of}"));
        }
        if number == 0 || number > of {
            return Err(format!("there is no shard {number} of {of}: they count from 1 to {of}"));
        }
        Ok(Self { number, of })
    }

    /// The one of `of` shards that asks this haystack.
    ///
    /// # Errors
    /// As [`Shard::new`].
    pub fn of_haystack(haystack_id: &str, of: u16) -> Result<Self, String> {
        let shard = Self::new(1, of)?;
        Ok(Self { number: shard.place(haystack_id), ..shard })
    }

    /// Counts from 1.
    pub fn number(self) -> u16 {
        self.number
    }

    /// How many there are.
    pub fn of(self) -> u16 {
        self.of
    }

    /// Whether the haystack falls to this shard.
    pub fn holds(self, haystack_id: &str) -> bool {
        self.place(haystack_id) == self.number
    }

    fn place(self, haystack_id: &str) -> u16 {
        let hash = hash_name(&["shard", haystack_id]);
        let first = hash.as_bytes().first_chunk().expect("a hash has 32 bytes");
        // At most 1024 of 2^64: no shard is favoured by more than one part in 10^16.
        let place = u64::from_le_bytes(*first) % u64::from(self.of);
        u16::try_from(place).expect("less than the number of shards") + 1
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| digits.parse().ok()).flatten()
        };
        let parts = text.split_once('/').and_then(|(first, last)| number(first).zip(number(last)));
        let (number, of) = parts.ok_or_else(|| format!("`{text}` is no shard: write M/N, for example 2/4"))?;
        Self::new(number, of)
    }
}

impl TryFrom<String> for Shard {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Shard> for String {
    fn from(shard: Shard) -> Self {
        shard.to_string()
    }
}

impl Plan {
    /// What falls to `shard`, in the order of the whole plan.
    #[must_use]
    pub fn shard(&self, shard: Shard) -> Self {
        let is_held = |group: &&GroupSpec| shard.holds(&group.haystack_id);
        Self { groups: self.groups.iter().filter(is_held).cloned().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Suite;

    #[test]
    fn a_shard_is_read_as_it_is_written_and_nothing_else_is_one() {
        for text in ["1/1", "2/4", "1024/1024"] {
            let shard: Shard = text.parse().unwrap();
            assert_eq!(shard.to_string(), text);
            let json = serde_json::to_string(&shard).unwrap();
            assert_eq!(serde_json::from_str::<Shard>(&json).unwrap(), shard);
        }
        for text in ["", "/", "1", "0/4", "5/4", "1/0", "1/1025", "1/99999", "+1/4", "1/ 4", "-1/4", "1/4/4", "a/b"] {
            assert!(text.parse::<Shard>().is_err(), "{text}");
            assert!(serde_json::from_str::<Shard>(&format!("{text:?}")).is_err(), "{text}");
        }
        assert!("5/4".parse::<Shard>().unwrap_err().contains("no shard 5 of 4"));
    }

    #[test]
    fn every_haystack_falls_to_exactly_one_shard_whatever_the_order() {
        let plan = Suite::builtin("quick").unwrap().plan();
        let mut reversed = plan.clone();
        reversed.groups.reverse();
        for of in [1, 2, 3, 7, 64] {
            let shards: Vec<Plan> = (1..=of).map(|number| plan.shard(Shard::new(number, of).unwrap())).collect();
            assert_eq!(shards.iter().map(Plan::item_count).sum::<usize>(), plan.item_count());
            for group in &plan.groups {
                let holders = shards.iter().filter(|shard| shard.groups.contains(group)).count();
                assert_eq!(holders, 1, "{}", group.haystack_id);
                let shard = Shard::of_haystack(&group.haystack_id, of).unwrap();
                assert!(plan.shard(shard).groups.contains(group));
            }
            let mut again = reversed.shard(Shard::new(1, of).unwrap());
            again.groups.reverse();
            assert_eq!(again, shards[0]);
        }
    }

    #[test]
    fn where_a_haystack_falls_is_a_promise() {
        // Shards that different versions asked must not overlap: a change here is a change of the format on disk.
        let falls = |id: &str| [2, 3, 7].map(|of| Shard::of_haystack(id, of).unwrap().number());
        assert_eq!(["a", "b", "haystack"].map(falls), [[1, 2, 2], [1, 1, 3], [2, 1, 3]]);
    }
}
