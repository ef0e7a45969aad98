//! Random limits, and what becomes of them when a rule is edited.

use super::SECOND_US;
use tollgate_core::algorithm::{Algorithm, StateKind};
use tollgate_core::limit::{Limit, LimitSize};
use tollgate_core::rate::Rate;

const DAY: u64 = 86_400;

/// The numbers of a limit: for buckets a capacity and `tokens` per `period_us`, for windows `capacity` per
/// `period_us`.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    algorithm: Algorithm,
    capacity: u32,
    tokens: u64,
    period_us: u64,
}

/// Capacity, tokens and seconds; the last six can be counted only in milliseconds or seconds.
const BUCKETS: [(u32, u64, u64); 13] = [
    (100, 167, 100),
    (20, 10, 1),
    (1, 10, 1),
    (250, 250, DAY),
    (50, 1_000_000, 1),
    (7, 3_000_000, 1),
    (u32::MAX, 1_000_000_000, 1),
    (5, 5, DAY),
    (3, 1, DAY),
    (700, 7, 36_000),
    (6, 1, 60 * DAY),
    (5, 1, 55 * DAY),
    (2_345_677, 2_345_677, 30 * DAY),
];

/// Limit and microseconds; the last four can be counted only in milliseconds or seconds.
const WINDOWS: [(u32, u64); 10] = [
    (100, 60 * SECOND_US),
    (5, 10 * SECOND_US),
    (3, 1),
    (10, 7),
    (50, 1_500_000),
    (70, 365 * DAY * SECOND_US),
    (100, 365 * DAY * SECOND_US),
    (100_000, DAY * SECOND_US),
    (100_000, 365 * DAY * SECOND_US),
    (1_000_000_000, DAY * SECOND_US),
];

impl Numbers {
    pub fn draw(rng: &mut fastrand::Rng, algorithm: Algorithm) -> Self {
        let numbers = if algorithm.counts_windows() {
            let (capacity, period_us) = match rng.bool() {
                true => WINDOWS[rng.usize(..WINDOWS.len())],
                false => (1 + magnitude(rng, 3) as u32, 1 + magnitude(rng, 9)),
            };
            Self { algorithm, capacity, tokens: 0, period_us }
        } else {
            let (capacity, tokens, seconds) = match rng.bool() {
                true => BUCKETS[rng.usize(..BUCKETS.len())],
                false => {
                    let seconds = [1, 2, 3, 7, 60, 100, 1_000][rng.usize(..7)];
                    (1 + magnitude(rng, 5) as u32, 10 + magnitude(rng, 4), seconds)
                }
            };
            Self { algorithm, capacity, tokens, period_us: seconds * SECOND_US }
        };
        numbers.bounded(rng)
    }

    /// The same limit after an edit of its rule: another capacity, another rate or window, or both.
    pub fn edited(self, rng: &mut fastrand::Rng) -> Self {
        let mut edited = self;
        if rng.u8(0..8) == 0 {
            return Self::draw(rng, self.algorithm);
        }
        if rng.bool() {
            edited.capacity = 1 + rng.u32(0..=self.capacity.saturating_sub(1).saturating_mul(2) / 3 * 2);
        }
        if rng.bool() {
            match self.algorithm.counts_windows() {
                true => edited.period_us = self.period_us / 2 * rng.u64(1..=4) + 1,
                false => edited.tokens = 1 + rng.u64(0..=2 * self.tokens),
            }
        }
        // An odd product may be too fine to count in any tick.
        if edited.build().is_ok() { edited.bounded(rng) } else { self }
    }

    pub fn of(self, algorithm: Algorithm, rng: &mut fastrand::Rng) -> Self {
        if algorithm.counts_windows() != self.algorithm.counts_windows() {
            return Self::draw(rng, algorithm);
        }
        Self { algorithm, ..self }.bounded(rng)
    }

    pub fn limit(self) -> Limit {
        self.build().unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }

    fn bounded(self, rng: &mut fastrand::Rng) -> Self {
        match self.algorithm.state_kind() {
            StateKind::Log if self.capacity > 60 => Self { capacity: rng.u32(1..=60), ..self },
            StateKind::Cell | StateKind::Log | StateKind::InFlight => self,
        }
    }

    fn build(self) -> Result<Limit, tollgate_core::limit::LimitError> {
        let capacity = Some(self.capacity.into());
        let size = match self.algorithm.counts_windows() {
            true => LimitSize { capacity, rate: None, window_us: Some(self.period_us) },
            false => LimitSize { capacity, rate: Rate::per(self.tokens, self.period_us), window_us: None },
        };
        Limit::new("drawn", self.algorithm, size)
    }
}

/// Any order of magnitude up to this power of ten is as likely as any other.
fn magnitude(rng: &mut fastrand::Rng, largest: u32) -> u64 {
    let power = 10u64.pow(rng.u32(0..=largest));
    rng.u64(0..power)
}
