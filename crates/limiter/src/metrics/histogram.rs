//! Histograms with fixed bounds.

use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of latencies, in nanoseconds: from 100 ns, a local decision, to 10 s.
pub static LATENCY_BOUNDS_NS: &[u64] = &[
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// Upper bounds of the number of clients in a batch.
pub static BATCH_BOUNDS: &[u64] = &[1, 2, 4, 8, 16, 32, 64, 128];

/// A histogram that any thread may add to. Not for the path of a local decision: its counters are shared.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// What one unit of an observation is in the unit of the metric: 1e-9 for nanoseconds in a metric in seconds.
    scale: f64,
    /// One more than bounds.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// The state of a histogram at one time, in the unit of its metric.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistogramSnapshot {
    /// Upper bounds, inclusive.
    pub bounds: Vec<f64>,
    /// The number of observations up to each bound and above the one before; the last is for those above all bounds.
    pub counts: Vec<u64>,
    /// The sum of all observations.
    pub sum: f64,
}

impl Histogram {
    /// A histogram of latencies in nanoseconds, for a metric in seconds.
    pub fn latencies() -> Self {
        Self::new(LATENCY_BOUNDS_NS, 1e-9)
    }

    /// A histogram with these bounds.
    pub fn new(bounds: &'static [u64], scale: f64) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, scale, counts, sum: AtomicU64::new(0) }
    }

    /// Adds an observation.
    pub fn observe(&self, value: u64) {
        self.observe_weighted(value, 1);
    }

    /// Adds an observation that stands for `weight` of them.
    pub fn observe_weighted(&self, value: u64, weight: u32) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.sum.fetch_add(value.saturating_mul(weight.into()), Ordering::Relaxed);
        self.counts[bucket].fetch_add(weight.into(), Ordering::Release);
    }

    /// Its state now.
    pub fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            bounds: self.bounds.iter().map(|bound| *bound as f64 * self.scale).collect(),
            counts: self.counts.iter().map(|count| count.load(Ordering::Acquire)).collect(),
            sum: self.sum.load(Ordering::Relaxed) as f64 * self.scale,
        }
    }
}

impl HistogramSnapshot {
    /// The number of observations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds the observations of `other`, which has the same bounds.
    pub fn add(&mut self, other: &Self) {
        if self.bounds.is_empty() {
            *self = other.clone();
            return;
        }
        for (count, added) in self.counts.iter_mut().zip(&other.counts) {
            *count += added;
        }
        self.sum += other.sum;
    }

    /// An upper estimate of the quantile `q`: the bound of its bucket. None without observations.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let rank = (self.count() as f64 * q).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Some(self.bounds.get(bucket).copied().unwrap_or(f64::INFINITY));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive() {
        let histogram = Histogram::new(BATCH_BOUNDS, 1.0);
        for value in [0, 1, 2, 3, 128, 129, u64::from(u32::MAX)] {
            histogram.observe(value);
        }
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.counts, [2, 1, 1, 0, 0, 0, 0, 1, 2]);
        assert_eq!(snapshot.count(), 7);
        assert_eq!(snapshot.sum, 263.0 + f64::from(u32::MAX));
        assert_eq!(snapshot.quantile(0.5), Some(4.0));
        assert_eq!(snapshot.quantile(1.0), Some(f64::INFINITY));
        assert_eq!(HistogramSnapshot::default().quantile(0.5), None);
    }
}
