//! GCRA, the generic cell rate algorithm: the same limit from one timestamp.
//!
//! The state is the *theoretical arrival time* (TAT): the instant at which the bucket would have drained.
//! Each admitted request moves it on by c emission intervals of P/r ticks; a request passes if the TAT
//! would then lie at most B intervals ahead. With B = 1 (`burst: 0`) requests are strictly spaced.
//!
//! P/r is rarely a whole number of ticks, so the TAT is a tick and a remainder in 1/r tick. The
//! equivalence to the buckets is exact: what is owed, `(TAT − now)·r`, counted in 1/P token, *is* the leaky
//! bucket's level, and `B·P − owed` is the token bucket's. A test walks all three in step.
//!
//! One timestamp also means that a rule change keeps a *time*: a client who was booked until 12:00:03 is
//! booked until then under the new rate too. A TAT up to one capacity further ahead than can be booked (a
//! lowered capacity, a clock that stepped back) is waited for: drawing it in would forgive the step, and
//! a clock that trembles would forgive again and again. Beyond that it is drawn in to one capacity, and
//! written, also by a rejection.
//!
//! A worked example, 10 per second with burst 0 (B = 1, r = 1, P = 100,000 µs). A request at t = 0 sets
//! the TAT to 100,000. One at 30,000 is told to wait 70,000 µs; at 99,999 it is still rejected, at
//! 100,000 it passes.

use super::{Bucket, Cell, Step, stored_tick, tick_of, until};
use crate::lending::{Lent, Opened, refill};

/// One request of `cost` ≤ capacity at `now_us`. `Cell`: the TAT, its tick in `instant_us` and the
/// remainder in `minor`; none is a TAT in the past.
#[inline]
pub fn step(bucket: &Bucket, cell: Option<Cell>, now_us: u64, cost: u32) -> Step {
    let now = tick_of(now_us, bucket.tick_us);
    let amount = u64::from(bucket.amount);
    let (owed, drawn_in) = match cell {
        None => (0, false),
        Some(cell) => owed(bucket, cell, now),
    };
    let booked = owed + u64::from(cost) * u64::from(bucket.period);
    let admitted = booked <= bucket.full();
    let after = if admitted { booked } else { owed };
    Step {
        admitted,
        next: (admitted || drawn_in).then(|| Cell {
            instant_us: (now + after / amount) * bucket.tick_us,
            grain: bucket.grain,
            major: 0,
            minor: (after % amount) as u32,
        }),
        remaining: (bucket.full().saturating_sub(after) / u64::from(bucket.period)) as u32,
        retry_after_us: if admitted {
            0
        } else {
            until(now + bucket.ticks_for(booked - bucket.full()), bucket.tick_us, now_us)
        },
        reset_after_us: until(now + bucket.ticks_for(after), bucket.tick_us, now_us),
    }
}

/// What is owed at `now`, in 1/P token, and whether the TAT had to be drawn in.
#[inline]
fn owed(bucket: &Bucket, cell: Cell, now: u64) -> (u64, bool) {
    let tat = stored_tick(cell.instant_us, bucket.tick_us);
    if tat < now {
        return (0, false);
    }
    let ahead = tat - now;
    if ahead > 2 * bucket.span {
        return (bucket.full(), true);
    }
    let remainder = match cell.minor {
        0 => 0,
        minor if cell.grain == bucket.grain && minor < bucket.amount => u64::from(minor),
        // A remainder in another unit counts as a whole tick.
        _ => u64::from(bucket.amount),
    };
    (ahead * u64::from(bucket.amount) + remainder, false)
}

/// The bucket at `now_us` while some of it is lent: what is available is what may still be booked.
pub(crate) fn open(bucket: &Bucket, cell: Option<Cell>, now_us: u64, lent: &Lent) -> Opened {
    let now = tick_of(now_us, bucket.tick_us);
    let full = bucket.full() as i64;
    let Some(cell) = cell else { return Opened { available: full, at: now } };
    let (at_now, drawn_in) = owed(bucket, cell, now);
    if drawn_in {
        return Opened { available: 0, at: now };
    }
    // The state does not tell when it was written. It need not: what is owed falls steadily, so that the
    // first instant at which less is lent is early enough to begin with what the lent lets be.
    let [(first_end_us, _), _] = lent.ends();
    let first_end = first_end_us / bucket.tick_us;
    let let_be = refill(bucket, lent, full, first_end.min(now), now);
    Opened { available: let_be.min(full - at_now as i64), at: now }
}

/// The state of a bucket that is left as `opened` says.
pub(crate) fn close(bucket: &Bucket, opened: Opened) -> Cell {
    let owed = (bucket.full() as i64 - opened.available).max(0) as u64;
    let amount = u64::from(bucket.amount);
    Cell {
        instant_us: (opened.at + owed / amount) * bucket.tick_us,
        grain: bucket.grain,
        major: 0,
        minor: (owed % amount) as u32,
    }
}
