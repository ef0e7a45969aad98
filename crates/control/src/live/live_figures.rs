//! What is counted of the decisions of a period: outcomes and durations.

use serde::{Deserialize, Serialize};
use std::ops::AddAssign;
use tollgate_limiter::metrics::{DecisionOutcome, HistogramSnapshot, LATENCY_BOUNDS_NS, OutcomeCounts};
use utoipa::ToSchema;

/// Buckets of a latency histogram: one for each bound, and one above all of them.
const BUCKETS: usize = 23;
const _: () = assert!(BUCKETS == 23);

/// Counts of durations, in the buckets of the latency histograms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyCounts([u64; BUCKETS]);

impl Default for LatencyCounts {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl LatencyCounts {
    /// The counts of a histogram. One with other buckets has none.
    pub fn of(histogram: &HistogramSnapshot) -> Self {
        Self::from_slice(&histogram.counts)
    }

    /// The counts of another node; none if its buckets are others.
    pub(crate) fn from_slice(counts: &[u64]) -> Self {
        counts.try_into().map(Self).unwrap_or_default()
    }

    pub(crate) fn as_slice(&self) -> &[u64] {
        &self.0
    }

    /// What was counted since `earlier`. If a count has gone back, the histogram began anew, and all of it is new.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        if self.0.iter().zip(&earlier.0).any(|(now, before)| now < before) {
            return *self;
        }
        Self(std::array::from_fn(|bucket| self.0[bucket] - earlier.0[bucket]))
    }

    /// The bound of the bucket that has the quantile `q`, in microseconds: the quantile is not above it, and above the next
    /// lower bound. Durations beyond all bounds count as the last one, 10 s. None without observations.
    pub fn quantile_us(&self, q: f64) -> Option<f64> {
        let total: u64 = self.0.iter().fold(0, |sum, count| sum.saturating_add(*count));
        let rank = ((total as f64 * q).ceil() as u64).max(1);
        let mut seen = 0_u64;
        let bucket = self.0.iter().position(|count| {
            seen = seen.saturating_add(*count);
            seen >= rank
        })?;
        let bound_ns = LATENCY_BOUNDS_NS.get(bucket).or(LATENCY_BOUNDS_NS.last())?;
        Some(*bound_ns as f64 / 1e3)
    }
}

impl AddAssign<&Self> for LatencyCounts {
    fn add_assign(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(count, added)| *count = count.saturating_add(*added));
    }
}

/// Counts of decisions by groups of outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct DecisionGroups {
    /// Admitted: also after a wait in a queue, or with a flag for the upstream.
    pub allowed: u64,
    /// Refused by a limit, or delayed by one: also requests that were shed.
    pub limited: u64,
    /// Refused by the deny list.
    pub denied: u64,
    /// Made without the store.
    pub degraded: u64,
    /// Admitted, though a rule in shadow mode would have refused them.
    pub shadow_limited: u64,
}

impl DecisionGroups {
    /// The groups of these outcomes.
    pub fn of(outcomes: &OutcomeCounts) -> Self {
        let mut groups = Self::default();
        for outcome in DecisionOutcome::ALL {
            let group = match outcome {
                DecisionOutcome::Allowed | DecisionOutcome::Queued | DecisionOutcome::Flagged => {
                    &mut groups.allowed
                }
                DecisionOutcome::Limited | DecisionOutcome::Shed | DecisionOutcome::Tarpitted => {
                    &mut groups.limited
                }
                DecisionOutcome::Denied => &mut groups.denied,
                DecisionOutcome::Degraded => &mut groups.degraded,
                DecisionOutcome::ShadowLimited => &mut groups.shadow_limited,
            };
            *group = group.saturating_add(outcomes.of(outcome));
        }
        groups
    }

    /// All decisions.
    pub fn total(&self) -> u64 {
        self.counts().iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    fn counts(&self) -> [u64; 5] {
        [self.allowed, self.limited, self.denied, self.degraded, self.shadow_limited]
    }

    fn from_counts([allowed, limited, denied, degraded, shadow_limited]: [u64; 5]) -> Self {
        Self { allowed, limited, denied, degraded, shadow_limited }
    }

    /// What was counted since `earlier`. If a count has gone back, the counting began anew, and all of it is new.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let (now, before) = (self.counts(), earlier.counts());
        if now.iter().zip(&before).any(|(now, before)| now < before) {
            return *self;
        }
        Self::from_counts(std::array::from_fn(|index| now[index] - before[index]))
    }
}

impl AddAssign<&Self> for DecisionGroups {
    fn add_assign(&mut self, other: &Self) {
        let (now, added) = (self.counts(), other.counts());
        *self = Self::from_counts(std::array::from_fn(|index| now[index].saturating_add(added[index])));
    }
}

/// What is counted in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveFigures {
    /// Decisions.
    pub groups: DecisionGroups,
    /// How long they took.
    pub added: LatencyCounts,
    /// How long calls to the shared store took.
    pub store: LatencyCounts,
}

impl LiveFigures {
    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            groups: self.groups.since(&earlier.groups),
            added: self.added.since(&earlier.added),
            store: self.store.since(&earlier.store),
        }
    }

    /// The share number `index` of `shares` equal ones, whose sum is the whole.
    pub(crate) fn share(&self, index: u64, shares: u64) -> Self {
        let part = |count: u64| {
            let upto =
                |index: u64| (u128::from(count) * u128::from(index) / u128::from(shares.max(1))) as u64;
            upto(index + 1) - upto(index)
        };
        Self {
            groups: DecisionGroups::from_counts(self.groups.counts().map(part)),
            added: LatencyCounts(self.added.0.map(part)),
            store: LatencyCounts(self.store.0.map(part)),
        }
    }
}

impl AddAssign<&Self> for LiveFigures {
    fn add_assign(&mut self, other: &Self) {
        self.groups += &other.groups;
        self.added += &other.added;
        self.store += &other.store;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limiter::metrics::Histogram;

    fn durations(ns: &[u64]) -> LatencyCounts {
        let histogram = Histogram::latencies();
        ns.iter().for_each(|ns| histogram.observe(*ns));
        LatencyCounts::of(&histogram.snapshot())
    }

    #[test]
    fn buckets_are_those_of_the_histograms() {
        assert_eq!(Histogram::latencies().snapshot().counts.len(), BUCKETS);
    }

    #[test]
    fn quantiles_are_bounds_of_buckets() {
        for (ns, p50, p99) in [
            (&[][..], None, None),
            (&[90], Some(0.1), Some(0.1)),
            (&[100, 101], Some(0.1), Some(0.25)),
            (&[1_000_000, 2_000_000, 3_000_000], Some(2_500.0), Some(5_000.0)),
            (&[20_000_000_000], Some(1e7), Some(1e7)),
        ] {
            let counts = durations(ns);
            assert_eq!((counts.quantile_us(0.5), counts.quantile_us(0.99)), (p50, p99), "{ns:?}");
        }
    }

    #[test]
    fn differences_survive_a_restart() {
        let before = durations(&[90, 90, 5_000]);
        let mut after = before;
        after += &durations(&[5_000]);
        assert_eq!(after.since(&before), durations(&[5_000]));
        assert_eq!(durations(&[90]).since(&before), durations(&[90]), "it began anew");
        let groups = |allowed, limited| DecisionGroups { allowed, limited, ..DecisionGroups::default() };
        assert_eq!(groups(5, 7).since(&groups(2, 7)), groups(3, 0));
        assert_eq!(groups(1, 8).since(&groups(2, 7)), groups(1, 8), "it began anew");
    }

    #[test]
    fn shares_add_up() {
        let whole = LiveFigures {
            groups: DecisionGroups { allowed: 10, limited: 1, ..DecisionGroups::default() },
            added: durations(&[90, 90, 90, 5_000]),
            store: LatencyCounts::default(),
        };
        let shares: Vec<LiveFigures> = (0..3).map(|index| whole.share(index, 3)).collect();
        assert_eq!(shares.iter().map(|share| share.groups.allowed).collect::<Vec<_>>(), [3, 3, 4]);
        let mut sum = LiveFigures::default();
        shares.iter().for_each(|share| sum += share);
        assert_eq!(sum, whole);
    }
}
