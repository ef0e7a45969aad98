//! A cache of verified tokens, so that the signature of a busy client's token is checked once.
//!
//! The table is bounded and split into small sets with a lock each. A token is found by a hash with a random seed and compared in
//! full: a collision costs a miss, and nothing else.

use parking_lot::Mutex;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use std::hash::{BuildHasher, RandomState};

/// Powers of two.
const SETS: usize = 1024;
const WAYS: usize = 4;

/// Values by token, with an expiry.
pub(super) struct TokenCache<T> {
    sets: Box<[Mutex<TokenCacheSet<T>>]>,
    secrets: RapidSecrets,
}

struct TokenCacheSet<T> {
    entries: [Option<TokenCacheEntry<T>>; WAYS],
    /// The entry that is evicted next if none has expired.
    oldest: usize,
}

struct TokenCacheEntry<T> {
    hash: u64,
    token: Box<str>,
    until_us: u64,
    value: T,
}

impl<T: Clone> TokenCache<T> {
    pub(super) fn new() -> Self {
        let empty = || Mutex::new(TokenCacheSet { entries: [const { None }; WAYS], oldest: 0 });
        Self {
            sets: std::iter::repeat_with(empty).take(SETS).collect(),
            secrets: RapidSecrets::seed(RandomState::new().hash_one(0)),
        }
    }

    /// The value of `token`, unless it has expired at `now_us`.
    pub(super) fn get(&self, token: &str, now_us: u64) -> Option<T> {
        let hash = self.hash(token);
        let set = self.set(hash).lock();
        let mut entries = set.entries.iter().flatten();
        entries
            .find(|entry| entry.hash == hash && now_us < entry.until_us && *entry.token == *token)
            .map(|entry| entry.value.clone())
    }

    /// Caches a value of `token` until `until_us`. An expired entry is evicted first, else the oldest.
    pub(super) fn put(&self, token: &str, value: T, now_us: u64, until_us: u64) {
        let hash = self.hash(token);
        let mut set = self.set(hash).lock();
        let is_free = |entry: &Option<TokenCacheEntry<T>>| {
            entry.as_ref().is_none_or(|entry| entry.until_us <= now_us || *entry.token == *token)
        };
        let place = set.entries.iter().position(is_free).unwrap_or(set.oldest);
        set.entries[place] = Some(TokenCacheEntry { hash, token: token.into(), until_us, value });
        set.oldest = (place + 1) % WAYS;
    }

    fn hash(&self, token: &str) -> u64 {
        rapidhash_v3_seeded(token.as_bytes(), &self.secrets)
    }

    fn set(&self, hash: u64) -> &Mutex<TokenCacheSet<T>> {
        &self.sets[hash as usize % SETS]
    }
}

impl<T> std::fmt::Debug for TokenCache<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenCache(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_expire_and_the_table_is_bounded() {
        let tokens = TokenCache::new();
        tokens.put("a.b.c", 1, 0, 10);
        assert_eq!(
            (tokens.get("a.b.c", 9), tokens.get("a.b.c", 10), tokens.get("a.b.d", 0)),
            (Some(1), None, None)
        );
        tokens.put("a.b.c", 2, 10, 20);
        assert_eq!(tokens.get("a.b.c", 10), Some(2));
        for number in 0..100_000 {
            tokens.put(&format!("a.b.{number}"), 3, 0, 10);
        }
        let kept: usize = tokens.sets.iter().map(|set| set.lock().entries.iter().flatten().count()).sum();
        assert!(kept <= SETS * WAYS);
        assert_eq!(tokens.get("a.b.99999", 0), Some(3));
    }
}
