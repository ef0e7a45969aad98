//! The algorithms, each a pure function `step(numbers, state, now, cost)`.
//!
//! No step reads a clock, allocates or changes what it is given: it answers what would happen, and
//! hands back the next state. Who calls it decides whether that state is kept. That is how several
//! limits are checked together and spent all or not at all, and why a rejection changes nothing.
//!
//! # Time
//! Instants are microseconds since the Unix epoch. Each limit counts in *ticks* of 1 µs, 1 ms or 1 s,
//! the finest for which every product stays below 2^53 (see [`crate::limit`]): the same arithmetic then
//! also runs on the doubles of a Redis script. A coarser tick loses no exactness of the promise: a
//! decision is a function of the tick, so one microsecond before the promised tick still rejects.
//!
//! # A clock that steps back
//! State from the future is kept as it is while it lies at most one *span* ahead (the time to full, or
//! the window): nobody gains, and the wait grows by at most that span. Further ahead, the clock has
//! jumped, and the state is re-anchored at the present with its counts kept. This is the one case in
//! which a rejected step hands back a state to write; otherwise the client would wait until the clock
//! has caught up with a past that never comes.

pub mod concurrency;
mod divisor;
pub mod fixed_window;
pub mod gcra;
pub mod leaky_bucket;
pub mod sliding_window_counter;
pub mod sliding_window_log;
pub mod token_bucket;

use crate::lending::{BucketLevel, LentTokens, refill};
pub(crate) use divisor::Divisor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which algorithm a limit runs.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Tokens refill at a steady rate up to a capacity; a request spends tokens. The default.
    #[default]
    TokenBucket,
    /// A level that leaks at a steady rate; what would overflow is rejected at once.
    LeakyBucket,
    /// The same limit from one timestamp; strictly spaced when the burst is 0.
    Gcra,
    /// A count per window, aligned to the clock.
    FixedWindow,
    /// Every admitted request is remembered for one window: exact, for low limits.
    SlidingWindowLog,
    /// The previous and the current window, weighted.
    SlidingWindowCounter,
    /// How many requests are in flight at once.
    Concurrency,
}

impl Algorithm {
    /// The name used in YAML, metrics and explanations.
    pub fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::Gcra => "gcra",
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindowLog => "sliding_window_log",
            Self::SlidingWindowCounter => "sliding_window_counter",
            Self::Concurrency => "concurrency",
        }
    }

    /// Whether the limit is a count rather than a capacity with a rate.
    pub fn counts_windows(self) -> bool {
        !matches!(self, Self::TokenBucket | Self::LeakyBucket | Self::Gcra)
    }
}

/// What a limit remembers of one key: an instant and two counts. Every algorithm but the log fits in
/// one; which count means what is said in the algorithm's own file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateCell {
    /// The instant the state speaks of, in microseconds since the epoch.
    pub instant_us: u64,
    /// Marks the unit in which `minor` counts, so that a changed rule cannot misread it.
    pub grain: u16,
    /// Whole tokens, or the current window's count.
    pub major: u32,
    /// The fraction of a token, or the previous window's count.
    pub minor: u32,
}

/// The numbers of a limit with a capacity and a rate: `amount` tokens every `period` ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Tokens that fit.
    pub capacity: u32,
    /// Tokens gained (or leaked) per period.
    pub amount: u32,
    /// The period, in ticks. A fraction of a token is counted in 1/period.
    pub period: u32,
    /// Microseconds per tick.
    pub tick_us: u64,
    /// The mark of this limit's fractions, see [`StateCell::grain`].
    pub grain: u16,
    /// Ticks from empty to full: the capacity over the rate, rounded up.
    pub span: u64,
    pub(crate) by_amount: Divisor,
    pub(crate) by_period: Divisor,
}

impl Bucket {
    /// The capacity in fractions of a token.
    #[inline]
    pub(crate) fn full(&self) -> u64 {
        u64::from(self.capacity) * u64::from(self.period)
    }

    /// Ticks until `fractions` have flowed.
    #[inline]
    fn ticks_for(&self, fractions: u64) -> u64 {
        self.by_amount.divide(fractions + u64::from(self.amount - 1))
    }

    /// `level` fractions at the tick `at`, as they are kept: whole tokens and the rest apart.
    #[inline]
    fn cell(&self, level: u64, at: u64) -> StateCell {
        let major = self.by_period.divide(level);
        StateCell {
            instant_us: at * self.tick_us,
            grain: self.grain,
            major: major as u32,
            minor: (level - major * u64::from(self.period)) as u32,
        }
    }

    /// What is available at `now` if it was `available` at the tick `last`, while some of it is lent.
    fn opened(&self, available: i64, last: u64, now: u64, lent: &LentTokens) -> BucketLevel {
        let BucketFlow { at, .. } = self.flow(last, now);
        BucketLevel { available: refill(self, lent, available, last.min(at), at), at }
    }

    /// What flows in the ticks from `last` to `now`, and the tick that the new state speaks of.
    #[inline]
    fn flow(&self, last: u64, now: u64) -> BucketFlow {
        if now >= last {
            let elapsed = (now - last).min(self.span);
            BucketFlow { fractions: elapsed * u64::from(self.amount), at: now, jumped: false }
        } else if last - now > self.span {
            BucketFlow { fractions: 0, at: now, jumped: true }
        } else {
            BucketFlow { fractions: 0, at: last, jumped: false }
        }
    }
}

/// See [`Bucket::flow`].
struct BucketFlow {
    fractions: u64,
    at: u64,
    /// The clock went back so far that the state has to be re-anchored.
    jumped: bool,
}

/// The numbers of a limit with a count per window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// What one window admits.
    pub limit: u32,
    /// The length, in ticks.
    pub span: u64,
    /// Microseconds per tick.
    pub tick_us: u64,
}

impl Window {
    /// The length, in microseconds.
    #[inline]
    pub fn span_us(&self) -> u64 {
        self.span * self.tick_us
    }
}

/// The answer of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitStep {
    /// Whether the request may pass.
    pub admitted: bool,
    /// The state to keep. A rejected step has none, except to re-anchor one that lies too far ahead.
    pub next: Option<StateCell>,
    /// What is left after this step, in whole tokens.
    pub remaining: u32,
    /// When the same request would pass if no other spends; 0 if it was admitted, and for a place among requests
    /// in flight, of which no end is promised.
    pub retry_after_us: u64,
    /// When the state equals a fresh one if nobody spends.
    pub reset_after_us: u64,
}

/// The tick in which `now_us` lies.
#[inline]
fn tick_of(now_us: u64, tick_us: u64) -> u64 {
    if tick_us == 1 { now_us } else { now_us / tick_us }
}

/// The tick of a stored instant. It is whole unless the rule, and with it the tick, has changed; then it
/// is rounded up, against the client by less than a tick.
#[inline]
fn stored_tick(instant_us: u64, tick_us: u64) -> u64 {
    if tick_us == 1 { instant_us } else { instant_us.div_ceil(tick_us) }
}

/// Microseconds from `now_us` to the start of `tick`.
#[inline]
fn until(tick: u64, tick_us: u64, now_us: u64) -> u64 {
    (tick * tick_us).saturating_sub(now_us)
}
