//! Sliding window counter: the previous and the current window, weighted.
//!
//! With p admitted in the previous window, q in the current one, e ticks into a window of W, the estimate
//! of what the last W ticks held is `p·(W − e)/W + q`: it supposes that the previous window's requests
//! came evenly. Two counts a key, no jump at the boundary, and an error of a few per cent at most.
//!
//! Multiplied out, so that nothing is rounded: admit iff `p·(W − e) + (q + c)·W ≤ limit·W`. With
//! `h = limit − c − q`, the request would pass
//! - in this window, when h ≥ 0: once enough of p has faded, at `e = ⌈W·(p − h)/p⌉`;
//! - else only in the next, where q is the one that fades: after `(W − e) + ⌈W·(q + c − limit)/q⌉`.
//!
//! Answering "at the end of the window" instead, as is often published, is wrong in nine of ten cases.
//!
//! A worked example, 100 per 60 s. 80 requests passed in the last minute, 50 in this one, 15 s in: the
//! estimate is 80 × 45/60 + 50 = 110. A request of cost 1 has h = 49 and may pass at
//! e = ⌈60 × 31/80⌉ = 23.25 s: the wait is 8.25 s.

use super::{LimitStep, StateCell, Window, tick_of, until};

/// One request of `cost` ≤ limit at `now_us`. `StateCell`: the counts of the window that began at
/// `instant_us` (`major`) and of the one before (`minor`); none is two untouched windows.
#[inline]
pub fn step(window: &Window, cell: Option<StateCell>, now_us: u64, cost: u32) -> LimitStep {
    let now = tick_of(now_us, window.tick_us);
    let view = view(window, cell, now);
    let (limit, length, cost) = (u64::from(window.limit), window.span, u64::from(cost));
    // Under a lowered limit a window was at most full: no product outgrows the bound of the new limit. What is kept stays
    // as it is, for limits with other numbers on the same key (an override) that count it in full.
    let (previous, current) = (u64::from(view.previous).min(limit), u64::from(view.current).min(limit));

    let faded = previous * (length - view.elapsed);
    let admitted = faded + (current + cost) * length <= limit * length;
    let after = if admitted { current + cost } else { current };
    let wait = if admitted {
        0
    } else if current + cost <= limit {
        let room = limit - cost - current;
        (length * (previous - room)).div_ceil(previous) - view.elapsed
    } else {
        (length - view.elapsed) + (length * (current + cost - limit)).div_ceil(current)
    };
    let fade_out = match (after, previous) {
        (0, 0) => 0,
        (0, _) => length - view.elapsed,
        _ => 2 * length - view.elapsed,
    };
    let at = view.start + view.elapsed;
    LimitStep {
        admitted,
        next: (admitted || view.jumped).then(|| StateCell {
            instant_us: view.start * window.tick_us,
            grain: 0,
            major: if admitted { view.current + cost as u32 } else { view.current },
            minor: view.previous,
        }),
        remaining: ((limit * length).saturating_sub(faded + after * length) / length) as u32,
        retry_after_us: if admitted { 0 } else { until(at + wait, window.tick_us, now_us) },
        reset_after_us: if fade_out == 0 { 0 } else { until(at + fade_out, window.tick_us, now_us) },
    }
}

/// The counts as they look at one tick.
struct WindowCounts {
    start: u64,
    elapsed: u64,
    current: u32,
    previous: u32,
    jumped: bool,
}

#[inline]
fn view(window: &Window, cell: Option<StateCell>, now: u64) -> WindowCounts {
    let aligned = now - now % window.span;
    let fresh =
        WindowCounts { start: aligned, elapsed: now - aligned, current: 0, previous: 0, jumped: false };
    let Some(cell) = cell else { return fresh };
    // Rounded down to a window: a start of windows of another length, or on a finer clock, lies within one.
    let start = tick_of(cell.instant_us, window.tick_us);
    let start = start - start % window.span;
    if start + window.span < aligned {
        fresh
    } else if start < aligned {
        WindowCounts { previous: cell.major, ..fresh }
    } else if start <= now {
        WindowCounts { current: cell.major, previous: cell.minor, ..fresh }
    } else if start - now > window.span {
        WindowCounts { current: cell.major, previous: cell.minor, jumped: true, ..fresh }
    } else {
        // The clock is a little behind the state: it stands still at the start of the state's window.
        WindowCounts { start, elapsed: 0, current: cell.major, previous: cell.minor, jumped: false }
    }
}

/// The state as it looks at `now_us`.
pub(crate) fn at(window: &Window, cell: Option<StateCell>, now_us: u64) -> StateCell {
    let WindowCounts { start, current, previous, .. } = view(window, cell, tick_of(now_us, window.tick_us));
    StateCell { instant_us: start * window.tick_us, grain: 0, major: current, minor: previous }
}
