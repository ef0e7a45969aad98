//! The metrics of a gateway: what its threads and its listeners have counted, and the health of its servers.
//!
//! A response is counted under the route that its request matched, also if a limit refused it. Invalid requests and those
//! that match no route have none.

mod thread_counters;

use crate::access_log::AccessLog;
use crate::forwarding_state::ForwardingState;
use crate::upstream::Upstream;
use std::sync::Arc;
pub(crate) use thread_counters::{ResponseResult, ThreadCounters, UpstreamErrorKind};
use thread_counters::{STATUS_CLASSES, ThreadCounter, ThreadHistogram};
use tollgate_limiter::metrics::{HistogramSnapshot, MetricSamples, MetricSource, catalog};
use tollgate_listen::{ConnectionLimits, ListenerCounters};

/// Collects the metrics of a gateway.
#[derive(Debug)]
pub(crate) struct GatewayMetrics {
    pub(crate) state: Arc<ForwardingState>,
    /// One for each thread.
    pub(crate) threads: Vec<Arc<ThreadCounters>>,
    /// One for each thread.
    pub(crate) listeners: Vec<Arc<ListenerCounters>>,
    pub(crate) limits: Option<Arc<ConnectionLimits>>,
    pub(crate) has_tls: bool,
    pub(crate) log: Option<AccessLog>,
}

impl GatewayMetrics {
    fn total(&self, counter: impl Fn(&ThreadCounters) -> &ThreadCounter) -> u64 {
        self.threads.iter().map(|thread| counter(thread).get()).sum()
    }

    fn histogram(&self, histogram: impl Fn(&ThreadCounters) -> &ThreadHistogram) -> HistogramSnapshot {
        let mut total = HistogramSnapshot::default();
        for thread in &self.threads {
            total.add(&histogram(thread).snapshot());
        }
        total
    }

    fn listeners_total(&self, count: impl Fn(&ListenerCounters) -> u64) -> u64 {
        self.listeners.iter().map(|listener| count(listener)).sum()
    }

    fn collect_responses(&self, samples: &mut MetricSamples) {
        for (route, label) in self.state.routes.labels().iter().enumerate() {
            for (class, name) in STATUS_CLASSES.into_iter().enumerate() {
                let count = self.total(|thread| &thread.routes[route].0[class]);
                // 1xx is only seen by clients that change to another protocol.
                if count > 0 || class > 0 {
                    samples.count(&catalog::GATEWAY_REQUESTS, &[label, name], count);
                }
            }
        }
        for result in ResponseResult::ALL {
            let duration = self.histogram(|thread| &thread.durations[result as usize]);
            samples.histogram(&catalog::GATEWAY_DURATION, &[result.name()], duration);
        }
        for (direction, count) in [
            ("received", self.total(|thread| &thread.bytes_received)),
            ("sent", self.total(|thread| &thread.bytes_sent)),
        ] {
            samples.count(&catalog::GATEWAY_BYTES, &[direction], count);
        }
    }

    fn collect_upstream(&self, index: usize, upstream: &Upstream, samples: &mut MetricSamples) {
        let name = upstream.settings.name.as_str();
        let duration = self.histogram(|thread| &thread.upstream(index).duration);
        samples.histogram(&catalog::UPSTREAM_DURATION, &[name], duration);
        let retries = self.total(|thread| &thread.upstream(index).retries);
        samples.count(&catalog::UPSTREAM_RETRIES, &[name], retries);
        for kind in UpstreamErrorKind::ALL {
            let errors = self.total(|thread| &thread.upstream(index).errors[kind as usize]);
            samples.count(&catalog::UPSTREAM_ERRORS, &[name, kind.name()], errors);
        }
        for (position, server) in upstream.servers.iter().enumerate() {
            // A server that is listed several times gets more requests; it is one server.
            let mut same = upstream.servers.iter().filter(|other| other.address == server.address);
            if upstream.servers[..position].iter().any(|other| other.address == server.address) {
                continue;
            }
            let healthy = f64::from(u8::from(same.any(|server| server.health.is_healthy())));
            samples.number(&catalog::UPSTREAM_HEALTHY, &[name, &server.address.to_string()], healthy);
        }
    }

    fn collect_connections(&self, samples: &mut MetricSamples) {
        let open = self.listeners_total(ListenerCounters::open_connections);
        samples.number(&catalog::GATEWAY_CONNECTIONS, &[], open as f64);
        let opened = self.listeners_total(ListenerCounters::opened_connections);
        samples.count(&catalog::GATEWAY_CONNECTIONS_OPENED, &[], opened);
        let refused = self.limits.as_ref().map_or(0, |limits| limits.refused_connections());
        samples.count(&catalog::GATEWAY_CONNECTIONS_REFUSED, &[], refused);
        if self.has_tls {
            let handshakes = self.listeners_total(ListenerCounters::tls_handshakes);
            samples.count(&catalog::TLS_HANDSHAKES, &["ok"], handshakes);
            let failed = self.listeners_total(ListenerCounters::failed_tls_handshakes);
            samples.count(&catalog::TLS_HANDSHAKES, &["failed"], failed);
        }
    }
}

impl MetricSource for GatewayMetrics {
    fn collect(&self, samples: &mut MetricSamples) {
        self.collect_responses(samples);
        for (index, upstream) in self.state.upstreams.iter().enumerate() {
            self.collect_upstream(index, upstream, samples);
        }
        self.collect_connections(samples);
        if let Some(log) = &self.log {
            let lines = log.lines();
            samples.count(&catalog::LOG_LINES_DROPPED, &[lines.name()], lines.dropped());
        }
    }
}
