//! Which decisions a thread observes.
//!
//! At low rates every decision is observed. At high rates one in `every` is, at random distances, and stands for `every`
//! decisions: its *weight*. So a thread makes at most about a thousand observations a second, and totals are right on
//! average.

use crate::abuse::ONE_IN;

/// The observations that a thread should make in a second.
const PER_SECOND: u32 = 1_000;
/// The largest weight. It bounds the time without an observation after the rate has dropped.
const LARGEST_WEIGHT: u32 = 4_096;
/// By how much the weight grows at once: a short burst must not make observations rare.
const MOST_GROWTH: u32 = 8;
const SECOND_NS: u64 = 1_000_000_000;
/// Dropped records are reported in groups of this many: the observer's counter is shared by all threads.
const DROPPED_GROUP: u64 = 64;

/// How often one thread observes one kind of decision.
#[derive(Debug)]
pub(crate) struct ObservationPace {
    every: u32,
    /// The decisions until the next observation.
    until_next: u32,
    /// Since when the observations are counted.
    since_ns: u64,
    made: u32,
}

impl Default for ObservationPace {
    fn default() -> Self {
        Self { every: 1, until_next: 1, since_ns: 0, made: 0 }
    }
}

impl ObservationPace {
    /// Counts a decision. The weight of its observation, if it is to be observed.
    #[inline]
    pub(crate) fn next(&mut self, now_ns: impl FnOnce() -> u64) -> Option<u32> {
        self.until_next -= 1;
        if self.until_next > 0 {
            return None;
        }
        Some(self.observe(now_ns()))
    }

    /// Counts an observation, returns its weight, and draws the distance of the next one.
    fn observe(&mut self, now_ns: u64) -> u32 {
        let weight = self.every;
        self.made += 1;
        let elapsed_ns = now_ns.saturating_sub(self.since_ns);
        if elapsed_ns >= SECOND_NS || self.made >= PER_SECOND {
            let decisions = u64::from(self.made) * u64::from(self.every);
            let per_second = decisions * SECOND_NS / elapsed_ns.max(1);
            let largest = LARGEST_WEIGHT.min(self.every * MOST_GROWTH);
            self.every = per_second.div_ceil(PER_SECOND.into()).clamp(1, largest.into()) as u32;
            (self.since_ns, self.made) = (now_ns, 0);
        }
        self.until_next = if self.every == 1 { 1 } else { fastrand::u32(1..2 * self.every) };
        weight
    }
}

/// When a thread takes the next sample for abuse detection, and when it makes the next observation. Both are counted down
/// as one, so that a check that is neither costs one subtraction.
#[derive(Debug)]
pub(crate) struct SampleSchedule {
    /// The length of the current countdown.
    drawn: u32,
    until_sample: u32,
    pace: ObservationPace,
}

/// What is due for a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DueSamples {
    /// It is a sample for abuse detection.
    pub(crate) is_sampled: bool,
    /// It is observed, with this weight.
    pub(crate) weight: Option<u32>,
}

impl SampleSchedule {
    /// A new schedule, and its first countdown.
    pub(crate) fn new() -> (Self, u32) {
        let schedule = Self { drawn: 1, until_sample: draw_sample(), pace: ObservationPace::default() };
        (schedule, 1)
    }

    /// What is due at the end of a countdown, and the next countdown.
    pub(crate) fn take_due(&mut self, now_ns: impl FnOnce() -> u64) -> (DueSamples, u32) {
        let mut due = DueSamples::default();
        self.until_sample -= self.drawn;
        if self.until_sample == 0 {
            due.is_sampled = true;
            self.until_sample = draw_sample();
        }
        self.pace.until_next -= self.drawn;
        if self.pace.until_next == 0 {
            due.weight = Some(self.pace.observe(now_ns()));
        }
        self.drawn = self.until_sample.min(self.pace.until_next);
        (due, self.drawn)
    }
}

/// At random distances: periodic requests could evade a fixed one.
fn draw_sample() -> u32 {
    fastrand::u32(1..2 * ONE_IN)
}

/// How many refusals a thread has recorded in the current second.
#[derive(Debug, Default)]
pub(crate) struct RecordRate {
    /// The limiter whose records are counted. A thread mostly works for one.
    limiter: u32,
    second: u64,
    records: u32,
    /// Records that were dropped and are not reported yet.
    dropped: u64,
}

impl RecordRate {
    /// Whether one more refusal may be recorded in `second`. `report` is called with numbers of dropped records.
    pub(crate) fn take(&mut self, limiter: u32, second: u64, most: u32, report: impl Fn(u64)) -> bool {
        if limiter != self.limiter {
            *self = Self { limiter, second, ..Self::default() };
        }
        if second != self.second {
            self.report_dropped(limiter, &report);
            (self.second, self.records) = (second, 0);
        }
        if self.records < most {
            self.records += 1;
            return true;
        }
        self.dropped += 1;
        if self.dropped == DROPPED_GROUP {
            self.report_dropped(limiter, &report);
        }
        false
    }

    /// Reports the dropped records of `limiter`.
    pub(crate) fn report_dropped(&mut self, limiter: u32, report: impl Fn(u64)) {
        if self.dropped > 0 && limiter == self.limiter {
            report(std::mem::take(&mut self.dropped));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Decides `seconds` long at `per_second`; returns the number of observations and the sum of their weights.
    fn run(pace: &mut ObservationPace, now_ns: &mut u64, per_second: u64, seconds: u64) -> (u64, u64) {
        let (mut observations, mut weights) = (0, 0);
        for _ in 0..per_second * seconds {
            *now_ns += SECOND_NS / per_second;
            if let Some(weight) = pace.next(|| *now_ns) {
                observations += 1;
                weights += u64::from(weight);
            }
        }
        (observations, weights)
    }

    #[test]
    fn every_decision_is_observed_at_low_rates_and_a_thousand_a_second_at_high_ones() {
        fastrand::seed(3);
        let (mut pace, mut now_ns) = (ObservationPace::default(), 0);
        assert_eq!(run(&mut pace, &mut now_ns, 10, 20), (200, 200));
        assert_eq!(run(&mut pace, &mut now_ns, 900, 20), (18_000, 18_000));
        for (per_second, most) in [(5_000, 1_100), (100_000, 1_100), (2_000_000, 1_500)] {
            run(&mut pace, &mut now_ns, per_second, 2);
            let (observations, weights) = run(&mut pace, &mut now_ns, per_second, 10);
            assert!((5_000..=10 * most).contains(&observations), "{per_second}: {observations}");
            let ratio = weights as f64 / (per_second * 10) as f64;
            assert!((0.97..1.03).contains(&ratio), "{per_second}: {ratio}");
        }
        run(&mut pace, &mut now_ns, 100, 200);
        assert_eq!(run(&mut pace, &mut now_ns, 100, 10), (1_000, 1_000), "after the rate has dropped");
    }

    #[test]
    fn both_samples_have_their_own_rates() {
        fastrand::seed(4);
        let (mut schedule, mut countdown) = SampleSchedule::new();
        let (mut sampled, mut weights) = (0_u32, 0_u32);
        const CHECKS: u32 = 640_000;
        for check in 0..CHECKS {
            countdown -= 1;
            if countdown == 0 {
                let (due, next) = schedule.take_due(|| u64::from(check) * 1_000);
                countdown = next;
                sampled += u32::from(due.is_sampled);
                weights += due.weight.unwrap_or(0);
            }
        }
        assert!(sampled.abs_diff(CHECKS / ONE_IN) < CHECKS / ONE_IN / 20, "{sampled}");
        assert!(weights.abs_diff(CHECKS) < CHECKS / 20, "{weights}");
    }

    #[test]
    fn records_over_the_rate_are_dropped_and_reported() {
        let dropped = Cell::new(0);
        let report = |count| dropped.set(dropped.get() + count);
        let mut rate = RecordRate::default();
        let recorded = (0..1_000).filter(|_| rate.take(1, 7, 10, report)).count();
        assert_eq!((recorded, dropped.get()), (10, 990 / DROPPED_GROUP * DROPPED_GROUP));
        assert!(rate.take(1, 8, 10, report));
        assert_eq!(dropped.get(), 990);
        assert!(rate.take(2, 8, 1, report) && !rate.take(2, 8, 1, report));
        rate.report_dropped(1, report);
        assert_eq!(dropped.get(), 990, "those of another limiter");
        rate.report_dropped(2, report);
        assert_eq!(dropped.get(), 991);
    }
}
