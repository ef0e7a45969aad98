//! A limit ready to run: an algorithm and its numbers, checked once when it is built.
//!
//! Every number that a step multiplies is bounded here, so that no product reaches 2^53 and no step has
//! to look for overflow. What cannot be counted in microseconds within that bound is counted in
//! milliseconds, and then in seconds.

use crate::algorithm::sliding_window_log::{LogStep, RequestLog};
use crate::algorithm::{
    Algorithm, Bucket, Divisor, LimitStep, StateCell, Window, fixed_window, gcra, leaky_bucket,
    sliding_window_counter, sliding_window_log, token_bucket,
};
use crate::rate::{Rate, SECOND_US};
use std::fmt;
use std::hash::Hasher;

/// Integers up to here are exact in a double, and so in a Redis script.
const EXACT: u128 = 1 << 53;
/// Longer windows than this are more likely a slip than a wish.
pub(crate) const LONGEST_US: u64 = 366 * 86_400 * SECOND_US;
/// A log remembers each request, so its limit bounds its memory.
pub const LARGEST_LOG: u64 = 1_000;
const TICKS_US: [u64; 3] = [1, 1_000, 1_000_000];

/// What a rule says about the size of a limit, whatever its algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitSize {
    /// Tokens that fit, or requests per window.
    pub capacity: Option<u64>,
    /// The rate of refill or leak. Not for windows.
    pub rate: Option<Rate>,
    /// The window. For buckets only what headers show, and the rate if none is given.
    pub window_us: Option<u64>,
}

/// Why a limit cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitError {
    /// Neither the limit nor anything it inherits gives this number.
    Missing(&'static str),
    /// It would reject every request.
    RejectsAll,
    /// A number is out of range; the text says which and how far it may go.
    OutOfRange(String),
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(what) => write!(f, "no {what} is given"),
            Self::RejectsAll => write!(f, "this limit would reject every request"),
            Self::OutOfRange(what) => f.write_str(what),
        }
    }
}

/// One limit: what a rule enforces for each of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The name in `RateLimit-Policy`: the rule's id, and the period if the rule has several limits.
    pub policy: String,
    /// Distinguishes the states of this limit from those of others. It depends on the names, never on the
    /// numbers, so that a changed rule finds its states again; another algorithm starts fresh.
    pub state_id: u64,
    /// The stated limit.
    pub quota: u32,
    /// What headers and messages call the limit: `quota`, unless a queue lets a wider one out evenly.
    pub shown_quota: u32,
    /// Over how many seconds, as headers and messages show it; 0 if it is about requests in flight.
    pub window_seconds: u32,
    /// With less than this left, the rule's soft action applies; 0 if it has none.
    pub soft_floor: u32,
    /// The longest time that a state of this limit can matter: until full, or the windows it counts.
    pub lifetime_us: u64,
    meter: Meter,
}

/// The algorithm of a limit with its numbers: all that a step needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meter {
    /// See [`Algorithm::TokenBucket`].
    TokenBucket(Bucket),
    /// See [`Algorithm::LeakyBucket`].
    LeakyBucket(Bucket),
    /// See [`Algorithm::Gcra`].
    Gcra(Bucket),
    /// See [`Algorithm::FixedWindow`].
    FixedWindow(Window),
    /// See [`Algorithm::SlidingWindowLog`].
    SlidingWindowLog(Window),
    /// See [`Algorithm::SlidingWindowCounter`].
    SlidingWindowCounter(Window),
    /// See [`Algorithm::Concurrency`]. The window is the longest that a request is believed to take.
    Concurrency(Window),
}

/// The state of one key, wherever it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitState {
    /// All algorithms but the log.
    Cell(StateCell),
    /// The sliding window log.
    Log(RequestLog),
}

impl Limit {
    /// Builds a limit named `policy`.
    pub fn new(policy: &str, algorithm: Algorithm, size: LimitSize) -> Result<Self, LimitError> {
        let capacity = size.capacity.ok_or(LimitError::Missing(if algorithm.counts_windows() {
            "limit"
        } else {
            "capacity"
        }))?;
        if capacity == 0 {
            return Err(LimitError::RejectsAll);
        }
        let quota = u32::try_from(capacity)
            .map_err(|_| LimitError::OutOfRange(format!("{capacity} is too large; at most {}", u32::MAX)))?;
        if size.window_us.is_some_and(|us| us == 0 || us > LONGEST_US) {
            return Err(LimitError::OutOfRange("the window must be between 1 µs and 366 days".to_owned()));
        }
        let (meter, window_us) = if algorithm.counts_windows() {
            let window_us = size.window_us.ok_or(LimitError::Missing("window"))?;
            (window_meter(algorithm, quota, window_us)?, window_us)
        } else {
            let rate = match (size.rate, size.window_us) {
                (Some(rate), _) => rate,
                (None, Some(window_us)) => Rate::per(capacity, window_us).ok_or(LimitError::RejectsAll)?,
                (None, None) => return Err(LimitError::Missing("rate")),
            };
            let window_us = size.window_us.unwrap_or_else(|| rate.time_for_us(capacity));
            (bucket_meter(algorithm, quota, rate)?, window_us)
        };
        Ok(Self {
            policy: policy.to_owned(),
            state_id: state_id(policy, &meter),
            quota,
            shown_quota: quota,
            soft_floor: 0,
            // At most 366 days, or the time to fill a capacity, which is bounded alike.
            window_seconds: match algorithm {
                Algorithm::Concurrency => 0,
                _ => window_us.div_ceil(SECOND_US).clamp(1, u64::from(u32::MAX)) as u32,
            },
            lifetime_us: meter.lifetime_us(),
            meter,
        })
    }

    /// The same limit, `factor` times as wide, under the name of a safety net; none if its numbers do not fit.
    pub fn widened(&self, factor: u32) -> Option<Self> {
        let capacity = Some(u64::from(self.quota) * u64::from(factor));
        let size = match &self.meter {
            Meter::TokenBucket(bucket) | Meter::LeakyBucket(bucket) | Meter::Gcra(bucket) => {
                let period_us = u64::from(bucket.period) * bucket.tick_us;
                let rate = Rate::per(u64::from(bucket.amount), period_us)?.times(factor)?;
                LimitSize {
                    capacity,
                    rate: Some(rate),
                    window_us: Some(u64::from(self.window_seconds) * SECOND_US),
                }
            }
            Meter::FixedWindow(window)
            | Meter::SlidingWindowLog(window)
            | Meter::SlidingWindowCounter(window)
            | Meter::Concurrency(window) => {
                LimitSize { capacity, rate: None, window_us: Some(window.span_us()) }
            }
        };
        // Ten times a log would be ten times the memory: the counter is near enough for a net.
        let algorithm = match self.algorithm() {
            Algorithm::SlidingWindowLog => Algorithm::SlidingWindowCounter,
            other => other,
        };
        let wide = Self::new(&format!("{}.ip", self.policy), algorithm, size).ok()?;
        Some(Self { shown_quota: self.shown_quota.saturating_mul(factor), ..wide })
    }

    /// The share of this limit that one of `nodes` enforces by itself, times `permille` thousandths; none if
    /// its numbers do not fit.
    pub fn divided(&self, nodes: u32, permille: u32) -> Option<Self> {
        let (nodes, permille) = (u64::from(nodes.max(1)), u64::from(permille.max(1)));
        let capacity = Some((u64::from(self.quota) * permille).div_ceil(1_000 * nodes));
        let size = match (self.meter.bucket(), self.meter.window()) {
            (Some(bucket), _) => {
                let period_us = u64::from(bucket.period) * bucket.tick_us;
                let rate = Rate::per(u64::from(bucket.amount) * permille, period_us * 1_000 * nodes);
                LimitSize { capacity, rate: Some(rate?), window_us: None }
            }
            (None, window) => {
                let window_us = window.map(|window| window.span_us());
                LimitSize { capacity, rate: None, window_us }
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

    /// The window, if this limit is kept as a log rather than in a cell. Requests in flight that nobody ends are
    /// such a log too.
    #[inline]
    pub fn log_window(&self) -> Option<&Window> {
        match &self.meter {
            Meter::SlidingWindowLog(window) | Meter::Concurrency(window) => Some(window),
            _ => None,
        }
    }

    /// The longest that a request is believed to take, if the limit is about requests in flight.
    #[inline]
    pub fn longest_in_flight_us(&self) -> Option<u64> {
        match &self.meter {
            Meter::Concurrency(window) => Some(window.span_us()),
            _ => None,
        }
    }

    /// How long `cost` takes to come back, if the limit has a steady rate.
    pub fn refill_us(&self, cost: u64) -> Option<u64> {
        let bucket = self.meter.bucket()?;
        let ticks = (u128::from(cost) * u128::from(bucket.period)).div_ceil(u128::from(bucket.amount));
        u64::try_from(ticks * u128::from(bucket.tick_us)).ok()
    }

    /// One step on a cell, see [`Meter::step`].
    #[inline]
    pub fn step(&self, cell: Option<StateCell>, now_us: u64, cost: u32) -> LimitStep {
        self.meter.step(cell, now_us, cost)
    }

    /// One step on any state, and the state after it (`None` if nothing changes).
    pub fn step_state(
        &self,
        state: Option<&LimitState>,
        now_us: u64,
        cost: u32,
    ) -> (LimitStep, Option<LimitState>) {
        match self.log_window() {
            Some(window) => {
                let log = state.and_then(|state| match state {
                    LimitState::Log(log) => Some(log),
                    LimitState::Cell(_) => None,
                });
                let found: LogStep = sliding_window_log::step(window, log, now_us, cost);
                let next = (found.step.admitted || found.jumped).then(|| {
                    let mut log = log.cloned().unwrap_or_default();
                    log.apply(window, &found, now_us, cost);
                    LimitState::Log(log)
                });
                (found.step, next)
            }
            None => {
                let cell = state.and_then(|state| match state {
                    LimitState::Cell(cell) => Some(*cell),
                    LimitState::Log(_) => None,
                });
                let step = self.step(cell, now_us, cost);
                (step, step.next.map(LimitState::Cell))
            }
        }
    }
}

impl Meter {
    /// The algorithm.
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Self::TokenBucket(_) => Algorithm::TokenBucket,
            Self::LeakyBucket(_) => Algorithm::LeakyBucket,
            Self::Gcra(_) => Algorithm::Gcra,
            Self::FixedWindow(_) => Algorithm::FixedWindow,
            Self::SlidingWindowLog(_) => Algorithm::SlidingWindowLog,
            Self::SlidingWindowCounter(_) => Algorithm::SlidingWindowCounter,
            Self::Concurrency(_) => Algorithm::Concurrency,
        }
    }

    /// The bucket, if it is one.
    #[inline]
    pub fn bucket(&self) -> Option<&Bucket> {
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(bucket) | Self::Gcra(bucket) => Some(bucket),
            _ => None,
        }
    }

    /// The window, if it counts in windows.
    #[inline]
    pub fn window(&self) -> Option<&Window> {
        match self {
            Self::FixedWindow(window)
            | Self::SlidingWindowLog(window)
            | Self::SlidingWindowCounter(window)
            | Self::Concurrency(window) => Some(window),
            _ => None,
        }
    }

    /// Whether it is kept as a log rather than in a cell.
    #[inline]
    pub fn is_log(&self) -> bool {
        matches!(self, Self::SlidingWindowLog(_) | Self::Concurrency(_))
    }

    /// The most that can pass at once.
    #[inline]
    pub fn quota(&self) -> u32 {
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(bucket) | Self::Gcra(bucket) => bucket.capacity,
            Self::FixedWindow(window)
            | Self::SlidingWindowLog(window)
            | Self::SlidingWindowCounter(window)
            | Self::Concurrency(window) => window.limit,
        }
    }

    /// The longest time that a state can matter: until full, or the windows it counts.
    #[inline]
    pub fn lifetime_us(&self) -> u64 {
        match self {
            Self::TokenBucket(bucket) | Self::LeakyBucket(bucket) | Self::Gcra(bucket) => {
                bucket.span * bucket.tick_us
            }
            Self::FixedWindow(window) | Self::SlidingWindowLog(window) | Self::Concurrency(window) => {
                window.span_us()
            }
            Self::SlidingWindowCounter(window) => 2 * window.span_us(),
        }
    }

    /// One step on a cell. `cost` must lie between 1 and [`Meter::quota`]. A log, which has no cell, answers
    /// as one that has seen nothing.
    #[inline]
    pub fn step(&self, cell: Option<StateCell>, now_us: u64, cost: u32) -> LimitStep {
        debug_assert!(cost >= 1 && cost <= self.quota(), "a cost above the capacity is refused before");
        match self {
            Self::TokenBucket(bucket) => token_bucket::step(bucket, cell, now_us, cost),
            _ => {
                let own = cell;
                self.rarer_step(&own, now_us, cost).0
            }
        }
    }

    /// The other algorithms, apart: a step of the default is then inlined where it is taken. State and step are
    /// handed over in places of their own, so that those of the default can stay in registers.
    #[inline(never)]
    fn rarer_step(&self, cell: &Option<StateCell>, now_us: u64, cost: u32) -> (LimitStep,) {
        let cell = *cell;
        let step = match self {
            Self::TokenBucket(bucket) => token_bucket::step(bucket, cell, now_us, cost),
            Self::LeakyBucket(bucket) => leaky_bucket::step(bucket, cell, now_us, cost),
            Self::Gcra(bucket) => gcra::step(bucket, cell, now_us, cost),
            Self::FixedWindow(window) => fixed_window::step(window, cell, now_us, cost),
            Self::SlidingWindowCounter(window) => sliding_window_counter::step(window, cell, now_us, cost),
            Self::SlidingWindowLog(window) | Self::Concurrency(window) => {
                sliding_window_log::step(window, None, now_us, cost).step
            }
        };
        (step,)
    }
}

fn window_meter(algorithm: Algorithm, limit: u32, window_us: u64) -> Result<Meter, LimitError> {
    if algorithm == Algorithm::SlidingWindowLog && u64::from(limit) > LARGEST_LOG {
        return Err(LimitError::OutOfRange(format!(
            "a sliding_window_log remembers each request, so its limit is at most {LARGEST_LOG}; \
             use sliding_window_counter for larger ones"
        )));
    }
    // The log only ever adds and compares instants; the others multiply counts by the window.
    let tick_us = match algorithm {
        Algorithm::SlidingWindowLog | Algorithm::Concurrency => 1,
        _ => TICKS_US
            .into_iter()
            .filter(|tick_us| window_us.is_multiple_of(*tick_us))
            // Counts may be above a lowered limit, hence the room for four windows' worth.
            .find(|tick_us| u128::from(limit) * u128::from(window_us / tick_us) * 4 < EXACT)
            .ok_or_else(|| too_fine(limit))?,
    };
    let window = Window { limit, span: window_us / tick_us, tick_us };
    Ok(match algorithm {
        Algorithm::FixedWindow => Meter::FixedWindow(window),
        Algorithm::SlidingWindowLog => Meter::SlidingWindowLog(window),
        Algorithm::Concurrency => Meter::Concurrency(window),
        _ => Meter::SlidingWindowCounter(window),
    })
}

fn bucket_meter(algorithm: Algorithm, capacity: u32, rate: Rate) -> Result<Meter, LimitError> {
    if rate.time_for_us(u64::from(capacity)) > LONGEST_US {
        return Err(LimitError::OutOfRange(
            "at this rate it takes more than 366 days to fill the capacity".to_owned(),
        ));
    }
    let bucket = TICKS_US.into_iter().find_map(|tick_us| bucket(capacity, rate, tick_us));
    let bucket = bucket.ok_or_else(|| too_fine(capacity))?;
    Ok(match algorithm {
        Algorithm::LeakyBucket => Meter::LeakyBucket(bucket),
        Algorithm::Gcra => Meter::Gcra(bucket),
        _ => Meter::TokenBucket(bucket),
    })
}

/// The bucket in ticks of `tick_us`, if its numbers fit.
fn bucket(capacity: u32, rate: Rate, tick_us: u64) -> Option<Bucket> {
    let (amount, period) = rate.per_ticks(tick_us);
    let amount = u32::try_from(amount).ok()?;
    let period = u32::try_from(period).ok()?;
    let full = u128::from(capacity) * u128::from(period);
    // A level and what flows into it are two capacities.
    if 4 * full + 2 * u128::from(amount) >= EXACT {
        return None;
    }
    Some(Bucket {
        capacity,
        amount,
        period,
        tick_us,
        grain: grain(period, tick_us),
        span: (full as u64).div_ceil(u64::from(amount)),
        by_amount: Divisor::new(amount),
        by_period: Divisor::new(period),
    })
}

fn too_fine(capacity: u32) -> LimitError {
    LimitError::OutOfRange(format!(
        "a capacity of {capacity} with this rate cannot be counted exactly; use rounder numbers"
    ))
}

/// A mark for "fractions of 1/unit in this tick". Two units with the same mark (one pair in 65,536) cost at
/// most a fraction of a token, once, when a rule changes from the one to the other.
fn grain(unit: u32, tick_us: u64) -> u16 {
    let mixed = (u64::from(unit) ^ tick_us.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 48) as u16
}

/// The same on every node and after every restart: it also names the state in a shared store. Counts of windows of
/// another length cannot be read as counts of these, and are states of their own. Buckets keep tokens and logs keep
/// instants, which any numbers can read.
fn state_id(policy: &str, meter: &Meter) -> u64 {
    let mut hasher = siphasher::sip::SipHasher13::new();
    hasher.write(policy.as_bytes());
    hasher.write_u8(0xff);
    hasher.write(meter.algorithm().name().as_bytes());
    if let Meter::FixedWindow(window) | Meter::SlidingWindowCounter(window) = meter {
        hasher.write_u64((window.span_us()).to_le());
    }
    hasher.finish()
}
