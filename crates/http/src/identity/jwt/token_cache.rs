//! Tokens that were looked at before, so that a busy client's signature is checked once and not with every
//! request.
//!
//! The table is bounded and split in small sets with a lock each. A token is found by a hash under a random
//! seed and compared in full: whoever makes tokens collide gains nothing but misses.

use parking_lot::Mutex;
use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use std::hash::{BuildHasher, RandomState};

/// Powers of two.
const SETS: usize = 1024;
const WAYS: usize = 4;

/// What is known of tokens.
pub(super) struct TokenCache<T> {
    sets: Box<[Mutex<TokenCacheSet<T>>]>,
    secrets: RapidSecrets,
}

struct TokenCacheSet<T> {
    entries: [Option<TokenCacheEntry<T>>; WAYS],
    /// Which entry goes next if all are alive.
    oldest: usize,
}

struct TokenCacheEntry<T> {
    hash: u64,
    token: Box<str>,
    until_us: u64,
    known: T,
}

impl<T: Clone> TokenCache<T> {
    pub(super) fn new() -> Self {
        let empty = || Mutex::new(TokenCacheSet { entries: [const { None }; WAYS], oldest: 0 });
        Self {
            sets: std::iter::repeat_with(empty).take(SETS).collect(),
            secrets: RapidSecrets::seed(RandomState::new().hash_one(0)),
        }
    }

    /// What is known of `token` at `now_us`.
    pub(super) fn get(&self, token: &str, now_us: u64) -> Option<T> {
        let hash = self.hash(token);
        let set = self.set(hash).lock();
        let mut entries = set.entries.iter().flatten();
        entries
            .find(|entry| entry.hash == hash && now_us < entry.until_us && *entry.token == *token)
            .map(|entry| entry.known.clone())
    }

    /// Remembers `known` of `token` until `until_us`. What has expired goes first, else the oldest.
    pub(super) fn put(&self, token: &str, known: T, now_us: u64, until_us: u64) {
        let hash = self.hash(token);
        let mut set = self.set(hash).lock();
        let is_free = |entry: &Option<TokenCacheEntry<T>>| {
            entry.as_ref().is_none_or(|entry| entry.until_us <= now_us || *entry.token == *token)
        };
        let place = set.entries.iter().position(is_free).unwrap_or(set.oldest);
        set.entries[place] = Some(TokenCacheEntry { hash, token: token.into(), until_us, known });
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
    fn what_is_known_ends_and_the_table_stays_small() {
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
