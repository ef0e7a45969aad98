//! What the requests of one key keep to together.

use tollgate_core::algorithm::{Bucket, Window};
use tollgate_core::limit::Meter;

/// The most that may be admitted for one key. With several versions of a limit it has the larger numbers of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitBound {
    /// A capacity, and what is refilled meanwhile.
    Bucket(BucketBound),
    /// A count per window of the store's time.
    FixedWindow(WindowBound),
    /// A count of the present window and of the one before, weighted.
    SlidingCounter(WindowBound),
    /// A count per window, wherever it begins.
    Log(WindowBound),
}

/// The numbers of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketBound {
    /// How many tokens fit.
    pub capacity: u32,
    /// How many tokens are refilled
    pub amount: u32,
    /// in so many microseconds.
    pub period_us: u64,
}

/// The numbers of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBound {
    /// How many tokens a window has.
    pub limit: u32,
    /// Its length.
    pub length_us: u64,
}

impl LimitBound {
    /// The larger numbers of this and of another version of the same limit.
    pub fn widen(&mut self, other: Self) {
        match (self, other) {
            (Self::Bucket(bucket), Self::Bucket(other)) => bucket.widen(other),
            (Self::FixedWindow(window), Self::FixedWindow(other))
            | (Self::SlidingCounter(window), Self::SlidingCounter(other))
            | (Self::Log(window), Self::Log(other)) => window.widen(other),
            // Another algorithm has states of its own, so that a key keeps to one.
            _ => {}
        }
    }
}

impl BucketBound {
    fn widen(&mut self, other: Self) {
        self.capacity = self.capacity.max(other.capacity);
        let rate = |of: &Self, per_us: u64| u128::from(of.amount) * u128::from(per_us);
        if rate(&other, self.period_us) > rate(self, other.period_us) {
            (self.amount, self.period_us) = (other.amount, other.period_us);
        }
    }
}

impl WindowBound {
    /// Windows of two lengths have one state only in a log, where the shorter one is within the longer one.
    fn widen(&mut self, other: Self) {
        self.limit = self.limit.max(other.limit);
        self.length_us = self.length_us.min(other.length_us);
    }
}

impl From<&Bucket> for LimitBound {
    fn from(bucket: &Bucket) -> Self {
        let Bucket { capacity, amount, period, tick_us, .. } = *bucket;
        Self::Bucket(BucketBound { capacity, amount, period_us: u64::from(period) * tick_us })
    }
}

impl From<&Meter> for LimitBound {
    fn from(meter: &Meter) -> Self {
        let bound = |window: &Window| WindowBound { limit: window.limit, length_us: window.span_us() };
        match meter {
            Meter::TokenBucket(bucket) | Meter::LeakyBucket(bucket) | Meter::Gcra(bucket) => bucket.into(),
            Meter::FixedWindow(window) => Self::FixedWindow(bound(window)),
            Meter::SlidingWindowCounter(window) => Self::SlidingCounter(bound(window)),
            // Where the end of requests is not known, they are charged as a log.
            Meter::SlidingWindowLog(window) | Meter::Concurrency(window) => Self::Log(bound(window)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_versions_keep_to_the_larger_of_each_number() {
        let bucket =
            |capacity, amount, period_us| LimitBound::Bucket(BucketBound { capacity, amount, period_us });
        let log = |limit, length_us| LimitBound::Log(WindowBound { limit, length_us });
        for (one, other, both) in [
            (bucket(10, 1, 1_000), bucket(5, 1, 2_000), bucket(10, 1, 1_000)),
            (bucket(10, 1, 2_000), bucket(5, 1, 1_000), bucket(10, 1, 1_000)),
            (bucket(5, 3, 7_000), bucket(10, 1, 2_000), bucket(10, 1, 2_000)),
            (log(5, 1_000), log(7, 1_000), log(7, 1_000)),
            (log(7, 2_000), log(5, 1_000), log(7, 1_000)),
        ] {
            for (mut bound, other) in [(one, other), (other, one)] {
                bound.widen(other);
                assert_eq!(bound, both);
            }
        }
    }
}
