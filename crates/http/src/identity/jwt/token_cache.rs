//! A cache of verified tokens, so that the signature of a busy client's token is checked once.
//!
//! The table is bounded. A token is found by a hash with a random seed and compared in full: a collision causes a miss,
//! and nothing else.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use std::hash::{BuildHasher, RandomState};
use tollgate_limiter::LockedSetTable;

const SHARDS: usize = 256;
const SETS: usize = 4;
const WAYS: usize = 4;

/// Values by token, with an expiry.
pub(super) struct TokenCache<T> {
    tokens: LockedSetTable<Option<CachedToken<T>>, WAYS>,
    secrets: RapidSecrets,
}

struct CachedToken<T> {
    token: Box<str>,
    since_us: u64,
    until_us: u64,
    value: T,
}

impl<T: Clone> TokenCache<T> {
    pub(super) fn new() -> Self {
        Self {
            tokens: LockedSetTable::new(SHARDS, SETS),
            secrets: RapidSecrets::seed(RandomState::new().hash_one(0)),
        }
    }

    /// The value of `token`, unless it has expired at `now_us`.
    pub(super) fn get(&self, token: &str, now_us: u64) -> Option<T> {
        let hash = self.hash(token);
        let table = self.tokens.lock(hash);
        let cached = table.find(hash)?.as_ref()?;
        (now_us < cached.until_us && *cached.token == *token).then(|| cached.value.clone())
    }

    /// Caches a value of `token` until `until_us`. In a full set an expired entry is evicted, else the oldest.
    pub(super) fn put(&self, token: &str, value: T, now_us: u64, until_us: u64) {
        let hash = self.hash(token);
        let age = |cached: &Option<CachedToken<T>>| {
            cached.as_ref().filter(|cached| cached.until_us > now_us).map(|cached| cached.since_us)
        };
        let mut table = self.tokens.lock(hash);
        let oldest =
            |tokens: &mut [Option<CachedToken<T>>; WAYS]| (0..WAYS).min_by_key(|way| age(&tokens[*way]));
        if let Some(cached) = table.entry(hash, oldest) {
            *cached = Some(CachedToken { token: token.into(), since_us: now_us, until_us, value });
        }
    }

    fn hash(&self, token: &str) -> u64 {
        rapidhash_v3_seeded(token.as_bytes(), &self.secrets)
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
        assert!(tokens.tokens.count() <= SHARDS * SETS * WAYS);
        assert_eq!(tokens.get("a.b.99999", 0), Some(3));
    }
}
