//! The metrics of a shared store.

use crate::breaker::BreakerState;
use crate::errors::StoreErrorKind;
use crate::shard::RedisShard;
use crate::{RedisStore, StoreCore};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use tollgate_limiter::metrics::{Histogram, MetricSamples, MetricSource, catalog};

/// The counters of a shard.
#[derive(Debug)]
pub(crate) struct ShardCounters {
    /// The breaker opened.
    pub(crate) opened: AtomicU64,
    /// The breaker closed again.
    pub(crate) closed: AtomicU64,
    /// Calls, pings and connections that failed, timeouts included.
    pub(crate) failures: AtomicU64,
    /// Calls and pings that were not answered in time.
    pub(crate) timeouts: AtomicU64,
    /// Script calls.
    pub(crate) calls: AtomicU64,
    /// The time until script calls were answered, in nanoseconds.
    pub(crate) durations: Histogram,
    /// The time during which the breaker was not closed, until it closed last.
    pub(crate) unavailable_us: AtomicU64,
    /// Steps of the server's clock.
    pub(crate) clock_steps: AtomicU64,
    /// The server's clock minus the node's, at the last heartbeat.
    pub(crate) drift_us: AtomicI64,
}

impl Default for ShardCounters {
    fn default() -> Self {
        Self {
            opened: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            timeouts: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            durations: Histogram::latencies(),
            unavailable_us: AtomicU64::new(0),
            clock_steps: AtomicU64::new(0),
            drift_us: AtomicI64::new(0),
        }
    }
}

/// How the checks of a node were decided, as the lease table counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseCounts {
    /// From credit.
    pub(crate) from_credit: u64,
    /// Refused by the last reply.
    pub(crate) refused: u64,
    /// By a call.
    pub(crate) remote: u64,
    /// Of those, the checks that joined a call or its queue.
    pub(crate) coalesced: u64,
}

impl RedisStore {
    /// The metrics of the store.
    pub fn metrics(&self) -> Arc<dyn MetricSource> {
        Arc::new(StoreMetrics(Arc::clone(self.core())))
    }
}

struct StoreMetrics(Arc<StoreCore>);

impl MetricSource for StoreMetrics {
    fn collect(&self, samples: &mut MetricSamples) {
        let Self(core) = self;
        for shard in core.servers.shards() {
            collect_shard(core, &shard, samples);
        }
        samples.histogram(&catalog::STORE_BATCH_SIZE, &[], core.queues.batch_sizes().snapshot());
        let (counts, credit) = core.leases.usage(core.lease_time());
        for (result, count) in
            [("credit", counts.from_credit), ("refused", counts.refused), ("remote", counts.remote)]
        {
            samples.count(&catalog::LEASE_CHECKS, &[result], count);
        }
        samples.count(&catalog::LEASE_COALESCED, &[], counts.coalesced);
        samples.number(&catalog::LEASE_CREDIT, &[], credit as f64);
        samples.number(&catalog::LEASES, &[], core.leases.lease_count() as f64);
        samples.number(&catalog::NODES, &[], f64::from(core.fleet.node_count()));
    }
}

fn collect_shard(core: &StoreCore, shard: &RedisShard, samples: &mut MetricSamples) {
    let label = shard.number().to_string();
    let labels = [label.as_str()];
    let counters = shard.counters();
    let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
    samples.histogram(&catalog::STORE_CALL_DURATION, &labels, counters.durations.snapshot());
    samples.count(&catalog::STORE_CALLS, &labels, get(&counters.calls));
    samples.count(&catalog::STORE_TIMEOUTS, &labels, get(&counters.timeouts));
    samples.count(&catalog::STORE_BREAKER_OPENED, &labels, get(&counters.opened));
    let state = match shard.state() {
        BreakerState::Closed => 0.0,
        BreakerState::HalfOpen => 1.0,
        BreakerState::Open => 2.0,
    };
    samples.number(&catalog::STORE_BREAKER_STATE, &labels, state);
    let unavailable = shard.unavailable_us() as f64 / 1e6;
    samples.number(&catalog::STORE_UNAVAILABLE, &labels, unavailable);
    let drift = counters.drift_us.load(Ordering::Relaxed) as f64 / 1e6;
    samples.number(&catalog::STORE_CLOCK_DRIFT, &labels, drift);
    samples.count(&catalog::STORE_CLOCK_STEPS, &labels, get(&counters.clock_steps));
    for kind in StoreErrorKind::ALL {
        let count = core.servers.shard_errors(shard.number(), kind);
        samples.count(&catalog::STORE_ERRORS, &[&label, kind.name()], count);
    }
}
