//! For how much time a bucket was refilled, compared with the time that has passed.
//!
//! A bucket is refilled by the time of the calls that charge it: the server's clock, as nodes correct it. As long as that clock
//! is right, it is the true time. After a step it may gain on the true time or fall behind, and a bucket whose state lies
//! further ahead than the bucket takes to fill is moved back to the present, after which the same time refills it again.
//! A [`RefillClock`] follows one state through all of that, call by call, so that a run with clock steps is judged by what each
//! bucket was refilled for and not by the worst that could have happened to any of them.

use tollgate_core::algorithm::Bucket;
use tollgate_core::time::StoreTime;

/// The gain of one state: the time that it was refilled for, less the time that has passed since its first call.
#[derive(Clone, Debug, Default)]
pub struct RefillClock {
    changes: Vec<GainChange>,
    gain_us: i64,
    /// When the last call was served.
    last_call_us: Option<u64>,
    /// The time that the state was refilled to; none if the store has lost the state.
    refilled_to: Option<StoreTime>,
}

/// A call after which the gain is another one.
#[derive(Clone, Copy, Debug)]
struct GainChange {
    /// When the call before it was served.
    since_us: u64,
    at_us: u64,
    gain_us: i64,
}

impl RefillClock {
    /// Records a call that charges `bucket` by the time `now`, served `at_us` after the start of the run.
    pub(super) fn record(&mut self, bucket: &Bucket, now: StoreTime, at_us: u64) {
        let ticks = |time: StoreTime| time.as_us() / bucket.tick_us;
        let refilled_to = self.refilled_to.unwrap_or(now);
        let refilled_us = now.ahead_of(refilled_to).max(0);
        let is_moved_back = ticks(refilled_to).saturating_sub(ticks(now)) > bucket.span;
        self.refilled_to = Some(if is_moved_back { now } else { now.max(refilled_to) });
        let since_us = self.last_call_us.replace(at_us).unwrap_or(at_us);
        self.gain_us += refilled_us - at_us.saturating_sub(since_us).cast_signed();
        if self.gain_us != self.changes.last().map_or(0, |change| change.gain_us) {
            self.changes.push(GainChange { since_us, at_us, gain_us: self.gain_us });
        }
    }

    /// The store has lost the state: the next call finds a fresh one, or one from before.
    pub(super) fn forget_state(&mut self) {
        self.refilled_to = None;
    }

    /// Whether the state was ever refilled for another time than the one that has passed.
    pub(super) fn has_changed(&self) -> bool {
        !self.changes.is_empty()
    }

    /// The gain of a span that begins at `us`. Between two calls the refill of the second may belong to either side: the one
    /// that leaves more to the span counts.
    pub(super) fn gain_from_us(&self, us: u64) -> i64 {
        let next = self.changes.partition_point(|change| change.at_us < us);
        let before_us = self.gain_before(next);
        match self.changes.get(next) {
            Some(change) if change.since_us < us => before_us.min(change.gain_us),
            _ => before_us,
        }
    }

    /// The gain of a span that ends at `us`.
    pub(super) fn gain_until_us(&self, us: u64) -> i64 {
        self.gain_before(self.changes.partition_point(|change| change.at_us <= us))
    }

    fn gain_before(&self, next: usize) -> i64 {
        next.checked_sub(1).map_or(0, |last| self.changes[last].gain_us)
    }

    /// The most that the state was refilled for beyond the time that passed, over all spans.
    pub fn greatest_gain_us(&self) -> u64 {
        let (mut least_us, mut greatest_us) = (0, 0);
        for change in &self.changes {
            least_us = change.gain_us.min(least_us);
            greatest_us = greatest_us.max(change.gain_us.abs_diff(least_us));
        }
        greatest_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::algorithm::Algorithm;
    use tollgate_core::limit::{Limit, LimitSize};
    use tollgate_core::rate::Rate;

    /// 10 tokens, 1,000 a second: it fills in 10 ms.
    fn bucket() -> Bucket {
        let size = LimitSize { capacity: Some(10), rate: Rate::per(1_000, 1_000_000), window_us: None };
        *Limit::new("fast", Algorithm::TokenBucket, size).unwrap().meter().bucket().unwrap()
    }

    /// Calls as (milliseconds of the run, milliseconds of the store's clock).
    fn clock(calls: &[(u64, u64)]) -> RefillClock {
        let mut clock = RefillClock::default();
        for (at_ms, now_ms) in calls {
            clock.record(&bucket(), StoreTime::from_us(now_ms * 1_000), at_ms * 1_000);
        }
        clock
    }

    #[test]
    fn the_gain_is_what_was_refilled_beyond_the_time_that_passed() {
        for (calls, gain_ms) in [
            // A clock that is right, also if it is right about another time.
            (&[(1, 1), (5, 5), (90, 90)][..], 0),
            (&[(1, 501), (5, 505), (90, 590)], 0),
            // Ahead by 60 ms between two calls.
            (&[(1, 1), (5, 65), (90, 150)], 60),
            // Set back by less than the bucket takes to fill: nothing is refilled until the clock has caught up. The 10 ms come
            // back, of which 5 had passed.
            (&[(1, 1), (20, 20), (25, 15), (40, 40)], 5),
            // By more: the state is moved to the present, and the time passes once more.
            (&[(1, 1), (20, 60), (25, 25), (30, 30)], 40),
            // Two calls that disagree by more than the bucket takes to fill, in turns.
            (&[(100, 100), (101, 121), (102, 102), (103, 123), (104, 104), (105, 125)], 3 * 20 - 2),
            // By less.
            (&[(100, 100), (101, 106), (102, 102), (103, 108), (104, 104), (105, 110)], 5),
        ] {
            assert_eq!(clock(calls).greatest_gain_us(), gain_ms * 1_000, "{calls:?}");
        }
    }

    #[test]
    fn a_gain_belongs_to_the_spans_that_contain_its_call() {
        let clock = clock(&[(10, 10), (20, 20), (30, 90), (40, 100)]);
        for (from_ms, until_ms, gain_ms) in
            [(0, 25, 0), (0, 30, 60), (15, 30, 60), (21, 50, 60), (30, 50, 60), (31, 50, 0)]
        {
            let gain_us = clock.gain_until_us(until_ms * 1_000) - clock.gain_from_us(from_ms * 1_000);
            assert_eq!(gain_us, gain_ms * 1_000, "from {from_ms} to {until_ms} ms");
        }
    }

    #[test]
    fn a_state_that_was_lost_is_refilled_from_its_next_call_on() {
        let mut clock = clock(&[(1, 1), (2, 62)]);
        clock.forget_state();
        clock.record(&bucket(), StoreTime::from_us(500_000), 3_000);
        assert_eq!(clock.gain_until_us(3_000), 60_000 - 1_000);
    }
}
