//! By which times a window or a log was charged, compared with the true time.
//!
//! Windows count by the time of the calls: the server's clock, as nodes correct it. After a step of that clock it may be off. As long
//! as no call is behind another by more than a window, each window of that time is counted once, and a request counts in one
//! that its time can have been in. After that the counts are moved to the present, and windows are counted again.

use tollgate_core::time::StoreTime;

/// The times of the calls that have charged one state.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChargeClock {
    /// By how much the time was off, at least and at most.
    off_us: Option<(i64, i64)>,
    newest: StoreTime,
    jumped_us: Option<u64>,
}

impl ChargeClock {
    /// Records a call by the time `now`, which is off by `off_us`, served `at_us` after the start of the run.
    pub(super) fn record(&mut self, length_us: u64, now: StoreTime, off_us: i64, at_us: u64) {
        if self.jumped_us.is_some() {
            return;
        }
        if self.newest > now + length_us {
            self.jumped_us = Some(at_us);
            return;
        }
        self.newest = self.newest.max(now);
        let (least_us, greatest_us) = self.off_us.unwrap_or((off_us, off_us));
        self.off_us = Some((least_us.min(off_us), greatest_us.max(off_us)));
    }

    /// Whether any call came at another time than the true one.
    pub(super) fn was_off(&self) -> bool {
        self.jumped_us.is_some() || self.off_us.is_some_and(|off_us| off_us != (0, 0))
    }

    /// When a call was so far behind that the counts were moved.
    pub fn jumped_us(&self) -> Option<u64> {
        self.jumped_us
    }

    /// The earliest and the latest time that a call can have been charged by that was served between `from_us` and `until_us`, both
    /// later by the same number of windows than they were, so that none is negative.
    pub(super) fn span_us(&self, length_us: u64, from_us: u64, until_us: u64) -> (u64, u64) {
        let (least_us, greatest_us) = self.off_us.unwrap_or_default();
        let shift_us = least_us.unsigned_abs().max(greatest_us.unsigned_abs()).next_multiple_of(length_us);
        let shifted = |us: u64, off_us: i64| (us + shift_us).saturating_add_signed(off_us);
        (shifted(from_us, least_us), shifted(until_us, greatest_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: StoreTime = StoreTime::from_us(1_000_000_000);

    /// Calls as (microseconds of the run, by how much their time is off).
    fn clock(calls: &[(u64, i64)]) -> ChargeClock {
        let mut clock = ChargeClock::default();
        for (at_us, off_us) in calls {
            clock.record(1_000, (START + *at_us).shifted_by(*off_us), *off_us, *at_us);
        }
        clock
    }

    #[test]
    fn a_span_is_as_long_as_calls_in_it_may_be_apart() {
        for (calls, was_off, span_us, jumped_us) in [
            (&[][..], false, (100, 900), None),
            (&[(10, 0), (20, 0)], false, (100, 900), None),
            (&[(10, 0), (20, 300)], true, (1_100, 2_200), None),
            (&[(10, -200), (20, 300)], true, (900, 2_200), None),
            (&[(10, -2_500)], true, (600, 1_400), None),
            (&[(10, 2_500)], true, (5_600, 6_400), None),
            // Behind the one before by a window, and by more.
            (&[(10, 1_000), (10, 0)], true, (1_100, 2_900), None),
            (&[(10, 1_001), (10, 0), (20, 5_000)], true, (3_101, 3_901), Some(10)),
        ] {
            let clock = clock(calls);
            assert_eq!(clock.was_off(), was_off, "{calls:?}");
            assert_eq!(clock.span_us(1_000, 100, 900), span_us, "{calls:?}");
            assert_eq!(clock.jumped_us(), jumped_us, "{calls:?}");
        }
    }
}
