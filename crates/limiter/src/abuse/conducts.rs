//! How clients behaved under rules with a penalty: a bounded table, touched only by refusals.
//!
//! When a set is full, a new key evicts the record with the fewest strikes. Records with a cooldown are never evicted:
//! the new key is then not recorded. So a flood of made-up keys clears no record, and at worst lets some of its own go
//! unpunished.

use parking_lot::Mutex;
use tollgate_core::penalty::{Penalty, PenaltyRecord};

const SHARDS: usize = 64;
const SETS: usize = 32;
const WAYS: usize = 8;

/// Keys are hashes; 0 stands for none.
#[derive(Clone, Copy, Default)]
struct ConductRecord {
    key: u64,
    conduct: PenaltyRecord,
    forgotten_us: u64,
}

type ConductSet = [ConductRecord; WAYS];

/// The table.
pub(super) struct Conducts {
    shards: Box<[Mutex<Box<[ConductSet]>>]>,
}

impl Conducts {
    /// How many clients it knows at most.
    #[cfg(test)]
    pub(super) const MOST: usize = SHARDS * SETS * WAYS;

    pub(super) fn new() -> Self {
        let shard = || Mutex::new(vec![ConductSet::default(); SETS].into_boxed_slice());
        Self { shards: std::iter::repeat_with(shard).take(SHARDS).collect() }
    }

    /// `key` is refused at `now_us` for `retry_us` more. If that makes a cooldown, its length.
    pub(super) fn record_refusal(
        &self,
        key: u64,
        penalty: &Penalty,
        now_us: u64,
        retry_us: u64,
    ) -> Option<u64> {
        self.with_set(key, |key, set| {
            let known = set.iter().position(|record| record.key == key);
            let way = known.or_else(|| room(set, now_us))?;
            let conduct = known.map(|way| set[way].conduct);
            let (conduct, cooldown_us) = penalty.record_refusal(conduct, now_us, retry_us);
            set[way] = ConductRecord { key, conduct, forgotten_us: conduct.expires_us(penalty) };
            cooldown_us
        })
    }

    /// Forgets how `key` behaved.
    pub(super) fn forget(&self, key: u64) {
        self.with_set(key, |key, set| {
            for record in set.iter_mut().filter(|record| record.key == key) {
                *record = ConductRecord::default();
            }
        });
    }

    fn with_set<T>(&self, key: u64, change: impl FnOnce(u64, &mut ConductSet) -> T) -> T {
        let key = key.max(1);
        let mut shard = self.shards[key as usize % SHARDS].lock();
        change(key, &mut shard[key as usize / SHARDS % SETS])
    }
}

/// The way for a new key: that of an expired record, else of the record with the fewest strikes.
fn room(set: &ConductSet, now_us: u64) -> Option<usize> {
    if let Some(forgotten) = set.iter().position(|record| record.forgotten_us <= now_us) {
        return Some(forgotten);
    }
    let innocent = set.iter().enumerate().filter(|(_, record)| record.conduct.level == 0);
    let best = innocent.min_by_key(|(_, record)| (record.conduct.strikes, record.conduct.until_us));
    best.map(|(way, _)| way)
}

impl std::fmt::Debug for Conducts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Conducts(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_US: u64 = 1_000_000;
    const PENALTY: Penalty = Penalty {
        after: 3,
        first_us: 10 * SECOND_US,
        longest_us: 60 * SECOND_US,
        forget_us: 600 * SECOND_US,
        record_id: 0,
    };

    #[test]
    fn a_flood_of_keys_clears_no_record_and_punishes_nobody() {
        let conducts = Conducts::new();
        let told = |key, at_us| conducts.record_refusal(key, &PENALTY, at_us, 5 * SECOND_US);
        let strike_out = |start_us: u64| (0..10).find_map(|n| told(42, start_us + n * SECOND_US));
        assert_eq!(strike_out(SECOND_US), Some(10 * SECOND_US));
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..4 * Conducts::MOST {
            assert_eq!(told(rng.u64(100..), 5 * SECOND_US), None);
        }
        assert_eq!(strike_out(30 * SECOND_US), Some(20 * SECOND_US), "it is remembered");
    }
}
