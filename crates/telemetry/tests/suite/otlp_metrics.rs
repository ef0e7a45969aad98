//! Metrics over OTLP.

use crate::test_node::{TestNode, eventually, failures, totals_of};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tollgate_limiter::Clock;
use tollgate_telemetry::{MetricRegistry, OtlpExporter, OtlpSettings, ProcessMetrics};
use tollgate_testbed::TestCertificates;
use tollgate_testbed::telemetry::totals;
use tollgate_testbed::telemetry::{Answer, TestCollector};

/// Settings for a test: short times.
pub fn settings(endpoint: String) -> OtlpSettings {
    OtlpSettings {
        endpoint,
        interval: Duration::from_millis(10),
        timeout: Duration::from_secs(20),
        batch_delay: Duration::from_millis(5),
        span_ratio: 1.0,
        ..OtlpSettings::default()
    }
}

/// An exporter that runs.
pub struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Running {
    pub fn start(settings: &OtlpSettings, registry: &Arc<MetricRegistry>) -> Self {
        Self::run(OtlpExporter::new(settings, registry, Clock::system()).unwrap())
    }

    pub fn run(exporter: OtlpExporter) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let task = exporter.start(&Handle::current(), async {
            let _ = stopped.await;
        });
        Self { stop, task }
    }

    /// Ends it, with the last export.
    pub async fn stop(self) {
        drop(self.stop);
        tokio::time::timeout(Duration::from_secs(60), self.task).await.expect("the task ends").unwrap();
    }
}

/// Whether a request has all of these totals. In these tests one request has all metrics.
pub fn has_totals(request: Option<&ExportMetricsServiceRequest>, expected: &totals::Totals) -> bool {
    request.is_some_and(|request| totals::of_otlp([request]) == *expected)
}

#[tokio::test]
async fn totals_are_those_of_the_prometheus_text() {
    let collector = TestCollector::start(Answer::Accept).await;
    let (node, registry) = TestNode::start();
    let exporter = Running::start(&settings(collector.endpoint()), &registry);
    for _ in 0..5 {
        node.grow(100);
        let expected = totals_of(&registry);
        let has_them = |metrics: &[_]| has_totals(metrics.last(), &expected);
        collector.wait_for("an export with all totals", |received| has_them(&received.metrics)).await;
    }
    node.grow(100);
    exporter.stop().await;
    let received = collector.received();
    assert_eq!(totals::of_otlp(received.metrics.last()), totals_of(&registry));
    assert_eq!(failures(&registry, "otlp"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn totals_only_grow_while_threads_count() {
    let collector = TestCollector::start(Answer::Accept).await;
    let (node, registry) = TestNode::start();
    let exporter = Running::start(&settings(collector.endpoint()), &registry);
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let node = Arc::clone(&node);
            std::thread::spawn(move || (0..200).for_each(|_| node.grow(20)))
        })
        .collect();
    collector.wait_for("several exports", |received| received.metrics.len() > 3).await;
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    exporter.stop().await;

    let received = collector.received().metrics;
    let mut last = totals::Totals::new();
    for request in &received {
        let now = totals::of_otlp([request]);
        for (series, before) in &last {
            if let (totals::TotalValue::Count(before), totals::TotalValue::Count(now)) =
                (before, &now[series])
            {
                assert!(now >= before, "{series:?}");
            }
        }
        last = now;
    }
    assert_eq!(last, totals_of(&registry));
}

#[tokio::test]
async fn a_request_says_which_node_it_is_from() {
    let collector = TestCollector::start(Answer::Accept).await;
    let (_, registry) = TestNode::start();
    registry.register(Arc::new(ProcessMetrics::new("1.2.3")));
    let settings = OtlpSettings {
        headers: vec![("X-Token".to_owned(), "let me in".to_owned())],
        instance_id: Some("node-7".to_owned()),
        ..settings(collector.endpoint())
    };
    let exporter = Running::start(&settings, &registry);
    exporter.stop().await;
    let received = collector.received();
    assert_eq!(received.token.as_deref(), Some("let me in"));
    let resource = received.metrics[0].resource_metrics[0].resource.as_ref().unwrap();
    let attributes: Vec<_> = resource
        .attributes
        .iter()
        .map(|attribute| (attribute.key.as_str(), totals::attribute_text(attribute)))
        .collect();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let expected = [
        ("service.name", "tollgate".to_owned()),
        ("service.version", version),
        ("service.instance.id", "node-7".to_owned()),
    ];
    assert_eq!(attributes, expected);
}

#[tokio::test]
async fn points_that_the_collector_rejects_are_a_failure() {
    let collector = TestCollector::start(Answer::RejectSome).await;
    let (_, registry) = TestNode::start();
    let exporter = Running::start(&settings(collector.endpoint()), &registry);
    eventually("a failure", || failures(&registry, "otlp") > 0).await;
    exporter.stop().await;
}

#[tokio::test]
async fn tls_is_verified() {
    let certificates = TestCertificates::generate();
    let address = "127.0.0.1:0".parse().unwrap();
    let collector = TestCollector::start_at(address, Answer::Accept, Some(&certificates)).await;
    let endpoint = format!("https://localhost:{}", collector.address.port());
    let (node, registry) = TestNode::start();
    node.grow(10);

    let stranger = TestCertificates::generate().authority;
    let distrusting = OtlpSettings { ca_certificates: Some(stranger), ..settings(endpoint.clone()) };
    let exporter = Running::start(&distrusting, &registry);
    eventually("a failure", || failures(&registry, "otlp") > 0).await;
    exporter.stop().await;
    assert!(collector.received().metrics.is_empty());

    let (node, registry) = TestNode::start();
    node.grow(10);
    let authority = Some(certificates.authority);
    let trusting = OtlpSettings { ca_certificates: authority, ..settings(endpoint) };
    Running::start(&trusting, &registry).stop().await;
    assert_eq!(totals::of_otlp(collector.received().metrics.last()), totals_of(&registry));
}
