//! Figures over time in fixed memory: a point for each second of the last 5 minutes, and for each 15 seconds of the last
//! hour.
//!
//! Figures are added to the second that they belong to. Those of other nodes come a few seconds late, so the latest
//! seconds stay open until they are settled; then their quantiles are computed, and only those are kept. A second of which
//! nothing is known has no point.

use super::live_figures::{DecisionGroups, LiveFigures};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use tollgate_core::rate::rfc3339;
use tollgate_core::time::UnixTime;
use utoipa::ToSchema;

/// Figures that cover more seconds than this are not spread over them.
pub(crate) const LONGEST_SPREAD: u64 = 15;
/// Seconds that are open at once.
const MOST_OPEN: usize = 32;
/// A clock that is set back by more than this begins the series anew.
const LARGEST_STEP_BACK: u64 = 60;
const LONG_STEP: u64 = 15;

/// Which part of a series is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LiveRange {
    /// 5 minutes, in steps of a second.
    #[default]
    FiveMinutes,
    /// An hour, in steps of 15 seconds.
    Hour,
}

impl LiveRange {
    /// The range that the query parameter `range` names: `5m` or `1h`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "5m" => Some(Self::FiveMinutes),
            "1h" => Some(Self::Hour),
            _ => None,
        }
    }

    /// The time from one point to the next.
    pub fn step_seconds(self) -> u64 {
        match self {
            Self::FiveMinutes => 1,
            Self::Hour => LONG_STEP,
        }
    }

    /// The number of points.
    pub fn points(self) -> u64 {
        match self {
            Self::FiveMinutes => 300,
            Self::Hour => 240,
        }
    }
}

/// The figures of one step. Those that are not known are `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LivePoint {
    /// When the step begins.
    pub t: String,
    /// Requests admitted in the step.
    pub allowed: Option<u64>,
    /// Requests refused or delayed by a limit in the step.
    pub limited: Option<u64>,
    /// Requests refused by the deny list in the step.
    pub denied: Option<u64>,
    /// Decisions made without the store in the step.
    pub degraded: Option<u64>,
    /// Requests admitted in the step that a rule in shadow mode would have refused.
    pub shadow_limited: Option<u64>,
    /// Half of the decisions took at most so many microseconds: the upper bound of a bucket of the histogram.
    pub p50_us: Option<f64>,
    /// 99 of 100 decisions took at most so many microseconds: the upper bound of a bucket of the histogram.
    pub p99_us: Option<f64>,
    /// Half of the calls to the shared store took at most so many microseconds.
    pub store_p50_us: Option<f64>,
    /// 99 of 100 calls to the shared store took at most so many microseconds.
    pub store_p99_us: Option<f64>,
}

impl LivePoint {
    /// The point of the step that begins at `second`, of which nothing is known.
    fn unknown(second: u64) -> Self {
        Self { t: rfc3339(UnixTime::from_us(second.saturating_mul(1_000_000))), ..Self::default() }
    }

    /// All decisions in the step, if they are known.
    pub fn decisions(&self) -> Option<u64> {
        let others = [self.limited, self.denied, self.degraded, self.shadow_limited];
        let others = others.into_iter().flatten().fold(0, u64::saturating_add);
        self.allowed.map(|allowed| allowed.saturating_add(others))
    }
}

/// A point as it is kept.
#[derive(Clone, Copy, Debug, Default)]
struct StoredPoint {
    /// The number of the step since 1970; 0 for none.
    step: u64,
    groups: DecisionGroups,
    /// p50 and p99 of the added latency and of the store's, in microseconds.
    quantiles: [Option<f64>; 4],
}

impl StoredPoint {
    fn new(step: u64, figures: &LiveFigures) -> Self {
        let LiveFigures { groups, added, store } = figures;
        let quantiles = [
            added.quantile_us(0.5),
            added.quantile_us(0.99),
            store.quantile_us(0.5),
            store.quantile_us(0.99),
        ];
        Self { step, groups: *groups, quantiles }
    }

    fn shown(&self, second: u64) -> LivePoint {
        let DecisionGroups { allowed, limited, denied, degraded, shadow_limited } = self.groups;
        let [p50_us, p99_us, store_p50_us, store_p99_us] = self.quantiles;
        LivePoint {
            allowed: Some(allowed),
            limited: Some(limited),
            denied: Some(denied),
            degraded: Some(degraded),
            shadow_limited: Some(shadow_limited),
            p50_us,
            p99_us,
            store_p50_us,
            store_p99_us,
            ..LivePoint::unknown(second)
        }
    }
}

/// The points of one range, each in the place of its step.
#[derive(Debug)]
struct PointRing(Box<[StoredPoint]>);

impl PointRing {
    fn new(range: LiveRange) -> Self {
        Self(vec![StoredPoint::default(); range.points() as usize].into())
    }

    fn put(&mut self, point: StoredPoint) {
        let place = (point.step % self.0.len() as u64) as usize;
        self.0[place] = point;
    }

    fn get(&self, step: u64) -> Option<&StoredPoint> {
        let point = &self.0[(step % self.0.len() as u64) as usize];
        (point.step == step && step > 0).then_some(point)
    }
}

/// A period of 15 seconds that is not complete.
#[derive(Clone, Copy, Debug, Default)]
struct OpenPeriod {
    step: u64,
    /// The seconds of it that are known.
    seconds: u64,
    figures: LiveFigures,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct LiveSeries {
    /// Seconds that are not settled, in order.
    open: VecDeque<(u64, LiveFigures)>,
    /// All seconds before this one are settled; 0 before the first figures.
    settled: u64,
    seconds: PointRing,
    periods: PointRing,
    period: OpenPeriod,
}

impl LiveSeries {
    pub(crate) fn new() -> Self {
        Self {
            open: VecDeque::with_capacity(MOST_OPEN),
            settled: 0,
            seconds: PointRing::new(LiveRange::FiveMinutes),
            periods: PointRing::new(LiveRange::Hour),
            period: OpenPeriod::default(),
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }

    /// Adds figures of the seconds from `first` to the one before `end`, spread evenly. Those of too many seconds, as after
    /// a suspension of the machine, are not shown.
    pub(crate) fn spread(&mut self, first: u64, end: u64, figures: &LiveFigures) {
        let seconds = end.saturating_sub(first);
        if seconds > LONGEST_SPREAD {
            return;
        }
        for index in 0..seconds {
            self.add(first + index, &figures.share(index, seconds));
        }
    }

    /// Adds figures of `second`. Those of a second that is settled are counted in the first that is not.
    pub(crate) fn add(&mut self, second: u64, figures: &LiveFigures) {
        if second.saturating_add(LARGEST_STEP_BACK) < self.settled {
            self.clear();
        }
        let second = second.max(self.settled);
        match self.open.binary_search_by_key(&second, |(open, _)| *open) {
            Ok(place) => self.open[place].1 += figures,
            Err(place) => {
                self.open.insert(place, (second, *figures));
                if self.open.len() > MOST_OPEN {
                    self.settle_first();
                }
            }
        }
    }

    /// Settles all seconds before `second`. Returns the points that this makes, in order.
    pub(crate) fn settle(&mut self, second: u64) -> Vec<LivePoint> {
        let mut points = Vec::new();
        while self.open.front().is_some_and(|(open, _)| *open < second) {
            points.extend(self.settle_first());
        }
        // A clock that was set back does not open settled seconds again.
        self.settled = self.settled.max(second);
        points
    }

    fn settle_first(&mut self) -> Option<LivePoint> {
        let (second, figures) = self.open.pop_front()?;
        self.settled = second + 1;
        let step = second / LONG_STEP;
        if self.period.step != step {
            self.period = OpenPeriod { step, ..OpenPeriod::default() };
        }
        self.period.seconds += 1;
        self.period.figures += &figures;
        if self.period.seconds == LONG_STEP {
            self.periods.put(StoredPoint::new(step, &self.period.figures));
        }
        let point = StoredPoint::new(second, &figures);
        self.seconds.put(point);
        Some(point.shown(second))
    }

    /// The points of `range` up to the last that is settled, in order. Empty if none ever was.
    pub(crate) fn points(&self, range: LiveRange) -> Vec<LivePoint> {
        if self.settled == 0 {
            return Vec::new();
        }
        let (ring, step_seconds) = match range {
            LiveRange::FiveMinutes => (&self.seconds, 1),
            LiveRange::Hour => (&self.periods, LONG_STEP),
        };
        let end = self.settled / step_seconds;
        (end.saturating_sub(range.points())..end)
            .map(|step| {
                let second = step * step_seconds;
                ring.get(step).map_or_else(|| LivePoint::unknown(second), |point| point.shown(second))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2027-01-15T08:00:00Z, a multiple of 15.
    const START: u64 = 1_800_000_000;

    fn figures(allowed: u64, limited: u64) -> LiveFigures {
        let groups = DecisionGroups { allowed, limited, ..DecisionGroups::default() };
        LiveFigures { groups, ..LiveFigures::default() }
    }

    fn allowed(points: &[LivePoint]) -> Vec<Option<u64>> {
        points.iter().map(|point| point.allowed).collect()
    }

    #[test]
    fn a_point_for_each_second_and_each_quarter_of_a_minute() {
        let mut series = LiveSeries::new();
        assert!(series.points(LiveRange::FiveMinutes).is_empty());
        for second in 0..30 {
            series.add(START + second, &figures(second, 1));
            assert_eq!(series.settle(START + second + 1).len(), 1);
        }
        let points = series.points(LiveRange::FiveMinutes);
        assert_eq!(points.len(), 300);
        assert_eq!(
            allowed(&points[268..]),
            [&[None; 2][..], &(0..30).map(Some).collect::<Vec<_>>()].concat()
        );
        let last = &points[299];
        assert_eq!((last.t.as_str(), last.limited, last.p50_us), ("2027-01-15T08:00:29Z", Some(1), None));
        let hour = series.points(LiveRange::Hour);
        assert_eq!((hour.len(), hour[239].t.as_str()), (240, "2027-01-15T08:00:15Z"));
        let (first, second) = ((0..15).sum(), (15..30).sum());
        assert_eq!(allowed(&hour[237..]), [None, Some(first), Some(second)]);
        assert_eq!(hour[239].decisions(), Some(second + 15));
    }

    #[test]
    fn points_are_dropped_after_their_range() {
        let mut series = LiveSeries::new();
        for second in 0..4_000 {
            series.add(START + second, &figures(second, 0));
            series.settle(START + second + 1);
        }
        let points = series.points(LiveRange::FiveMinutes);
        assert_eq!((points[0].allowed, points[299].allowed), (Some(3_700), Some(3_999)));
        let hour = series.points(LiveRange::Hour);
        assert!(hour.iter().all(|point| point.allowed.is_some()));
        assert_eq!(hour[239].allowed, Some((3_975..3_990).sum()), "3,990 to 4,005 is not complete");
    }

    #[test]
    fn late_figures_are_counted_where_they_belong_or_as_soon_as_possible() {
        let mut series = LiveSeries::new();
        series.spread(START, START + 4, &figures(10, 0));
        series.settle(START + 2);
        // Two of these seconds are settled: their shares are counted in the first that is not.
        series.spread(START, START + 4, &figures(4, 0));
        series.settle(START + 4);
        let points = series.points(LiveRange::FiveMinutes);
        assert_eq!(allowed(&points[296..]), [Some(2), Some(3), Some(5), Some(4)]);
        let sum: u64 = allowed(&points).into_iter().flatten().sum();
        assert_eq!(sum, 14);
    }

    #[test]
    fn a_gap_is_unknown_and_a_clock_that_is_set_back_begins_anew() {
        let mut series = LiveSeries::new();
        series.add(START, &figures(1, 0));
        series.spread(START + 1, START + 61, &figures(60, 0));
        series.add(START + 61, &figures(2, 0));
        series.settle(START + 62);
        let points = series.points(LiveRange::FiveMinutes);
        assert_eq!((points[299].allowed, points[298].allowed, points[238].allowed), (Some(2), None, Some(1)));
        assert!(allowed(&series.points(LiveRange::Hour)).iter().all(Option::is_none), "none is complete");
        series.add(START - 3_600, &figures(3, 0));
        series.settle(START - 3_599);
        let points = series.points(LiveRange::FiveMinutes);
        assert_eq!(points[299].t, "2027-01-15T07:00:00Z");
        assert_eq!(allowed(&points).into_iter().flatten().sum::<u64>(), 3);
    }
}
