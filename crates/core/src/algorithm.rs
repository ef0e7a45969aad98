//! The algorithms, each a pure function `step(numbers, state, now, cost)`.
//!
//! No step reads a clock, allocates or changes what it is given: it returns the result and the next
//! state, and the caller decides whether that state is kept. So several limits can be checked together
//! and charged all or not at all, and a rejection changes nothing.
//!
//! # Time
//! Times are those of the store that holds the state, in microseconds ([`crate::time`]). Each limit counts in *ticks* of 1 µs, 1 ms or 1 s,
//! the finest for which every product stays below 2^53 (see [`crate::limit`]): the same arithmetic then
//! also runs on the doubles of a Redis script. A coarser tick loses no exactness of the promise: a
//! decision is a function of the tick, so one microsecond before the promised tick still rejects.
//!
//! # A clock that steps back
//! A state from the future is kept as it is while it lies at most one *span* ahead (the time to full, or
//! the window): no client gains, and the wait grows by at most that span. Further ahead, the clock has
//! jumped, and the state is re-anchored at the present with its counts kept. This is the one case in
//! which a rejected step returns a state to write; otherwise the client would wait until the clock
//! shows the time of the state again.

#[macro_use]
mod dispatch;

pub(crate) mod bucket;
pub mod concurrency;
mod divisor;
pub mod fixed_window;
pub mod gcra;
pub mod leaky_bucket;
pub mod sliding_window_counter;
pub mod sliding_window_log;
pub mod token_bucket;
pub(crate) mod window;

use crate::lending::{LeaseReport, StoredState};
use crate::limit::{LimitError, LimitSize};
use crate::time::StoreTime;
pub use bucket::Bucket;
pub use dispatch::{MeterNumbers, StateKind};
use divisor::Divisor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use window::Window;

// One row for each algorithm: its numbers, its module, how its states are kept, and whether nodes lease its tokens.
algorithms! {
    /// Tokens refill at a steady rate up to a capacity; a request spends tokens. The default.
    #[default]
    TokenBucket(Bucket) in token_bucket, kept as Cell, leased;
    /// A level that leaks at a steady rate; what would overflow is rejected at once.
    LeakyBucket(Bucket) in leaky_bucket, kept as Cell, leased;
    /// The same limit from one timestamp; strictly spaced when the burst is 0.
    Gcra(Bucket) in gcra, kept as Cell, leased;
    /// A count per window, aligned to the clock.
    FixedWindow(Window) in fixed_window, kept as Cell, leased;
    /// Every admitted request is remembered for one window: exact, for low limits.
    SlidingWindowLog(Window) in sliding_window_log, kept as Log;
    /// The previous and the current window, weighted.
    SlidingWindowCounter(Window) in sliding_window_counter, kept as Cell, leased;
    /// How many requests are in flight at once.
    Concurrency(Window) in concurrency, kept as InFlight;
}

/// The state of one key under one limit: an instant and two counts, whose meaning is in the file of the
/// algorithm. Only logs are kept otherwise, see [`StateKind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateCell {
    /// The time of the state.
    pub instant: StoreTime,
    /// Marks the unit in which `minor` counts, so that a changed rule cannot misread it.
    pub grain: u16,
    /// Whole tokens, or the current window's count.
    pub major: u32,
    /// The fraction of a token, or the previous window's count.
    pub minor: u32,
}

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitStep {
    /// Whether the request is admitted.
    pub admitted: bool,
    /// The state to keep. A rejected step has none, except to re-anchor one that lies too far ahead.
    pub next: Option<StateCell>,
    /// What is left after this step, in whole tokens.
    pub remaining: u32,
    /// The time until the same request would be admitted if no other spends; 0 if it was admitted, and for a slot in
    /// flight, whose release is not known.
    pub retry_after_us: u64,
    /// The time until the state equals a fresh one if no request spends.
    pub reset_after_us: u64,
}

/// The tick in which `time` lies.
#[inline]
fn tick_of(time: StoreTime, tick_us: u64) -> u64 {
    let us = time.as_us();
    if tick_us == 1 { us } else { us / tick_us }
}

/// The tick of a stored instant. It is whole unless the rule, and with it the tick, has changed; then it
/// is rounded up, against the client by less than a tick.
#[inline]
fn stored_tick(instant: StoreTime, tick_us: u64) -> u64 {
    let us = instant.as_us();
    if tick_us == 1 { us } else { us.div_ceil(tick_us) }
}

/// The start of `tick`.
#[inline]
fn start_of(tick: u64, tick_us: u64) -> StoreTime {
    StoreTime::from_us(tick * tick_us)
}

/// Microseconds from `now` to the start of `tick`.
#[inline]
fn until(tick: u64, tick_us: u64, now: StoreTime) -> u64 {
    start_of(tick, tick_us).since(now)
}
