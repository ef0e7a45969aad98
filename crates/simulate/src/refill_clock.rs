//! For how much time a bucket was refilled, compared with the time that has passed.
//!
//! A bucket is refilled by the time of the calls that charge it: the server's clock, as nodes correct it. As long as that clock
//! is right, it is the true time. After a step it may gain on the true time or fall behind, and a bucket whose state lies
//! further ahead than the bucket takes to fill is moved back to the present, after which the same time refills it again.
//! A [`RefillClock`] follows one state through all of that, call by call, so that a run with clock steps is judged by what each
//! bucket was refilled for and not by the worst that could have happened to any of them.
//!
//! A store that loses the state gives it other tokens: those that the first call after the loss finds. From the last call before
//! the loss until then nothing is refilled.

use super::bound::BucketBound;
use tollgate_core::algorithm::{Bucket, StateCell};
use tollgate_core::lending::{EPOCH_US, StoredState};
use tollgate_core::limit::Meter;
use tollgate_core::time::StoreTime;

/// The gain of one state: the time that it was refilled for, less the time that has passed since its first call.
#[derive(Clone, Debug, Default)]
pub struct RefillClock {
    changes: Vec<GainChange>,
    gain_us: i64,
    last_call: Option<BucketCall>,
    /// The time that the state was refilled to; none if the store has lost the state.
    refilled_to: Option<StoreTime>,
    /// What the store has lost, until the next call.
    lost: Option<TokensAtLoss>,
    losses: Vec<BucketLoss>,
}

#[derive(Clone, Copy, Debug)]
struct BucketCall {
    meter: Meter,
    now: StoreTime,
    at_us: u64,
}

/// A call after which the gain is another one.
#[derive(Clone, Copy, Debug)]
struct GainChange {
    /// When the call before it was served.
    since_us: u64,
    at_us: u64,
    gain_us: i64,
    /// The state was lost between the two.
    is_loss: bool,
}

/// A loss of the state.
#[derive(Clone, Copy, Debug)]
struct TokensAtLoss {
    /// What was left when the last call was served,
    left: u32,
    /// and lent.
    lent: u32,
    /// What the store has instead; none is a full bucket.
    restored: Option<StateCell>,
}

/// A loss of the state, or of what was known to be lent, with the calls around it.
#[derive(Clone, Copy, Debug)]
struct BucketLoss {
    /// When the last call before it was served, and the first one after it.
    last_call_us: u64,
    next_call_us: u64,
    /// What was left, and what the next call found; none if the state was not lost.
    tokens: Option<(u32, FoundTokens)>,
    /// What was lent, and may be spent after the loss.
    lent: u32,
}

/// What the first call after a loss finds.
#[derive(Clone, Copy, Debug)]
enum FoundTokens {
    Full,
    /// So many tokens, rounded up, which were not refilled for so long.
    Restored(u32, u64),
}

impl RefillClock {
    /// Records a call that charges the state by the time `now`, served `at_us` after the start of the run. `lent` tells how much of
    /// it is lent at a time.
    pub(super) fn record(
        &mut self,
        meter: &Meter,
        now: StoreTime,
        at_us: u64,
        mut lent: impl FnMut(&Meter, StoreTime) -> u32,
    ) {
        let Some(bucket) = meter.bucket() else { return };
        let refilled_to = self.refilled_to.unwrap_or(now);
        let refilled_us = now.ahead_of(refilled_to).max(0);
        let is_moved_back = ticks(bucket, refilled_to).saturating_sub(ticks(bucket, now)) > bucket.span;
        self.refilled_to = Some(if is_moved_back { now } else { now.max(refilled_to) });
        let last_call = self.last_call.replace(BucketCall { meter: *meter, now, at_us });
        let since_us = last_call.map_or(at_us, |call| call.at_us);
        let elapsed_us = at_us.saturating_sub(since_us);
        self.gain_us += refilled_us - elapsed_us.cast_signed();
        let lost = self.lost.take();
        if self.gain_us != self.gain_before(self.changes.len()) {
            let is_loss = lost.is_some();
            self.changes.push(GainChange { since_us, at_us, gain_us: self.gain_us, is_loss });
        }
        let (tokens, lent) = match (lost, last_call) {
            (Some(TokensAtLoss { left, lent, restored }), _) => {
                let found = restored.map_or(FoundTokens::Full, |cell| {
                    let rounded_up = cell.major.saturating_add(u32::from(cell.minor > 0));
                    FoundTokens::Restored(rounded_up, now.since(cell.instant))
                });
                (Some((left, found)), lent)
            }
            // A clock that gains ends epochs too early: what was lent in them is still in hand.
            (None, Some(last)) if epoch_of(last.now + elapsed_us) < epoch_of(now) => {
                let mut lent_at = |time| lent(&last.meter, time);
                (None, lent_at(last.now + elapsed_us).saturating_sub(lent_at(now)))
            }
            _ => (None, 0),
        };
        if tokens.is_some() || lent > 0 {
            self.losses.push(BucketLoss { last_call_us: since_us, next_call_us: at_us, tokens, lent });
        }
    }

    /// The store has lost the state, which was `lost`, and has `restored` now.
    pub(super) fn forget_state(&mut self, lost: Option<StoredState>, restored: Option<StoredState>) {
        self.refilled_to = None;
        let restored = restored.and_then(|state| state.cell);
        if let Some(tokens) = &mut self.lost {
            tokens.restored = restored;
        } else if let Some(BucketCall { meter, now, .. }) = self.last_call {
            let mut state = lost.unwrap_or_default();
            state.apply_reports(&meter, now, &[]);
            let (left, lent) = (state.available(&meter, now), state.lent.total());
            self.lost = Some(TokensAtLoss { left, lent, restored });
        }
    }

    /// Whether the state was ever refilled for another time than the one that has passed, or was lost.
    pub(super) fn has_changed(&self) -> bool {
        !self.changes.is_empty() || !self.losses.is_empty()
    }

    /// The gain of a span that begins at `us`. Between two calls the refill of the second may belong to either side: the one
    /// that leaves more to the span counts. Around a loss nothing is refilled.
    pub(super) fn gain_from_us(&self, us: u64) -> i64 {
        let next = self.changes.partition_point(|change| change.at_us < us);
        let before_us = self.gain_before(next);
        match self.changes.get(next) {
            Some(change) if change.since_us < us && change.is_loss => {
                before_us - (us - change.since_us).cast_signed()
            }
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

    /// What losses have added to the bucket until `us`: no more than one capacity each.
    pub(super) fn gained_until(&self, us: u64, bucket: &BucketBound) -> i64 {
        let losses = self.losses.iter().filter(|loss| loss.next_call_us <= us);
        losses.map(|loss| loss.gained(bucket)).sum()
    }

    /// What of it does not belong to a span that begins at `us`. The span begins with a full bucket at most, and with the credit
    /// that was lent at a loss, if that is not longer ago than `credit_us`.
    pub(super) fn gained_before(&self, us: u64, bucket: &BucketBound, credit_us: u64) -> i64 {
        let losses = self.losses.iter().filter(|loss| loss.last_call_us < us);
        let gained = losses.map(|loss| {
            let lent = if us > loss.last_call_us + credit_us { 0 } else { loss.lent.min(bucket.capacity) };
            loss.gained(bucket) - i64::from(lent)
        });
        gained.sum()
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

impl BucketLoss {
    /// How many tokens more the next call found than the last one left.
    fn gained(&self, bucket: &BucketBound) -> i64 {
        let Some((left, found)) = self.tokens else { return 0 };
        let found = match found {
            FoundTokens::Full => bucket.capacity,
            FoundTokens::Restored(tokens, us) => {
                let refilled = (u128::from(us) * u128::from(bucket.amount)).div_ceil(bucket.period_us.into());
                let all = u128::from(tokens) + refilled;
                u32::try_from(all).map_or(bucket.capacity, |all| all.min(bucket.capacity))
            }
        };
        i64::from(found) - i64::from(left)
    }
}

fn epoch_of(time: StoreTime) -> u64 {
    time.as_us() / EPOCH_US
}

fn ticks(bucket: &Bucket, time: StoreTime) -> u64 {
    time.as_us() / bucket.tick_us
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::algorithm::Algorithm;
    use tollgate_core::lending::LentTokens;
    use tollgate_core::limit::{Limit, LimitSize};
    use tollgate_core::rate::Rate;

    /// 10 tokens, 1,000 a second: it fills in 10 ms.
    fn bucket() -> Meter {
        let size = LimitSize { capacity: Some(10), rate: Rate::per(1_000, 1_000_000), window_us: None };
        *Limit::new("fast", Algorithm::TokenBucket, size).unwrap().meter()
    }

    const BOUND: BucketBound = BucketBound { capacity: 10, amount: 1, period_us: 1_000 };

    /// Calls as (milliseconds of the run, milliseconds of the store's clock).
    fn clock(calls: &[(u64, u64)]) -> RefillClock {
        let mut clock = RefillClock::default();
        for (at_ms, now_ms) in calls {
            clock.record(&bucket(), StoreTime::from_us(now_ms * 1_000), at_ms * 1_000, |_, _| 0);
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
        clock.forget_state(None, None);
        clock.record(&bucket(), StoreTime::from_us(500_000), 3_000, |_, _| 0);
        assert_eq!(clock.gain_until_us(3_000), 60_000 - 1_000);
    }

    /// `tokens` at a time, of which some are lent.
    fn state(tokens: u32, at_us: u64, lent: u32) -> Option<StoredState> {
        let cell = StateCell { instant: StoreTime::from_us(at_us), grain: 0, major: tokens, minor: 0 };
        Some(StoredState { cell: Some(cell), lent: LentTokens { current: lent, ..LentTokens::default() } })
    }

    #[test]
    fn a_loss_adds_what_the_next_call_finds_and_leaves_credit_to_the_spans_after_it() {
        for (restored, gained) in
            [(None, 8), (state(4, 3_000, 0), 4), (state(9, 3_000, 0), 8), (state(0, 5_000, 0), -2)]
        {
            let mut clock = clock(&[(1, 1), (2, 2)]);
            // 2 were left, and 3 were lent. The second loss comes before any call.
            clock.forget_state(state(1, 1_000, 3), state(7, 1_000, 0));
            clock.forget_state(state(7, 1_000, 0), restored);
            clock.record(&bucket(), StoreTime::from_us(5_000), 5_000, |_, _| 0);
            clock.record(&bucket(), StoreTime::from_us(6_000), 6_000, |_, _| 0);
            for (us, until, before) in [
                (1_000, 0, 0),
                (2_000, 0, 0),
                (2_001, 0, gained - 3),
                (5_000, gained, gained - 3),
                (102_000, gained, gained - 3),
                (102_001, gained, gained),
            ] {
                assert_eq!(clock.gained_until(us, &BOUND), until, "until {us}");
                assert_eq!(clock.gained_before(us, &BOUND, 100_000), before, "before {us}");
            }
        }
    }

    #[test]
    fn from_the_last_call_before_a_loss_to_the_first_one_after_it_time_stands_still() {
        let mut clock = clock(&[(1, 1), (2, 2)]);
        clock.forget_state(None, None);
        clock.record(&bucket(), StoreTime::from_us(5_000), 5_000, |_, _| 0);
        for (us, gain_us) in [(2_000, 0), (3_000, -1_000), (5_000, -3_000), (6_000, -3_000)] {
            assert_eq!(clock.gain_from_us(us), gain_us, "{us}");
        }
    }

    #[test]
    fn a_clock_that_gains_leaves_what_was_lent_to_the_spans_after_it() {
        let lent = |_: &Meter, now: StoreTime| if epoch_of(now) <= 3 { 3 } else { 0 };
        for (now_us, before) in [(2_000, 0), (3 * EPOCH_US, 0), (4 * EPOCH_US, -3)] {
            let mut clock = clock(&[(1, 1)]);
            clock.record(&bucket(), StoreTime::from_us(now_us), 2_000, lent);
            assert_eq!(clock.gained_before(1_500, &BOUND, 100_000), before, "{now_us}");
            assert_eq!(clock.gained_before(1_000, &BOUND, 100_000), 0, "{now_us}");
            assert_eq!(clock.gained_until(5_000, &BOUND), 0, "{now_us}");
        }
    }
}
