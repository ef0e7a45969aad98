//! Token bucket: the default.
//!
//! A bucket holds at most `capacity` tokens (B) and gains `amount` tokens (r) every `period` ticks (P).
//! A request of cost c takes c tokens or is rejected. The capacity bounds a burst, the rate the long run:
//! over any t seconds at most B + r·t are admitted.
//!
//! The level is counted in fractions of 1/P token, so that one tick adds exactly r of them and nothing
//! is ever rounded: `level' = min(B·P, level + Δ·r)`, admit iff `level' ≥ c·P`, otherwise the wait is
//! `⌈(c·P − level') / r⌉` ticks. A state keeps whole tokens and the fraction apart: when a rule changes,
//! P changes with it, and only the fraction (less than one token) loses its meaning and is dropped.
//!
//! A worked example, 100 tokens and 1.67 per second (r = 167, P = 100,000,000 µs). At t = 0 a client
//! sends 101 requests: 100 are admitted, the last has to wait `⌈1·P / 167⌉` = 598,803 µs. One microsecond
//! earlier it is still rejected: the bucket then holds 598,802 × 167 = 99,999,934 of the 100,000,000
//! fractions that it takes.
//!
//! A rejection writes nothing. Implementations that write the time of a rejected request, but not the
//! refill up to then, starve a client that retries without pause; this one keeps the old instant, and the
//! refill goes on.

use super::bucket::BucketLevel;
use super::{Bucket, LimitStep, StateCell, stored_tick, tick_of, until};
use crate::lending::{self, EPOCH_US, EPOCHS, LeaseReport, LentTokens, StoredState};
use crate::time::StoreTime;

/// The same in the script.
pub(crate) const SCRIPT: &str = include_str!("token_bucket.lua");

/// One request of `cost` ≤ capacity at `now`. `StateCell`: the tokens at `instant`, whole in `major`
/// and the fraction in `minor`; none is a full bucket.
// Inlined, the embedded store updates a state in its slot without a `LimitStep` in memory.
#[inline(always)]
pub fn step(bucket: &Bucket, cell: Option<StateCell>, now: StoreTime, cost: u32) -> LimitStep {
    let tick = tick_of(now, bucket.tick_us);
    let (stored, last) = match cell {
        None => (bucket.full(), tick),
        Some(cell) => (tokens(bucket, cell), stored_tick(cell.instant, bucket.tick_us)),
    };
    let flow = bucket.flow(last, tick);
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
            until(flow.at + bucket.ticks_for(need - level), bucket.tick_us, now)
        },
        reset_after_us: until(flow.at + bucket.ticks_for(bucket.full() - left), bucket.tick_us, now),
    }
}

/// The stored tokens in fractions of this limit. Tokens above a lowered capacity are lost.
#[inline]
fn tokens(bucket: &Bucket, cell: StateCell) -> u64 {
    if cell.major >= bucket.capacity {
        return bucket.full();
    }
    let known = cell.grain == bucket.grain && cell.minor < bucket.period;
    let fraction = if known { cell.minor } else { 0 };
    u64::from(cell.major) * u64::from(bucket.period) + u64::from(fraction)
}

/// The bucket at `now` while some of it is lent: what is available is the level.
pub(crate) fn open(
    bucket: &Bucket,
    cell: Option<StateCell>,
    now: StoreTime,
    lent: &LentTokens,
) -> BucketLevel {
    let tick = tick_of(now, bucket.tick_us);
    let (stored, last) = match cell {
        None => (bucket.full(), tick),
        Some(cell) => (tokens(bucket, cell), stored_tick(cell.instant, bucket.tick_us)),
    };
    let at = bucket.flow(last, tick).at;
    BucketLevel { available: bucket.refill(stored as i64, last.min(at), at, lent), at }
}

/// The state of a bucket at this level.
pub(crate) fn close(bucket: &Bucket, level: BucketLevel) -> StateCell {
    bucket.cell(level.available.max(0) as u64, level.at)
}

/// Until full.
pub(crate) fn lifetime_us(bucket: &Bucket) -> u64 {
    bucket.span_us()
}

/// Fractions of a token.
pub(crate) fn unit(bucket: &Bucket) -> u64 {
    u64::from(bucket.period)
}

pub(crate) fn re_anchor(bucket: &Bucket, cell: StateCell, now: StoreTime) -> Option<StateCell> {
    let (last, tick) = (stored_tick(cell.instant, bucket.tick_us), tick_of(now, bucket.tick_us));
    let nothing = LentTokens::default();
    bucket.flow(last, tick).jumped.then(|| close(bucket, open(bucket, Some(cell), now, &nothing)))
}

pub(crate) fn apply_reports(
    bucket: &Bucket,
    state: &mut StoredState,
    now: StoreTime,
    reports: &[LeaseReport],
) {
    if state.lent.total() == 0 && reports.is_empty() {
        state.lent.roll(now);
        return;
    }
    let mut level = open(bucket, state.cell, now, &state.lent);
    state.lent.roll(now);
    for report in reports {
        // Tokens of an older epoch count as spent: they have been refilled since.
        let Some(lent) = state.lent.of(report.epoch) else { continue };
        let returned = report.returned.min(*lent);
        *lent -= (*lent).min(report.spent.saturating_add(returned));
        let period = i64::from(bucket.period);
        let most = i64::from(bucket.capacity.saturating_sub(state.lent.total())) * period;
        let with_returned = level.available + i64::from(returned.min(bucket.capacity)) * period;
        level.available = level.available.max(most.min(with_returned));
    }
    state.cell = Some(close(bucket, level));
}

/// The epoch in which tokens are counted as lent.
pub(crate) fn epoch(_: &Bucket, now: StoreTime) -> u32 {
    lending::epoch_at(now)
}

/// Until the end of the epoch after this one.
pub(crate) fn credit_lifetime_us(_: &Bucket, now: StoreTime) -> u64 {
    u64::from(EPOCHS) * EPOCH_US - now.as_us() % EPOCH_US
}
