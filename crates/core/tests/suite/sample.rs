//! Limits as the tests write them: their numbers, stated here and not read back from the code under
//! test, and the [`Limit`] that is built from them.

use tollgate_core::algorithm::{Algorithm, StateKind};
use tollgate_core::limit::{Limit, LimitSize, LimitState};
use tollgate_core::rate::Rate;
use tollgate_core::time::StoreTime;

/// Where the virtual clocks start: some day in 2023, and the start of a window for no length by chance.
pub const NOW_US: u64 = 1_700_000_123_456_789;
pub const SECOND_US: u64 = 1_000_000;
pub const HOUR_US: u64 = 3_600 * SECOND_US;
pub const DAY_US: u64 = 24 * HOUR_US;

/// The time at which the clock of a store shows `us` microseconds.
pub const fn at(us: u64) -> StoreTime {
    StoreTime::from_us(us)
}

/// All algorithms with a capacity and a rate.
pub fn buckets() -> impl Iterator<Item = Algorithm> {
    Algorithm::scripted().filter(|algorithm| !algorithm.counts_windows())
}

/// All algorithms with a count per window, but for requests in flight.
pub fn windows() -> impl Iterator<Item = Algorithm> {
    Algorithm::scripted().filter(|algorithm| algorithm.counts_windows())
}

/// Those of them that keep counts.
pub fn counters() -> impl Iterator<Item = Algorithm> {
    windows().filter(|algorithm| algorithm.state_kind() == StateKind::Cell)
}

/// A capacity, and `tokens` every `seconds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    pub capacity: u32,
    pub tokens: u64,
    pub seconds: u64,
    /// The tick in which such a limit has to count.
    pub tick_us: u64,
}

pub const fn bucket(capacity: u32, tokens: u64, seconds: u64, tick_us: u64) -> Bucket {
    Bucket { capacity, tokens, seconds, tick_us }
}

/// 100 tokens, 1.67 per second.
pub const HUNDRED: Bucket = bucket(100, 167, 100, 1);

/// One kind of everything: decimals, rates per minute and per day, a strict spacing, more than one token a
/// tick, the largest capacity, and rates so slow or so odd that only milliseconds or seconds can count them.
const NOTABLE_BUCKETS: [Bucket; 14] = [
    HUNDRED,
    bucket(100, 5, 3, 1),
    bucket(250, 250, 86_400, 1),
    bucket(20, 10, 1, 1),
    bucket(1, 10, 1, 1),
    bucket(1_000, 1_000, 2_592_000, 1),
    bucket(50, 1_000_000, 1, 1),
    bucket(7, 3_000_000, 1, 1),
    bucket(u32::MAX, 1_000_000_000, 1, 1),
    bucket(5, 5, 86_400, 1_000),
    bucket(3, 1, 86_400, 1_000),
    bucket(700, 7, 36_000, 1_000),
    bucket(6, 1, 5_184_000, 1_000_000),
    bucket(2_345_677, 2_345_677, 2_592_000, 1_000_000),
];

impl Bucket {
    pub fn limit(&self, algorithm: Algorithm) -> Limit {
        let rate = Rate::per(self.tokens, self.seconds * SECOND_US);
        let size = LimitSize { capacity: Some(self.capacity.into()), rate, window_us: None };
        Limit::new("sample", algorithm, size).unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }

    pub fn draw(rng: &mut fastrand::Rng) -> Self {
        match rng.u8(0..3) {
            0 => NOTABLE_BUCKETS[rng.usize(..NOTABLE_BUCKETS.len())],
            _ => Self::draw_fine(rng),
        }
    }

    /// The same kind of limit with other numbers, as after an edit of its rule.
    pub fn edited(&self, rng: &mut fastrand::Rng) -> Self {
        let capacity = 1 + rng.u32(0..self.capacity.saturating_mul(2).min(1_000));
        match (self.tick_us, rng.u8(0..4)) {
            (_, 0) => Self::draw(rng),
            (1, 1) => Self::draw_fine(rng),
            // A longer way to write the same rate: the unit of the fractions does not change.
            (1, 2) if self.seconds <= 1_000 && self.tokens <= 5_000 => Self {
                capacity: self.capacity.min(1_000),
                tokens: 2 * self.tokens,
                seconds: 2 * self.seconds,
                ..*self
            },
            (1, _)
                if self.seconds <= 1_000 && self.tokens * 1_000_000 > u64::from(capacity) * self.seconds =>
            {
                Self { capacity, ..*self }
            }
            (1, _) => Self::draw_fine(rng),
            (1_000, _) => bucket(capacity.min(100), rng.u64(1..=3), 86_400 * rng.u64(1..=3), 1_000),
            _ => bucket(rng.u32(1..=6), 1, 86_400 * rng.u64(50..=60), 1_000_000),
        }
    }

    /// Numbers small enough for microseconds, whatever they are.
    fn draw_fine(rng: &mut fastrand::Rng) -> Self {
        const SECONDS: [u64; 7] = [1, 2, 3, 7, 60, 100, 1_000];
        let capacity = 1 + up_to_power_of_ten(rng, 6) as u32;
        let seconds = SECONDS[rng.usize(..SECONDS.len())];
        // Not so few that the capacity would take more than a year to fill.
        let fewest = u64::from(capacity) * seconds / 30_000_000 + 1;
        bucket(capacity, rng.u64(fewest..=fewest + 5_000), seconds, 1)
    }
}

/// So many per window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub limit: u32,
    pub window_us: u64,
    /// The tick in which such a limit has to count; the log always counts in microseconds.
    pub tick_us: u64,
}

pub const fn window(limit: u32, window_us: u64, tick_us: u64) -> Window {
    Window { limit, window_us, tick_us }
}

const NOTABLE_WINDOWS: [Window; 12] = [
    window(100, 60 * SECOND_US, 1),
    window(5, 10 * SECOND_US, 1),
    window(1, SECOND_US, 1),
    window(50, 1_500_000, 1),
    window(1_000, HOUR_US, 1),
    window(3, 1, 1),
    window(10, 7, 1),
    window(70, 365 * DAY_US, 1),
    window(100, 365 * DAY_US, 1_000),
    window(100_000, DAY_US, 1_000),
    window(100_000, 365 * DAY_US, 1_000_000),
    window(1_000_000_000, DAY_US, 1_000_000),
];

impl Window {
    pub fn limit(&self, algorithm: Algorithm) -> Limit {
        let size =
            LimitSize { capacity: Some(self.limit.into()), rate: None, window_us: Some(self.window_us) };
        Limit::new("sample", algorithm, size).unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }

    pub fn draw(rng: &mut fastrand::Rng) -> Self {
        match rng.u8(0..3) {
            0 => NOTABLE_WINDOWS[rng.usize(..NOTABLE_WINDOWS.len())],
            _ => Self::draw_fine(rng),
        }
    }

    /// The same kind of limit with other numbers, as after an edit of its rule.
    pub fn edited(&self, rng: &mut fastrand::Rng) -> Self {
        match (self.tick_us, rng.u8(0..4)) {
            (_, 0) => Self::draw(rng),
            (1, 1) if self.limit <= 1_000 && self.window_us <= HOUR_US => {
                window(1 + rng.u32(0..self.limit * 2), self.window_us, 1)
            }
            (1, 2) if self.limit <= 1_000 && self.window_us <= HOUR_US => {
                window(self.limit, 1 + rng.u64(0..2 * self.window_us), 1)
            }
            (1, _) => Self::draw_fine(rng),
            (1_000, _) => window(rng.u32(80..=1_000), rng.u64(360 * 24..=366 * 24) * HOUR_US, 1_000),
            _ => window(rng.u32(80_000..=1_000_000), rng.u64(360 * 24..=366 * 24) * HOUR_US, 1_000_000),
        }
    }

    /// As [`Window::draw`], within what a log may remember.
    pub fn draw_for_log(rng: &mut fastrand::Rng) -> Self {
        Self { limit: rng.u32(1..=60), tick_us: 1, ..Self::draw(rng) }
    }

    fn draw_fine(rng: &mut fastrand::Rng) -> Self {
        let limit = 1 + up_to_power_of_ten(rng, 3) as u32;
        window(limit, 1 + up_to_power_of_ten(rng, 9), 1)
    }
}

/// Any order of magnitude is as likely as any other.
fn up_to_power_of_ten(rng: &mut fastrand::Rng, largest: u32) -> u64 {
    let power = 10u64.pow(rng.u32(0..=largest));
    rng.u64(0..power)
}

/// A limit with the state of one key, kept as a store would keep it: whatever a step hands back is written.
#[derive(Clone, Debug)]
pub struct Kept {
    pub limit: Limit,
    pub state: Option<LimitState>,
}

impl Kept {
    pub fn new(limit: Limit) -> Self {
        Self { limit, state: None }
    }

    pub fn step(&mut self, now_us: u64, cost: u32) -> tollgate_core::algorithm::LimitStep {
        let (step, next) = self.limit.step_state(self.state.as_ref(), at(now_us), cost);
        if next.is_some() {
            self.state = next;
        }
        step
    }

    /// What a step would answer, without writing anything.
    pub fn peek(&self, now_us: u64, cost: u32) -> tollgate_core::algorithm::LimitStep {
        self.limit.step_state(self.state.as_ref(), at(now_us), cost).0
    }

    /// What a key that was never seen would be answered.
    pub fn fresh(&self, now_us: u64, cost: u32) -> tollgate_core::algorithm::LimitStep {
        self.limit.step_state(None, at(now_us), cost).0
    }
}
