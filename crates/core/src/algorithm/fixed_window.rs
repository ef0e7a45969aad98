//! Fixed window, aligned to the clock.
//!
//! The time since the epoch is cut into windows of equal length; each admits `limit`, and a rejected
//! request is not counted. The cheapest to explain ("100 per calendar minute, UTC"), and the one whose
//! price is known: around a boundary a client can pass twice the limit within a moment. Where that
//! hurts, use a sliding window.
//!
//! Admit iff `count + c ≤ limit`; otherwise the wait is the rest of the window.
//!
//! A worked example, 5 per 10 s. At 00:00:07 five requests pass. A sixth is told to wait 3 s, for the
//! window began at 00:00:00 and not at the first request.

use super::{LimitStep, StateCell, Window, tick_of, until};

/// One request of `cost` ≤ limit at `now_us`. `StateCell`: the count in `major` of the window that began at
/// `instant_us`; none is an untouched window.
#[inline]
pub fn step(window: &Window, cell: Option<StateCell>, now_us: u64, cost: u32) -> LimitStep {
    let now = tick_of(now_us, window.tick_us);
    let (start, count, jumped) = view(window, cell, now);
    let admitted = u64::from(count) + u64::from(cost) <= u64::from(window.limit);
    let after = if admitted { count + cost } else { count };
    let end = until(start + window.span, window.tick_us, now_us);
    LimitStep {
        admitted,
        next: (admitted || jumped).then(|| StateCell {
            instant_us: start * window.tick_us,
            grain: 0,
            major: after,
            minor: 0,
        }),
        remaining: window.limit.saturating_sub(after),
        retry_after_us: if admitted { 0 } else { end },
        reset_after_us: if after == 0 { 0 } else { end },
    }
}

/// The state as it looks at `now_us`.
pub(crate) fn at(window: &Window, cell: Option<StateCell>, now_us: u64) -> StateCell {
    let now = tick_of(now_us, window.tick_us);
    let (start, count, _) = view(window, cell, now);
    StateCell { instant_us: start * window.tick_us, grain: 0, major: count, minor: 0 }
}

/// The start of the window, its count, and whether the clock went back so far that it has to be re-anchored.
#[inline]
fn view(window: &Window, cell: Option<StateCell>, now: u64) -> (u64, u32, bool) {
    let aligned = now - now % window.span;
    match cell {
        None => (aligned, 0, false),
        Some(cell) => {
            // Rounded down: every boundary is a whole tick, so a start on a finer clock stays in its window.
            let start = tick_of(cell.instant_us, window.tick_us);
            if start < aligned {
                (aligned, 0, false)
            } else if start <= now {
                // The same window, or one that a changed rule has swallowed.
                (aligned, cell.major, false)
            } else if start - now > window.span {
                (aligned, cell.major, true)
            } else {
                (start - start % window.span, cell.major, false)
            }
        }
    }
}
