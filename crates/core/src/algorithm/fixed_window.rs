//! Fixed window, aligned to the clock.
//!
//! The time since the Unix epoch is divided into windows of equal length; each admits `limit`, and a
//! rejected request is not counted. It is the easiest to explain ("100 per calendar minute, UTC"), but around
//! a boundary twice the limit can be admitted within a moment. Where that matters, use a sliding window.
//!
//! Admit iff `count + c ≤ limit`; otherwise the wait is the rest of the window.
//!
//! A worked example, 5 per 10 s. At 00:00:07 five requests are admitted. A sixth has to wait 3 s, because
//! the window began at 00:00:00 and not at the first request.

use super::window::WindowCounts;
pub(crate) use super::window::{credit_lifetime_us, epoch};
use super::{LimitStep, StateCell, Window, tick_of, until};
use crate::lending::{LeaseReport, StoredState};
use crate::time::StoreTime;

/// The same in the script.
pub(crate) const SCRIPT: &str = include_str!("fixed_window.lua");

/// One request of `cost` ≤ limit at `now`. `StateCell`: the count in `major` of the window that began at
/// `instant`; none is an unused window.
#[inline]
pub fn step(window: &Window, cell: Option<StateCell>, now: StoreTime, cost: u32) -> LimitStep {
    let counts = open(window, cell, now);
    let admitted = u64::from(counts.count) + u64::from(cost) <= u64::from(window.limit);
    let after = if admitted { counts.count + cost } else { counts.count };
    let end = until(counts.start + window.span, window.tick_us, now);
    LimitStep {
        admitted,
        next: (admitted || counts.jumped).then(|| WindowCounts { count: after, ..counts }.cell(window)),
        remaining: window.limit.saturating_sub(after),
        retry_after_us: if admitted { 0 } else { end },
        reset_after_us: if after == 0 { 0 } else { end },
    }
}

/// The window at `now` and its count.
#[inline]
fn open(window: &Window, cell: Option<StateCell>, now: StoreTime) -> WindowCounts {
    let tick = tick_of(now, window.tick_us);
    let aligned = tick - tick % window.span;
    let fresh = WindowCounts { start: aligned, count: 0, before: 0, jumped: false };
    let Some(cell) = cell else { return fresh };
    // Rounded down: every boundary is a whole tick, so a start on a finer clock stays in its window.
    let start = tick_of(cell.instant, window.tick_us);
    if start < aligned {
        fresh
    } else if start <= tick {
        // The same window, or one that the window of an edited rule contains.
        WindowCounts { count: cell.major, ..fresh }
    } else if start - tick > window.span {
        WindowCounts { count: cell.major, jumped: true, ..fresh }
    } else {
        WindowCounts { start: start - start % window.span, count: cell.major, ..fresh }
    }
}

/// The window.
pub(crate) fn lifetime_us(window: &Window) -> u64 {
    window.span_us()
}

/// Whole tokens.
pub(crate) fn unit(_: &Window) -> u64 {
    1
}

pub(crate) fn re_anchor(window: &Window, cell: StateCell, now: StoreTime) -> Option<StateCell> {
    open(window, Some(cell), now).re_anchored(window)
}

pub(crate) fn apply_reports(
    window: &Window,
    state: &mut StoredState,
    now: StoreTime,
    reports: &[LeaseReport],
) {
    open(window, state.cell, now).apply_reports(window, state, reports);
}
