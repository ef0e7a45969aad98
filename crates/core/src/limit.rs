//! A limit ready to run: an algorithm and its numbers, checked once when it is built.
//!
//! Every number that a step multiplies is bounded here: no product reaches 2^53, and no step checks for
//! overflow. A limit that cannot be counted in microseconds within that bound is counted in milliseconds, and
//! then in seconds.

pub use crate::algorithm::Meter;
use crate::algorithm::sliding_window_log::{self, LogStep, RequestLog};
use crate::algorithm::{Algorithm, LimitStep, MeterNumbers, StateCell, StateKind, Window};
use crate::rate::{Rate, SECOND_US};
use crate::time::StoreTime;
use std::fmt;
use std::hash::Hasher;

/// Integers up to here are exact in a double, and so in a Redis script.
pub(crate) const EXACT: u128 = 1 << 53;
/// Longer windows than this are probably unintended.
pub(crate) const LONGEST_US: u64 = 366 * 86_400 * SECOND_US;
/// A log keeps each request, so its limit bounds its memory.
pub const LARGEST_LOG: u64 = 1_000;
/// The ticks in which limits count, the finest first.
pub(crate) const TICKS_US: [u64; 3] = [1, 1_000, 1_000_000];

/// The size of a limit as a rule gives it, for any algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LimitSize {
    /// Tokens that fit, or requests per window.
    pub capacity: Option<u64>,
    /// The rate of refill or leak. Not for windows.
    pub rate: Option<Rate>,
    /// The window. For buckets, what headers show, and the rate if none is given.
    pub window_us: Option<u64>,
}

/// Why a limit cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitError {
    /// Neither the limit nor anything that it inherits from gives this number.
    Missing(LimitNumber),
    /// It would reject every request.
    RejectsAll,
    /// A number is out of range.
    OutOfRange {
        /// Which, and how far it may go.
        message: String,
        /// What to write instead.
        hint: &'static str,
    },
}

/// A number that a limit needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitNumber {
    /// The capacity of a bucket.
    Capacity,
    /// The rate of a bucket.
    Rate,
    /// The count of a window.
    Limit,
    /// The length of a window.
    Window,
}

impl fmt::Display for LimitNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Capacity => "capacity",
            Self::Rate => "rate",
            Self::Limit => "limit",
            Self::Window => "window",
        })
    }
}

impl LimitError {
    pub(crate) fn out_of_range(message: impl Into<String>, hint: &'static str) -> Self {
        Self::OutOfRange { message: message.into(), hint }
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(number) => write!(f, "no {number} is given"),
            Self::RejectsAll => write!(f, "this limit would reject every request"),
            Self::OutOfRange { message, .. } => f.write_str(message),
        }
    }
}

/// One limit, which a rule enforces for each of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The name in `RateLimit-Policy`: the rule's id, and the period if the rule has several limits.
    pub policy: String,
    /// Distinguishes the states of this limit from those of others. It depends on the names and not on the
    /// numbers: an edited rule finds its states again, and another algorithm starts fresh.
    pub state_id: u64,
    /// The most that can be admitted at once.
    pub quota: u32,
    /// The limit in headers and messages: `quota`, unless a queue spaces its requests.
    pub shown_quota: u32,
    /// Over how many seconds, as headers and messages show it; 0 if it is about requests in flight.
    pub window_seconds: u32,
    /// With less than this left, the rule's soft action applies; 0 if it has none.
    pub soft_floor: u32,
    /// The longest time that a state of this limit can matter: until full, or the windows that it counts.
    pub lifetime_us: u64,
    meter: Meter,
}

/// The state of one key, wherever it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitState {
    /// See [`StateKind::Cell`].
    Cell(StateCell),
    /// See [`StateKind::Log`].
    Log(RequestLog),
}

impl Limit {
    /// Builds a limit named `policy`.
    pub fn new(policy: &str, algorithm: Algorithm, size: LimitSize) -> Result<Self, LimitError> {
        let capacity = size.capacity.ok_or(LimitError::Missing(if algorithm.counts_windows() {
            LimitNumber::Limit
        } else {
            LimitNumber::Capacity
        }))?;
        if capacity == 0 {
            return Err(LimitError::RejectsAll);
        }
        let quota = u32::try_from(capacity).map_err(|_| {
            LimitError::out_of_range(format!("{capacity} is too large"), "at most 4294967295")
        })?;
        if size.window_us.is_some_and(|us| us == 0 || us > LONGEST_US) {
            return Err(LimitError::out_of_range(
                "the window must be between 1 µs and 366 days",
                "shorter and longer windows are probably unintended",
            ));
        }
        let (meter, window_us) = Meter::new(algorithm, quota, &size)?;
        Ok(Self {
            policy: policy.to_owned(),
            state_id: state_id(policy, &meter),
            quota,
            shown_quota: quota,
            soft_floor: 0,
            // At most 366 days, or the time to fill a capacity, which is bounded alike.
            window_seconds: match algorithm.state_kind() {
                StateKind::InFlight => 0,
                StateKind::Cell | StateKind::Log => {
                    window_us.div_ceil(SECOND_US).clamp(1, u64::from(u32::MAX)) as u32
                }
            },
            lifetime_us: meter.lifetime_us(),
            meter,
        })
    }

    /// The same limit times `factor`, as the safety net of a rule; none if its numbers do not fit.
    pub fn widened(&self, factor: u32) -> Option<Self> {
        let capacity = Some(u64::from(self.quota) * u64::from(factor));
        let size = match self.meter.numbers() {
            MeterNumbers::Bucket(bucket) => {
                let period_us = u64::from(bucket.period) * bucket.tick_us;
                let rate = Rate::per(u64::from(bucket.amount), period_us)?.times(factor)?;
                LimitSize {
                    capacity,
                    rate: Some(rate),
                    window_us: Some(u64::from(self.window_seconds) * SECOND_US),
                }
            }
            MeterNumbers::Window(window) => {
                LimitSize { capacity, rate: None, window_us: Some(window.span_us()) }
            }
        };
        let algorithm = match self.algorithm().state_kind() {
            // Ten times a log would be ten times the memory, and the counter is exact enough here.
            StateKind::Log => Algorithm::SlidingWindowCounter,
            StateKind::Cell | StateKind::InFlight => self.algorithm(),
        };
        let wide = Self::new(&format!("{}.ip", self.policy), algorithm, size).ok()?;
        Some(Self { shown_quota: self.shown_quota.saturating_mul(factor), ..wide })
    }

    /// The share of this limit that one of `nodes` enforces by itself, times `permille` thousandths; none if
    /// its numbers do not fit.
    pub fn divided(&self, nodes: u32, permille: u32) -> Option<Self> {
        let (nodes, permille) = (u64::from(nodes.max(1)), u64::from(permille.max(1)));
        let capacity = Some((u64::from(self.quota) * permille).div_ceil(1_000 * nodes));
        let size = match self.meter.numbers() {
            MeterNumbers::Bucket(bucket) => {
                let period_us = u64::from(bucket.period) * bucket.tick_us;
                let rate = Rate::per(u64::from(bucket.amount) * permille, period_us * 1_000 * nodes);
                LimitSize { capacity, rate: Some(rate?), window_us: None }
            }
            MeterNumbers::Window(window) => {
                LimitSize { capacity, rate: None, window_us: Some(window.span_us()) }
            }
        };
        Self::new(&format!("{}.local", self.policy), self.algorithm(), size).ok()
    }

    /// The algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.meter.algorithm()
    }

    /// The algorithm with its numbers.
    #[inline]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// The window, if this limit is kept as a log rather than in a cell. So are requests in flight whose end is not
    /// known.
    #[inline]
    pub fn log_window(&self) -> Option<&Window> {
        match self.algorithm().state_kind() {
            StateKind::Cell => None,
            StateKind::Log | StateKind::InFlight => self.meter.window(),
        }
    }

    /// The time after which a request in flight counts as ended, if the limit is about requests in flight.
    #[inline]
    pub fn longest_in_flight_us(&self) -> Option<u64> {
        match self.algorithm().state_kind() {
            StateKind::Cell | StateKind::Log => None,
            StateKind::InFlight => self.meter.window().map(Window::span_us),
        }
    }

    /// How long `cost` takes to refill, if the limit has a steady rate.
    pub fn refill_us(&self, cost: u64) -> Option<u64> {
        let bucket = self.meter.bucket()?;
        let ticks = (u128::from(cost) * u128::from(bucket.period)).div_ceil(u128::from(bucket.amount));
        u64::try_from(ticks * u128::from(bucket.tick_us)).ok()
    }

    /// One step on a cell, see [`Meter::step`].
    #[inline]
    pub fn step(&self, cell: Option<StateCell>, now: StoreTime, cost: u32) -> LimitStep {
        self.meter.step(cell, now, cost)
    }

    /// One step on any state, and the state after it (`None` if nothing changes).
    pub fn step_state(
        &self,
        state: Option<&LimitState>,
        now: StoreTime,
        cost: u32,
    ) -> (LimitStep, Option<LimitState>) {
        match self.log_window() {
            Some(window) => {
                let log = state.and_then(|state| match state {
                    LimitState::Log(log) => Some(log),
                    LimitState::Cell(_) => None,
                });
                let found: LogStep = sliding_window_log::step_log(window, log, now, cost);
                let next = (found.step.admitted || found.jumped).then(|| {
                    let mut log = log.cloned().unwrap_or_default();
                    log.apply(window, &found, now, cost);
                    LimitState::Log(log)
                });
                (found.step, next)
            }
            None => {
                let cell = state.and_then(|state| match state {
                    LimitState::Cell(cell) => Some(*cell),
                    LimitState::Log(_) => None,
                });
                let step = self.step(cell, now, cost);
                (step, step.next.map(LimitState::Cell))
            }
        }
    }
}

pub(crate) fn too_fine(capacity: u32) -> LimitError {
    LimitError::out_of_range(
        format!("a capacity of {capacity} with this rate cannot be counted exactly"),
        "use rounder numbers",
    )
}

/// The same on every node and after every restart, because it is part of the state address in a shared store. Counts of
/// windows of another length cannot be read as counts of these, and are states of their own. Buckets keep tokens and logs
/// keep instants, which do not depend on the numbers.
fn state_id(policy: &str, meter: &Meter) -> u64 {
    let mut hasher = siphasher::sip::SipHasher13::new();
    hasher.write(policy.as_bytes());
    hasher.write_u8(0xff);
    hasher.write(meter.algorithm().name().as_bytes());
    match (meter.algorithm().state_kind(), meter.numbers()) {
        (StateKind::Cell, MeterNumbers::Window(window)) => hasher.write_u64(window.span_us().to_le()),
        (StateKind::Cell, MeterNumbers::Bucket(_)) | (StateKind::Log | StateKind::InFlight, _) => {}
    }
    hasher.finish()
}
