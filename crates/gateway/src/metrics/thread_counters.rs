//! The counters of one gateway thread.
//!
//! Only their thread writes them, so a count is a load and a store of a cache line that no other thread writes: no locked
//! instruction, no allocation. Exporters read them from other threads.

use crate::route_table::{RouteIndex, UpstreamIndex};
use http::StatusCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tollgate_limiter::metrics::{HistogramSnapshot, LATENCY_BOUNDS_NS};

/// The classes of status codes, in the order of their counters.
pub(super) const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Why an attempt to get a response from an upstream failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamErrorKind {
    /// No server of the upstream is healthy.
    NoHealthyServer,
    /// No connection could be made.
    Connect,
    /// No connection could be made in time.
    ConnectTimeout,
    /// No connection could be made, because this machine lacks a resource such as file descriptors.
    Local,
    /// The response did not arrive in time.
    Timeout,
    /// The connection was closed or reset before the response.
    Closed,
    /// The response was invalid.
    Protocol,
}

impl UpstreamErrorKind {
    /// All kinds, in the order of their counters.
    pub(super) const ALL: [Self; 7] = [
        Self::NoHealthyServer,
        Self::Connect,
        Self::ConnectTimeout,
        Self::Local,
        Self::Timeout,
        Self::Closed,
        Self::Protocol,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::NoHealthyServer => "no_healthy_server",
            Self::Connect => "connect",
            Self::ConnectTimeout => "connect_timeout",
            Self::Local => "local",
            Self::Timeout => "timeout",
            Self::Closed => "closed",
            Self::Protocol => "protocol",
        }
    }
}

/// What became of a request, for the time of its response. Refusals are fast: among them, slow responses would be few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseResult {
    /// The limits admitted it.
    Admitted,
    /// A limit or a list refused it, or it was invalid.
    Refused,
}

impl ResponseResult {
    /// All results, in the order of their histograms.
    pub(super) const ALL: [Self; 2] = [Self::Admitted, Self::Refused];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Refused => "refused",
        }
    }
}

/// What one thread has counted. The alignment keeps it from sharing cache lines with the counters of other threads.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct ThreadCounters {
    pub(super) bytes_received: ThreadCounter,
    pub(super) bytes_sent: ThreadCounter,
    /// By result.
    pub(super) durations: [ThreadHistogram; ResponseResult::ALL.len()],
    pub(super) routes: Box<[RouteCounters]>,
    upstreams: Box<[UpstreamCounters]>,
}

/// The responses of one route, by status class.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct RouteCounters(pub(super) [ThreadCounter; STATUS_CLASSES.len()]);

/// The requests to one upstream.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct UpstreamCounters {
    pub(super) retries: ThreadCounter,
    pub(super) errors: [ThreadCounter; UpstreamErrorKind::ALL.len()],
    pub(super) duration: ThreadHistogram,
}

impl ThreadCounters {
    pub(crate) fn new(routes: usize, upstreams: usize) -> Self {
        Self {
            bytes_received: ThreadCounter::default(),
            bytes_sent: ThreadCounter::default(),
            durations: std::array::from_fn(|_| ThreadHistogram::default()),
            routes: (0..routes).map(|_| RouteCounters::default()).collect(),
            upstreams: (0..upstreams).map(|_| UpstreamCounters::default()).collect(),
        }
    }

    pub(crate) fn upstream(&self, index: UpstreamIndex) -> &UpstreamCounters {
        &self.upstreams[index]
    }

    /// Records a response whose head is ready `time` after the head of its request.
    pub(crate) fn record_response(
        &self,
        route: RouteIndex,
        result: ResponseResult,
        status: StatusCode,
        time: Duration,
    ) {
        self.durations[result as usize].observe(time);
        self.record_status(route, status);
    }

    /// Records a repeat that the listener refused; its time is not measured.
    pub(crate) fn record_refused_repeat(&self, route: RouteIndex, status: StatusCode, body_bytes: usize) {
        self.record_status(route, status);
        self.record_sent(body_bytes as u64);
    }

    fn record_status(&self, route: RouteIndex, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).clamp(1, STATUS_CLASSES.len());
        self.routes[route].0[class - 1].add(1);
    }

    /// Records a part of a request body.
    pub(crate) fn record_received(&self, bytes: u64) {
        self.bytes_received.add(bytes);
    }

    /// Records a part of a response body.
    pub(crate) fn record_sent(&self, bytes: u64) {
        self.bytes_sent.add(bytes);
    }
}

impl UpstreamCounters {
    /// Records a response whose head arrived `time` after its server was selected.
    pub(crate) fn record_response(&self, time: Duration) {
        self.duration.observe(time);
    }

    /// Records that a request is sent again after a failure.
    pub(crate) fn record_retry(&self) {
        self.retries.add(1);
    }

    /// Records an attempt without a response.
    #[cold]
    pub(crate) fn record_error(&self, kind: UpstreamErrorKind) {
        self.errors[kind as usize].add(1);
    }
}

/// A counter that one thread writes.
#[derive(Debug, Default)]
pub(super) struct ThreadCounter(AtomicU64);

impl ThreadCounter {
    fn add(&self, added: u64) {
        // Not `fetch_add`: there is one writer, and a plain store is cheaper than a locked instruction.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(added), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The number of buckets: one for each bound, and one for what is above all of them.
const BUCKETS: usize = 23;

/// A histogram of times that one thread writes.
#[derive(Debug)]
pub(super) struct ThreadHistogram {
    counts: [ThreadCounter; BUCKETS],
    sum_ns: ThreadCounter,
}

impl Default for ThreadHistogram {
    fn default() -> Self {
        debug_assert_eq!(LATENCY_BOUNDS_NS.len() + 1, BUCKETS);
        Self { counts: std::array::from_fn(|_| ThreadCounter::default()), sum_ns: ThreadCounter::default() }
    }
}

impl ThreadHistogram {
    fn observe(&self, time: Duration) {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bucket = LATENCY_BOUNDS_NS.partition_point(|bound| *bound < time_ns);
        self.sum_ns.add(time_ns);
        self.counts[bucket.min(BUCKETS - 1)].add(1);
    }

    pub(super) fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            bounds: LATENCY_BOUNDS_NS.iter().map(|bound| *bound as f64 * 1e-9).collect(),
            counts: self.counts.iter().map(ThreadCounter::get).collect(),
            sum: self.sum_ns.get() as f64 * 1e-9,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_in_the_order_of_their_counters() {
        for (index, kind) in UpstreamErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index);
        }
        for (index, result) in ResponseResult::ALL.into_iter().enumerate() {
            assert_eq!(result as usize, index);
        }
    }

    #[test]
    fn times_fall_into_the_bucket_of_their_bound() {
        let histogram = ThreadHistogram::default();
        let times = [0, 100, 101, 1_000_000_001, 10_000_000_001, u64::MAX / 2];
        for time_ns in times {
            histogram.observe(Duration::from_nanos(time_ns));
        }
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.counts.len(), snapshot.bounds.len() + 1);
        let last = snapshot.counts.len() - 1;
        for (bucket, expected) in [(0, 2), (1, 1), (last - 1, 1), (last, 2)] {
            assert_eq!(snapshot.counts[bucket], expected, "{bucket}");
        }
        assert_eq!(snapshot.count(), times.len() as u64);
    }

    #[test]
    fn statuses_are_counted_by_class() {
        let counters = ThreadCounters::new(2, 1);
        for status in [101_u16, 200, 204, 302, 429, 599, 999] {
            let response = http::Response::builder().status(status).body(()).unwrap();
            counters.record_response(1, ResponseResult::Refused, response.status(), Duration::ZERO);
        }
        let counts: Vec<u64> = counters.routes[1].0.iter().map(ThreadCounter::get).collect();
        assert_eq!(counts, [1, 2, 1, 1, 2]);
        let measured =
            ResponseResult::ALL.map(|result| counters.durations[result as usize].snapshot().count());
        assert_eq!(measured, [0, 7]);
    }
}
