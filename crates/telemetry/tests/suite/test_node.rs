//! A part of a node with metrics of every type, which tests let grow.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tollgate_limiter::metrics::{Histogram, MetricSamples, MetricSource, catalog};
use tollgate_telemetry::{MetricRegistry, TextFormat};
use tollgate_testbed::telemetry::totals::{self, Totals};

/// Labels that are hard to write.
pub const ODD_LABELS: [&str; 8] =
    ["plain", "", "a\"b\\c\nd", "ü🚦", "a,b|c#d:e=f", "{}[]() ;'%", "\u{0}\u{7f}\r\t", "@1|#x"];

/// See the module.
#[derive(Debug)]
pub struct TestNode {
    decisions: Mutex<BTreeMap<[String; 3], u64>>,
    latencies: Histogram,
    unavailable_ms: AtomicU64,
}

impl TestNode {
    /// A node, and a registry that has its metrics.
    pub fn start() -> (Arc<Self>, Arc<MetricRegistry>) {
        let node = Arc::new(Self {
            decisions: Mutex::default(),
            latencies: Histogram::latencies(),
            unavailable_ms: AtomicU64::new(0),
        });
        let registry = Arc::new(MetricRegistry::default());
        registry.register(Arc::clone(&node) as _);
        (node, registry)
    }

    /// Counts decisions with random labels.
    pub fn grow(&self, decisions: usize) {
        for _ in 0..decisions {
            let label = || ODD_LABELS[fastrand::usize(..ODD_LABELS.len())].to_owned();
            *self.decisions.lock().entry([label(), label(), label()]).or_default() += fastrand::u64(1..1_000);
            self.latencies.observe(fastrand::u64(1..20_000_000_000));
            self.unavailable_ms.fetch_add(fastrand::u64(..100), Ordering::Relaxed);
        }
    }
}

impl MetricSource for TestNode {
    fn collect(&self, samples: &mut MetricSamples) {
        for ([rule, tier, route], count) in &*self.decisions.lock() {
            let labels = [rule.as_str(), "token_bucket", tier, route, "check", "allowed"];
            samples.count(&catalog::DECISIONS, &labels, *count);
        }
        samples.histogram(&catalog::DECISION_DURATION, &["remote"], self.latencies.snapshot());
        let unavailable = self.unavailable_ms.load(Ordering::Relaxed) as f64 / 1e3;
        samples.number(&catalog::STORE_UNAVAILABLE, &["a"], unavailable);
        samples.number(&catalog::STORE_CLOCK_DRIFT, &["a"], -unavailable);
        samples.number(&catalog::NODES, &[], 3.0);
    }
}

/// What Prometheus would scrape now.
pub fn totals_of(registry: &MetricRegistry) -> Totals {
    totals::of_prometheus(&TextFormat::Prometheus.render(&registry.collect()))
}

/// The number of failed exports.
pub fn failures(registry: &MetricRegistry, exporter: &str) -> u64 {
    let samples = registry.collect();
    let samples = samples.of_metric(&catalog::EXPORT_FAILURES);
    samples.iter().find(|sample| &*sample.labels[0] == exporter).unwrap().as_count().unwrap()
}

/// Waits until `is_true`.
pub async fn eventually(what: &str, is_true: impl Fn() -> bool) {
    let polled = async {
        while !is_true() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), polled).await.unwrap_or_else(|_| panic!("never: {what}"));
}
