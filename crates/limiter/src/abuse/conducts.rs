//! Records of clients under rules with a penalty, in a bounded table. Only refusals use it.
//!
//! In a full set, a new key evicts the record with the fewest strikes. Records with a cooldown are not evicted: the new
//! key is then not recorded. So a flood of made-up keys removes no such record, and at worst some of these keys get no
//! penalty.

use crate::set_table::LockedSetTable;
use tollgate_core::penalty::{Penalty, PenaltyRecord};
use tollgate_core::time::UnixTime;

const SHARDS: usize = 64;
const SETS: usize = 32;
const WAYS: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct ConductRecord {
    conduct: PenaltyRecord,
    expiry: UnixTime,
}

/// The table.
#[derive(Debug)]
pub(super) struct Conducts(LockedSetTable<ConductRecord, WAYS>);

impl Conducts {
    /// The most records.
    #[cfg(test)]
    pub(super) const MOST: usize = SHARDS * SETS * WAYS;

    pub(super) fn new() -> Self {
        Self(LockedSetTable::new(SHARDS, SETS))
    }

    /// Records that `key` is refused at `now` with a wait of `retry_us`. Returns the length of the cooldown that this
    /// causes, if any.
    pub(super) fn record_refusal(
        &self,
        key: u64,
        penalty: &Penalty,
        now: UnixTime,
        retry_us: u64,
    ) -> Option<u64> {
        let mut table = self.0.lock(key);
        let record = table.entry(key, |records| evicted(records, now))?;
        let (conduct, cooldown_us) = penalty.record_refusal(Some(record.conduct), now, retry_us);
        *record = ConductRecord { conduct, expiry: conduct.expiry(penalty) };
        cooldown_us
    }

    /// Removes the record of `key`.
    pub(super) fn forget(&self, key: u64) {
        self.0.lock(key).remove(key);
    }
}

/// The way of an expired record, else of the record with the fewest strikes and no cooldown.
fn evicted(records: &[ConductRecord; WAYS], now: UnixTime) -> Option<usize> {
    let expired = records.iter().position(|record| record.expiry <= now);
    expired.or_else(|| {
        let without_cooldown = records.iter().enumerate().filter(|(_, record)| record.conduct.level == 0);
        let strikes = |record: &ConductRecord| (record.conduct.strikes, record.conduct.until);
        without_cooldown.min_by_key(|(_, record)| strikes(record)).map(|(way, _)| way)
    })
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
    fn a_flood_of_keys_evicts_no_cooldown_and_causes_none() {
        let conducts = Conducts::new();
        let refuse =
            |key, at_us| conducts.record_refusal(key, &PENALTY, UnixTime::from_us(at_us), 5 * SECOND_US);
        let strike_out = |start_us: u64| (0..10).find_map(|n| refuse(42, start_us + n * SECOND_US));
        assert_eq!(strike_out(SECOND_US), Some(10 * SECOND_US));
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..4 * Conducts::MOST {
            assert_eq!(refuse(rng.u64(100..), 5 * SECOND_US), None);
        }
        assert_eq!(strike_out(30 * SECOND_US), Some(20 * SECOND_US), "the record is kept");
    }
}
