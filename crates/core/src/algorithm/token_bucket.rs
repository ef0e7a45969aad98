//! Token bucket: the default.
//!
//! A bucket holds at most `capacity` tokens (B) and gains `amount` tokens (r) every `period` ticks (P).
//! A request of cost c takes c tokens or is rejected. The capacity is the burst, the rate is what holds
//! in the long run: over any t seconds at most B + r·t pass.
//!
//! The level is counted in fractions of 1/P token, so that one tick adds exactly r of them and nothing
//! is ever rounded: `level' = min(B·P, level + Δ·r)`, admit iff `level' ≥ c·P`, otherwise the wait is
//! `⌈(c·P − level') / r⌉` ticks. A state keeps whole tokens and the fraction apart: when a rule changes,
//! P changes with it, and only the fraction (less than one token) has lost its meaning and is dropped.
//!
//! A worked example, 100 tokens and 1.67 per second (r = 167, P = 100,000,000 µs). At t = 0 a client
//! sends 101 requests: 100 pass, the last is told to wait `⌈1·P / 167⌉` = 598,803 µs. One microsecond
//! earlier it is still rejected, for the bucket then holds 598,802 × 167 = 99,999,934 of the
//! 100,000,000 fractions it takes.
//!
//! A rejection saves nothing. Implementations that save the time of a rejected request, but not the
//! refill up to then, starve a client that hammers for ever; this one keeps the old instant, so the
//! tokens go on growing underneath.

use super::{Bucket, LimitStep, StateCell, stored_tick, tick_of, until};
use crate::lending::{BucketLevel, LentTokens};

/// One request of `cost` ≤ capacity at `now_us`. `StateCell`: the tokens at `instant_us`, whole in `major`
/// and the fraction in `minor`; none is a full bucket.
// In the store the state is then taken from its slot and put back without ever being a `LimitStep` in memory.
#[inline(always)]
pub fn step(bucket: &Bucket, cell: Option<StateCell>, now_us: u64, cost: u32) -> LimitStep {
    let now = tick_of(now_us, bucket.tick_us);
    let (stored, last) = match cell {
        None => (bucket.full(), now),
        Some(cell) => (tokens(bucket, cell), stored_tick(cell.instant_us, bucket.tick_us)),
    };
    let flow = bucket.flow(last, now);
    let level = (stored + flow.fractions).min(bucket.full());
    let need = u64::from(cost) * u64::from(bucket.period);
    let admitted = level >= need;
    let left = if admitted { level - need } else { level };
    let state = bucket.cell(left, flow.at);
    LimitStep {
        admitted,
        next: (admitted || flow.jumped).then_some(state),
        remaining: state.major,
        retry_after_us: if admitted {
            0
        } else {
            until(flow.at + bucket.ticks_for(need - level), bucket.tick_us, now_us)
        },
        reset_after_us: until(flow.at + bucket.ticks_for(bucket.full() - left), bucket.tick_us, now_us),
    }
}

/// The stored tokens in fractions of this limit. Tokens above a lowered capacity are gone.
#[inline]
fn tokens(bucket: &Bucket, cell: StateCell) -> u64 {
    if cell.major >= bucket.capacity {
        return bucket.full();
    }
    let known = cell.grain == bucket.grain && cell.minor < bucket.period;
    let fraction = if known { cell.minor } else { 0 };
    u64::from(cell.major) * u64::from(bucket.period) + u64::from(fraction)
}

/// The bucket at `now_us` while some of it is lent: what is available is the level.
pub(crate) fn open(bucket: &Bucket, cell: Option<StateCell>, now_us: u64, lent: &LentTokens) -> BucketLevel {
    let now = tick_of(now_us, bucket.tick_us);
    let (stored, last) = match cell {
        None => (bucket.full(), now),
        Some(cell) => (tokens(bucket, cell), stored_tick(cell.instant_us, bucket.tick_us)),
    };
    bucket.opened(stored as i64, last, now, lent)
}

/// The state of a bucket that is left as `opened` says.
pub(crate) fn close(bucket: &Bucket, opened: BucketLevel) -> StateCell {
    bucket.cell(opened.available.max(0) as u64, opened.at)
}
