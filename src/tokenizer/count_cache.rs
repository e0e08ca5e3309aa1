//! Remembered token counts: many readers, bounded memory.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{PoisonError, RwLock};

/// Locks are per shard, so that generator threads rarely meet.
const SHARDS: usize = 16;
/// Texts of a haystack (words, sentences, lines) are far shorter; longer ones rarely come back.
const MAX_TEXT_BYTES: usize = 512;
/// 16 shards of 16,384 texts at some 60 bytes: at most a few tens of MiB.
const MAX_TEXTS_PER_SHARD: usize = 1 << 14;

/// Token counts by text. A full shard forgets everything: whatever is in use comes back at once.
#[derive(Debug)]
pub(crate) struct CountCache {
    shards: [RwLock<HashMap<Box<str>, u32>>; SHARDS],
    hasher: RandomState,
}

impl CountCache {
    pub(crate) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| RwLock::default()), hasher: RandomState::new() }
    }

    /// The remembered count of `text`, or `count(text)`, remembered from now on.
    pub(crate) fn get_or_count(&self, text: &str, count: impl FnOnce(&str) -> usize) -> usize {
        if text.len() > MAX_TEXT_BYTES {
            return count(text);
        }
        let shard = &self.shards[self.hasher.hash_one(text) as usize % SHARDS];
        // A panic elsewhere cannot leave a map of finished counts half written.
        if let Some(known) = shard.read().unwrap_or_else(PoisonError::into_inner).get(text) {
            return *known as usize;
        }
        let counted = count(text);
        let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
        if shard.len() >= MAX_TEXTS_PER_SHARD {
            shard.clear();
        }
        shard.insert(text.into(), u32::try_from(counted).expect("no more tokens than MAX_TEXT_BYTES allows"));
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_counted_once_and_long_ones_every_time() {
        let cache = CountCache::new();
        assert_eq!(cache.get_or_count("a", |_| 7), 7);
        assert_eq!(cache.get_or_count("a", |_| panic!("must be remembered")), 7);
        let long = "x".repeat(MAX_TEXT_BYTES + 1);
        assert_eq!(cache.get_or_count(&long, |_| 1), 1);
        assert_eq!(cache.get_or_count(&long, |_| 2), 2);
    }

    #[test]
    fn memory_is_bounded() {
        let cache = CountCache::new();
        for number in 0..2 * SHARDS * MAX_TEXTS_PER_SHARD {
            cache.get_or_count(&number.to_string(), str::len);
        }
        let texts: usize = cache.shards.iter().map(|shard| shard.read().unwrap().len()).sum();
        assert!(texts <= SHARDS * MAX_TEXTS_PER_SHARD);
    }
}
