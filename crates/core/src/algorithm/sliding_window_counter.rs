//! Sliding window counter: the previous and the current window, weighted.
//!
//! With p admitted in the previous window, q in the current one, e ticks into a window of W, the estimate
//! of the count in the last W ticks is `p·(W − e)/W + q`, which assumes that the requests of the previous
//! window came evenly. It takes two counts a key, has no jump at the boundary, and an error of a few per cent at most.
//!
//! Multiplied out, so that nothing is rounded: admit iff `p·(W − e) + (q + c)·W ≤ limit·W`. With
//! `h = limit − c − q`, the request would be admitted
//! - in this window, when h ≥ 0: once enough of p has faded, at `e = ⌈W·(p − h)/p⌉`;
//! - else only in the next, where q is the one that fades: after `(W − e) + ⌈W·(q + c − limit)/q⌉`.
//!
//! A wait until the end of the window, as is often published, is wrong in nine of ten cases.
//!
//! A worked example, 100 per 60 s. 80 requests were admitted in the last minute, 50 in this one, 15 s in: the
//! estimate is 80 × 45/60 + 50 = 110. A request of cost 1 has h = 49 and is admitted at
//! e = ⌈60 × 31/80⌉ = 23.25 s: the wait is 8.25 s.

use super::window::WindowCounts;
pub(crate) use super::window::{credit_lifetime_us, epoch};
use super::{LimitStep, StateCell, Window, tick_of, until};
use crate::lending::{LeaseReport, StoredState};
use crate::time::StoreTime;

/// The same in the script.
pub(crate) const SCRIPT: &str = include_str!("sliding_window_counter.lua");

/// One request of `cost` ≤ limit at `now`. `StateCell`: the counts of the window that began at
/// `instant` (`major`) and of the one before (`minor`); none is two unused windows.
#[inline]
pub fn step(window: &Window, cell: Option<StateCell>, now: StoreTime, cost: u32) -> LimitStep {
    let counts = open(window, cell, now);
    // If the clock is a little behind the state, it stands still at the start of the state's window.
    let elapsed = tick_of(now, window.tick_us).saturating_sub(counts.start);
    let (limit, span, cost) = (u64::from(window.limit), window.span, u64::from(cost));
    // Under a lowered limit a window was at most full: no product outgrows the bound of the new limit. What is kept stays
    // as it is, for limits with other numbers on the same key (an override) that count it in full.
    let (before, count) = (u64::from(counts.before).min(limit), u64::from(counts.count).min(limit));

    let faded = before * (span - elapsed);
    let admitted = faded + (count + cost) * span <= limit * span;
    let after = if admitted { count + cost } else { count };
    let wait = if admitted {
        0
    } else if count + cost <= limit {
        let room = limit - cost - count;
        (span * (before - room)).div_ceil(before) - elapsed
    } else {
        (span - elapsed) + (span * (count + cost - limit)).div_ceil(count)
    };
    let fade_out = match (after, before) {
        (0, 0) => 0,
        (0, _) => span - elapsed,
        _ => 2 * span - elapsed,
    };
    let at = counts.start + elapsed;
    let kept = if admitted { counts.count + cost as u32 } else { counts.count };
    LimitStep {
        admitted,
        next: (admitted || counts.jumped).then(|| WindowCounts { count: kept, ..counts }.cell(window)),
        remaining: ((limit * span).saturating_sub(faded + after * span) / span) as u32,
        retry_after_us: if admitted { 0 } else { until(at + wait, window.tick_us, now) },
        reset_after_us: if fade_out == 0 { 0 } else { until(at + fade_out, window.tick_us, now) },
    }
}

/// The window at `now`, its count and that of the one before.
#[inline]
fn open(window: &Window, cell: Option<StateCell>, now: StoreTime) -> WindowCounts {
    let tick = tick_of(now, window.tick_us);
    let aligned = tick - tick % window.span;
    let fresh = WindowCounts { start: aligned, count: 0, before: 0, jumped: false };
    let Some(cell) = cell else { return fresh };
    // Rounded down to a window: a start of windows of another span, or on a finer clock, lies within one.
    let start = tick_of(cell.instant, window.tick_us);
    let start = start - start % window.span;
    if start + window.span < aligned {
        fresh
    } else if start < aligned {
        WindowCounts { before: cell.major, ..fresh }
    } else if start <= tick {
        WindowCounts { count: cell.major, before: cell.minor, ..fresh }
    } else if start - tick > window.span {
        WindowCounts { count: cell.major, before: cell.minor, jumped: true, ..fresh }
    } else {
        WindowCounts { start, count: cell.major, before: cell.minor, ..fresh }
    }
}

/// Two windows: the current one fades in the next.
pub(crate) fn lifetime_us(window: &Window) -> u64 {
    2 * window.span_us()
}

/// Parts of a token, because the weighted count of the previous window is not a whole number.
pub(crate) fn unit(window: &Window) -> u64 {
    window.span
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
