//! Leaky bucket as a policer.
//!
//! The mirror of the token bucket: a request of cost c pours c into a bucket that leaks `amount` (r)
//! every `period` ticks (P); what would rise above `capacity` (B) is rejected at once. Where the token
//! bucket keeps what is left, this keeps what was used: after a rule change the *level* stays, so a
//! raised capacity is usable at once, and a lowered one finds the bucket as full as it can be.
//!
//! `level' = max(0, level − Δ·r)` in fractions of 1/P; admit iff `level' + c·P ≤ B·P`, otherwise the wait
//! is `⌈(level' + c·P − B·P) / r⌉` ticks. With `tokens = B·P − level` this is the token bucket, step by
//! step; a test holds the two against each other.
//!
//! A worked example, capacity 3 and a leak of 2 per second (r = 1, P = 500,000 µs). Three requests at
//! t = 0 fill it. A fourth is told to wait 500,000 µs; at 0.4 s the level is 2.2 and a request is told
//! to wait the 100,000 µs that are left of that.

use super::{Bucket, Cell, Step, stored_tick, tick_of, until};
use crate::lending::{Lent, Opened};

/// One request of `cost` ≤ capacity at `now_us`. `Cell`: the level at `instant_us`, whole in `major` and
/// the fraction in `minor`; none is an empty bucket.
#[inline]
pub fn step(bucket: &Bucket, cell: Option<Cell>, now_us: u64, cost: u32) -> Step {
    let now = tick_of(now_us, bucket.tick_us);
    let (stored, last) = match cell {
        None => (0, now),
        Some(cell) => (level_of(bucket, cell), stored_tick(cell.instant_us, bucket.tick_us)),
    };
    let flow = bucket.flow(last, now);
    let level = stored.saturating_sub(flow.fractions);
    let poured = level + u64::from(cost) * u64::from(bucket.period);
    let admitted = poured <= bucket.full();
    let after = if admitted { poured } else { level };
    Step {
        admitted,
        next: (admitted || flow.jumped).then(|| bucket.cell(after, flow.at)),
        remaining: ((bucket.full() - after) / u64::from(bucket.period)) as u32,
        retry_after_us: if admitted {
            0
        } else {
            until(flow.at + bucket.ticks_for(poured - bucket.full()), bucket.tick_us, now_us)
        },
        reset_after_us: until(flow.at + bucket.ticks_for(after), bucket.tick_us, now_us),
    }
}

/// The stored level in fractions of this limit; a fraction of another unit counts as a whole.
#[inline]
fn level_of(bucket: &Bucket, cell: Cell) -> u64 {
    if cell.major >= bucket.capacity {
        return bucket.full();
    }
    let whole = u64::from(cell.major) * u64::from(bucket.period);
    match cell.minor {
        0 => whole,
        fraction if cell.grain == bucket.grain && fraction < bucket.period => whole + u64::from(fraction),
        _ => whole + u64::from(bucket.period),
    }
}

/// The bucket at `now_us` while some of it is lent: what is available is the room above the level.
pub(crate) fn open(bucket: &Bucket, cell: Option<Cell>, now_us: u64, lent: &Lent) -> Opened {
    let now = tick_of(now_us, bucket.tick_us);
    let (level, last) = match cell {
        None => (0, now),
        Some(cell) => (level_of(bucket, cell), stored_tick(cell.instant_us, bucket.tick_us)),
    };
    bucket.opened(bucket.full() as i64 - level as i64, last, now, lent)
}

/// The state of a bucket that is left as `opened` says.
pub(crate) fn close(bucket: &Bucket, opened: Opened) -> Cell {
    let level = bucket.full() as i64 - opened.available;
    bucket.cell(level.max(0) as u64, opened.at)
}
