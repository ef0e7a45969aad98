//! By which times a window or a log was charged, compared with the true time.
//!
//! Windows count by the time of the calls: the server's clock, as nodes correct it. After a step of that clock it may be off. As long
//! as no call is behind another by more than a window, each window of that time is counted once, and a request counts in one
//! that its time can have been in. After that the counts are moved to the present, and windows are counted again.
//!
//! A store that loses data forgets what windows have counted: that much may be admitted in them again.

use super::bound::WindowBound;
use tollgate_core::algorithm::Window;
use tollgate_core::lending::StoredState;
use tollgate_core::limit::Meter;
use tollgate_core::time::StoreTime;

/// The times of the calls that have charged one state, and what the store has lost of its counts.
#[derive(Clone, Debug, Default)]
pub struct ChargeClock {
    /// By how much the time was off, at least and at most.
    off_us: Option<(i64, i64)>,
    last_call: Option<WindowCall>,
    newest: StoreTime,
    jump: Option<ClockJump>,
    lost_counts: Vec<LostCount>,
    lost_entries: Vec<LostEntries>,
}

/// What a loss allows beyond the limit of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CountAllowance {
    /// The number of the window,
    pub(super) number: u64,
    /// from when on it is allowed,
    pub(super) from_us: u64,
    /// and how much.
    pub(super) tokens: i64,
}

#[derive(Clone, Copy, Debug)]
struct WindowCall {
    meter: Meter,
    at_us: u64,
}

/// A call that was so far behind that the counts were moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockJump {
    /// When it was served.
    pub at_us: u64,
    /// How far behind the latest call it was.
    pub behind_us: u64,
}

/// How much more a window had counted than what the store has after a loss; below nothing if less, because tokens were returned.
#[derive(Clone, Copy, Debug)]
struct LostCount {
    /// When the window begins, after the start of the run.
    begins_us: i64,
    /// When the first call after the loss was served.
    next_call_us: Option<u64>,
    tokens: i64,
    /// Calls behind the others may count anew in the window before.
    reopens_window_before: bool,
}

/// What a log has lost.
#[derive(Clone, Copy, Debug)]
struct LostEntries {
    /// When the last call before the loss was served, and the first one after it.
    last_call_us: u64,
    next_call_us: Option<u64>,
    tokens: u32,
}

impl ChargeClock {
    /// Records a call that charges the window or log by the time `now`, which is off by `off_us`, served `at_us` after the start
    /// of the run.
    pub(super) fn record(&mut self, meter: &Meter, now: StoreTime, off_us: i64, at_us: u64) {
        let Some(window) = meter.window() else { return };
        if self.jump.is_some() {
            return;
        }
        if self.newest > now + window.span_us() {
            self.jump = Some(ClockJump { at_us, behind_us: self.newest.since(now) });
            return;
        }
        self.last_call = Some(WindowCall { meter: *meter, at_us });
        self.newest = self.newest.max(now);
        let (least_us, greatest_us) = self.off_us.unwrap_or((off_us, off_us));
        self.off_us = Some((least_us.min(off_us), greatest_us.max(off_us)));
        let counts = self.lost_counts.iter_mut().map(|lost| &mut lost.next_call_us);
        for next_call_us in counts.chain(self.lost_entries.iter_mut().map(|lost| &mut lost.next_call_us)) {
            next_call_us.get_or_insert(at_us);
        }
    }

    /// The store has lost the counts `lost`, and has `restored` now. `start` is when the run began.
    pub(super) fn forget_counts(
        &mut self,
        lost: Option<StoredState>,
        restored: Option<StoredState>,
        start: StoreTime,
    ) {
        let cell_of = |state: Option<StoredState>| state.and_then(|state| state.cell);
        let (Some(WindowCall { meter, .. }), Some(lost)) = (self.last_call, cell_of(lost)) else { return };
        let (Some(window), restored) = (meter.window(), cell_of(restored)) else { return };
        let before = lost.instant.shifted_by(-window.span_us().cast_signed());
        let count_in = |begins: StoreTime| match restored {
            Some(cell) if cell.instant == begins => cell.major,
            Some(cell) if cell.instant == begins + window.span_us() => cell.minor,
            _ => 0,
        };
        let is_counter = matches!(meter, Meter::SlidingWindowCounter(_));
        let known = [(lost.instant, lost.major), (before, lost.minor)];
        for (begins, count) in known.into_iter().take(if is_counter { 2 } else { 1 }) {
            self.lost_counts.push(LostCount {
                begins_us: begins.ahead_of(start),
                next_call_us: None,
                tokens: i64::from(count) - i64::from(count_in(begins)),
                reopens_window_before: !is_counter,
            });
        }
    }

    /// What a log has counted since `written_until_us`, by `used`, which tells it of a span until a time; the store has lost it.
    pub(super) fn forget_entries(
        &mut self,
        written_until_us: u64,
        used: impl FnOnce(&Window, StoreTime) -> u32,
    ) {
        let Some(WindowCall { meter, at_us }) = self.last_call else { return };
        // With the microsecond of the last call.
        let since_us = (at_us + 1).saturating_sub(written_until_us);
        let Some(window) = meter.window().filter(|_| since_us > 0) else { return };
        let (least_us, greatest_us) = self.off_us.unwrap_or_default();
        let span_us = window.span_us().min(since_us + greatest_us.abs_diff(least_us));
        let written_since = Window { limit: u32::MAX, span: span_us, tick_us: 1 };
        let tokens = used(&written_since, self.newest);
        self.lost_entries.push(LostEntries { last_call_us: at_us, next_call_us: None, tokens });
    }

    /// The limit by which it was last charged.
    pub(super) fn meter(&self) -> Option<&Meter> {
        self.last_call.as_ref().map(|call| &call.meter)
    }

    /// Whether any call came at another time than the true one, or anything was lost.
    pub(super) fn has_changed(&self) -> bool {
        let was_off = self.jump.is_some() || self.off_us.is_some_and(|off_us| off_us != (0, 0));
        was_off || !self.lost_counts.is_empty() || !self.lost_entries.is_empty()
    }

    /// The call that was so far behind that the counts were moved.
    pub fn jump(&self) -> Option<ClockJump> {
        self.jump
    }

    /// The earliest and the latest time that a call can have been charged by that was served between `from_us` and `until_us`, both
    /// later by the same number of windows than they were, so that none is negative.
    pub(super) fn span_us(&self, length_us: u64, from_us: u64, until_us: u64) -> (u64, u64) {
        let (least_us, greatest_us) = self.off_us.unwrap_or_default();
        let shift_us = self.shift_us(length_us);
        let shifted = |us: u64, off_us: i64| (us + shift_us).saturating_add_signed(off_us);
        (shifted(from_us, least_us), shifted(until_us, greatest_us))
    }

    fn shift_us(&self, length_us: u64) -> u64 {
        let (least_us, greatest_us) = self.off_us.unwrap_or_default();
        least_us.unsigned_abs().max(greatest_us.unsigned_abs()).next_multiple_of(length_us)
    }

    /// What losses allow beyond the limit of which windows, in the times of [`ChargeClock::span_us`]: no more than one limit each.
    pub(super) fn lost_counts(&self, window: WindowBound) -> impl Iterator<Item = CountAllowance> {
        let (limit, length_us) = (i64::from(window.limit), window.length_us);
        let (shift_us, (least_us, greatest_us)) = (self.shift_us(length_us), self.off_us.unwrap_or_default());
        let is_reopened = greatest_us > least_us;
        let losses = self.lost_counts.iter().filter_map(|lost| Some((lost, lost.next_call_us?)));
        losses.flat_map(move |(lost, next_call_us)| {
            let (from_us, _) = self.span_us(length_us, next_call_us, next_call_us);
            let number = shift_us.saturating_add_signed(lost.begins_us) / length_us;
            let own = CountAllowance { number, from_us, tokens: lost.tokens.min(limit) };
            let before = number.checked_sub(1).filter(|_| is_reopened && lost.reopens_window_before);
            [own].into_iter().chain(before.map(|number| CountAllowance { number, from_us, tokens: limit }))
        })
    }

    /// The spans that a log is allowed more tokens in, and how many: those that begin by the first time and end after the second
    /// one.
    pub(super) fn lost_entries(&self, window: WindowBound) -> impl Iterator<Item = (u64, u64, i64)> {
        self.lost_entries.iter().filter_map(move |lost| {
            let next_call_us = lost.next_call_us?;
            let (_, from_us) = self.span_us(window.length_us, lost.last_call_us, lost.last_call_us);
            let (until_us, _) = self.span_us(window.length_us, next_call_us, next_call_us);
            Some((from_us, until_us, i64::from(lost.tokens.min(window.limit))))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::algorithm::{Algorithm, StateCell};
    use tollgate_core::limit::{Limit, LimitSize};

    const START: StoreTime = StoreTime::from_us(1_000_000_000);
    /// 10 in 1,000 µs.
    const WINDOW: WindowBound = WindowBound { limit: 10, length_us: 1_000 };

    fn meter(algorithm: Algorithm) -> Meter {
        let size = LimitSize { capacity: Some(10), rate: None, window_us: Some(1_000) };
        *Limit::new("ten", algorithm, size).unwrap().meter()
    }

    /// Calls as (microseconds of the run, by how much their time is off).
    fn clock(algorithm: Algorithm, calls: &[(u64, i64)]) -> ChargeClock {
        let mut clock = ChargeClock::default();
        for (at_us, off_us) in calls {
            clock.record(&meter(algorithm), (START + *at_us).shifted_by(*off_us), *off_us, *at_us);
        }
        clock
    }

    /// A count of the window that begins at `begins_us`, and of the one before.
    fn counts(begins_us: u64, count: u32, before: u32) -> Option<StoredState> {
        let cell = StateCell { instant: START + begins_us, grain: 0, major: count, minor: before };
        Some(StoredState { cell: Some(cell), ..StoredState::default() })
    }

    #[test]
    fn a_span_is_as_long_as_calls_in_it_may_be_apart() {
        for (calls, has_changed, span_us, jump) in [
            (&[][..], false, (100, 900), None),
            (&[(10, 0), (20, 0)], false, (100, 900), None),
            (&[(10, 0), (20, 300)], true, (1_100, 2_200), None),
            (&[(10, -200), (20, 300)], true, (900, 2_200), None),
            (&[(10, -2_500)], true, (600, 1_400), None),
            (&[(10, 2_500)], true, (5_600, 6_400), None),
            // Behind the one before by a window, and by more.
            (&[(10, 1_000), (10, 0)], true, (1_100, 2_900), None),
            (&[(10, 1_001), (10, 0), (20, 5_000)], true, (3_101, 3_901), Some((10, 1_001))),
        ] {
            let clock = clock(Algorithm::FixedWindow, calls);
            assert_eq!(clock.has_changed(), has_changed, "{calls:?}");
            assert_eq!(clock.span_us(1_000, 100, 900), span_us, "{calls:?}");
            assert_eq!(clock.jump().map(|jump| (jump.at_us, jump.behind_us)), jump, "{calls:?}");
        }
    }

    #[test]
    fn a_loss_allows_the_tokens_that_the_store_has_forgotten() {
        use Algorithm::{FixedWindow, SlidingWindowCounter};
        for (algorithm, calls, lost, restored, allowed) in [
            (FixedWindow, &[(2_500, 0)][..], counts(2_000, 7, 0), None, &[(2, 7)][..]),
            (FixedWindow, &[(2_500, 0)], counts(2_000, 7, 0), counts(2_000, 3, 0), &[(2, 4)]),
            (FixedWindow, &[(2_500, 0)], counts(2_000, 7, 0), counts(1_000, 3, 0), &[(2, 7)]),
            // Tokens were returned before the loss.
            (FixedWindow, &[(2_500, 0)], counts(2_000, 7, 0), counts(2_000, 9, 0), &[(2, -2)]),
            (FixedWindow, &[(2_500, 0)], counts(2_000, 70, 0), None, &[(2, 10)]),
            (FixedWindow, &[(2_500, 0)], None, None, &[]),
            (SlidingWindowCounter, &[(2_500, 0)], counts(2_000, 7, 5), None, &[(2, 7), (1, 5)]),
            (
                SlidingWindowCounter,
                &[(2_500, 0)],
                counts(2_000, 7, 5),
                counts(2_000, 3, 5),
                &[(2, 4), (1, 0)],
            ),
            (
                SlidingWindowCounter,
                &[(2_500, 0)],
                counts(2_000, 7, 5),
                counts(1_000, 3, 9),
                &[(2, 7), (1, 2)],
            ),
            // The numbers are those of the times that it is judged by, and a call may have been in the window before.
            (FixedWindow, &[(2_400, 0), (2_500, 100)], counts(2_000, 7, 0), None, &[(3, 7), (2, 10)]),
        ] {
            let mut clock = clock(algorithm, calls);
            clock.forget_counts(lost, restored, START);
            assert_eq!(clock.lost_counts(WINDOW).count(), 0, "no call came after it");
            clock.record(&meter(algorithm), START + 2_600, 0, 2_600);
            let found: Vec<(u64, i64)> =
                clock.lost_counts(WINDOW).map(|allowed| (allowed.number, allowed.tokens)).collect();
            assert_eq!(found, allowed, "{algorithm:?} {calls:?} {lost:?} {restored:?}");
            let (from_us, _) = clock.span_us(WINDOW.length_us, 2_600, 2_600);
            assert!(clock.lost_counts(WINDOW).all(|allowed| allowed.from_us == from_us));
        }
    }

    #[test]
    fn a_loss_allows_the_entries_that_a_log_has_written_since() {
        for (written_until_us, span_us) in
            [(0, Some(1_000)), (2_000, Some(501)), (2_500, Some(1)), (2_501, None)]
        {
            let mut clock = clock(Algorithm::SlidingWindowLog, &[(2_500, 0)]);
            let mut asked = None;
            clock.forget_entries(written_until_us, |window, now| {
                asked = Some((window.span_us(), now.ahead_of(START)));
                6
            });
            assert_eq!(asked, span_us.map(|us| (us, 2_500)), "{written_until_us}");
            assert_eq!(clock.lost_entries(WINDOW).count(), 0, "no call came after it");
            clock.record(&meter(Algorithm::SlidingWindowLog), START + 2_600, 0, 2_600);
            let allowed: Vec<(u64, u64, i64)> = clock.lost_entries(WINDOW).collect();
            let expected: Vec<(u64, u64, i64)> = span_us.map(|_| (2_500, 2_600, 6)).into_iter().collect();
            assert_eq!(allowed, expected, "{written_until_us}");
        }
    }
}
