//! Three clients with limits of every algorithm.

use super::super::choices::FuzzChoices;
use super::{DAY_US, SECOND_US};
use tollgate_core::algorithm::Algorithm::{
    self, FixedWindow, Gcra, LeakyBucket, SlidingWindowCounter, SlidingWindowLog, TokenBucket,
};
use tollgate_core::key::StateKey;
use tollgate_core::limit::{Limit, LimitSize, Meter};
use tollgate_core::rules::{LeaseTiming, LimitId, OverLimitEffect};
use tollgate_core::state_address::{StateAddress, StateField};
use tollgate_limiter::OwnedCharge;

/// Client, algorithm, capacity and the microseconds in which it comes in.
const LIMITS: [(u64, Algorithm, u32, u64); 9] = [
    (0, TokenBucket, 1_000, 2 * SECOND_US),
    (0, FixedWindow, 500, SECOND_US),
    (0, SlidingWindowLog, 10, 10 * SECOND_US),
    (1, LeakyBucket, 300, 30 * SECOND_US),
    (1, Gcra, 200, SECOND_US),
    (1, SlidingWindowCounter, 1_000, 60 * SECOND_US),
    (2, TokenBucket, 1_000_000, 10 * SECOND_US),
    (2, TokenBucket, 50, 5 * SECOND_US),
    (2, FixedWindow, u32::MAX, DAY_US),
];
const CLIENTS: u64 = 3;

/// One limit of one client.
pub(super) struct FuzzLimit {
    charge: OwnedCharge,
    algorithm: Algorithm,
    per_us: u64,
}

fn meter(algorithm: Algorithm, capacity: u32, per_us: u64) -> Meter {
    let size = LimitSize { capacity: Some(capacity.into()), rate: None, window_us: Some(per_us) };
    *Limit::new("fuzz", algorithm, size).unwrap().meter()
}

/// Clients of different pages.
fn client(number: u64) -> u64 {
    (number + 1) << 56
}

impl FuzzLimit {
    pub(super) fn all() -> Vec<Self> {
        assert!(Algorithm::scripted().all(|algorithm| LIMITS.iter().any(|limit| limit.1 == algorithm)));
        let kept = |(index, (number, algorithm, capacity, per_us)): (usize, (u64, Algorithm, u32, u64))| {
            let charge = OwnedCharge {
                id: LimitId::NONE,
                // Keys are hashes.
                key: StateKey::from_bits((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
                client: client(number),
                meter: meter(algorithm, capacity, per_us),
                // Some only count.
                enforced: index != 5 && index != 8,
                leased: algorithm.is_leased() && algorithm != Gcra,
                over: OverLimitEffect::default(),
                leasing: LeaseTiming::default(),
                denies_on_failure: index % 2 == 0,
            };
            Self { charge, algorithm, per_us }
        };
        LIMITS.into_iter().enumerate().map(kept).collect()
    }

    pub(super) fn clients() -> impl Iterator<Item = u64> {
        (0..CLIENTS).map(client)
    }

    /// The charge of one request: it may have other numbers, or a limit that can not refuse it.
    pub(super) fn charge_of_request(&self, choices: &mut FuzzChoices<'_>) -> OwnedCharge {
        let mut charge = self.charge;
        charge.enforced ^= choices.one_in(8);
        if choices.one_in(8) {
            charge.meter = meter(self.algorithm, 20, self.per_us);
        }
        charge
    }

    /// Its rule is edited.
    pub(super) fn edit(&mut self, choices: &mut FuzzChoices<'_>) {
        if choices.one_in(3) {
            self.per_us = [SECOND_US, 7 * SECOND_US, 60 * SECOND_US][choices.below(3)];
        }
        let capacity = [1, 7, 200, 1_000][choices.below(4)];
        self.charge.meter = meter(self.algorithm, capacity, self.per_us);
        self.charge.leased = self.algorithm.is_leased() && !choices.one_in(4);
    }
}

/// The address of the state of `charge`.
pub(super) fn address(charge: &OwnedCharge) -> StateAddress {
    StateAddress {
        key: format!("client-{}", charge.client >> 56),
        field: StateField::new(charge.key.as_bits(), None),
    }
}
