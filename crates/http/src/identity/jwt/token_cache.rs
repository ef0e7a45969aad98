//! A cache of verified tokens, so that the signature of a busy client's token is checked once.
//!
//! The table is bounded. A token is found by a hash with a random seed and compared in full: a collision causes a miss,
//! and nothing else.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use std::hash::{BuildHasher, RandomState};
use tollgate_core::time::UnixTime;
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
    since: UnixTime,
    until: UnixTime,
    value: T,
}

impl<T: Clone> TokenCache<T> {
    pub(super) fn new() -> Self {
        Self {
            tokens: LockedSetTable::new(SHARDS, SETS),
            secrets: RapidSecrets::seed(RandomState::new().hash_one(0)),
        }
    }

    /// The value of `token`, unless it has expired at `now`.
    pub(super) fn get(&self, token: &str, now: UnixTime) -> Option<T> {
        let hash = self.hash(token);
        let table = self.tokens.lock(hash);
        let cached = table.find(hash)?.as_ref()?;
        (now < cached.until && *cached.token == *token).then(|| cached.value.clone())
    }

    /// Caches a value of `token` until `until`. In a full set an expired entry is evicted, else the oldest.
    pub(super) fn put(&self, token: &str, value: T, now: UnixTime, until: UnixTime) {
        let hash = self.hash(token);
        let age = |cached: &Option<CachedToken<T>>| {
            cached.as_ref().filter(|cached| cached.until > now).map(|cached| cached.since)
        };
        let mut table = self.tokens.lock(hash);
        let oldest =
            |tokens: &mut [Option<CachedToken<T>>; WAYS]| (0..WAYS).min_by_key(|way| age(&tokens[*way]));
        if let Some(cached) = table.entry(hash, oldest) {
            *cached = Some(CachedToken { token: token.into(), since: now, until, value });
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

    fn at(us: u64) -> UnixTime {
        UnixTime::from_us(us)
    }

    #[test]
    fn entries_expire_and_the_table_is_bounded() {
        let tokens = TokenCache::new();
        tokens.put("a.b.c", 1, at(0), at(10));
        assert_eq!(
            (tokens.get("a.b.c", at(9)), tokens.get("a.b.c", at(10)), tokens.get("a.b.d", at(0))),
            (Some(1), None, None)
        );
        tokens.put("a.b.c", 2, at(10), at(20));
        assert_eq!(tokens.get("a.b.c", at(10)), Some(2));
        for number in 0..100_000 {
            tokens.put(&format!("a.b.{number}"), 3, at(0), at(10));
        }
        assert!(tokens.tokens.count() <= SHARDS * SETS * WAYS);
        assert_eq!(tokens.get("a.b.99999", at(0)), Some(3));
    }
}
