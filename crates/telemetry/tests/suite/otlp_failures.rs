//! Collectors that are down, do not answer, or answer with errors.

use crate::otlp_metrics::{Running, has_totals, settings};
use crate::test_node::{TestNode, eventually, failures, totals_of};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tollgate_telemetry::{MetricRegistry, OtlpSettings};
use tollgate_testbed::telemetry::totals;
use tollgate_testbed::telemetry::{Answer, TestCollector};
use tonic::Code;

/// Waits for an export with all totals but the number of failures, which may grow meanwhile.
async fn wait_for_totals(collector: &TestCollector, registry: &MetricRegistry) {
    collector
        .wait_for("an export with all totals", |received| {
            has_totals(received.metrics.last(), &totals_of(registry))
        })
        .await;
}

/// A free port, and nothing that listens there.
async fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

fn elapsed_since(start: Instant) -> Duration {
    start.elapsed()
}

#[expect(clippy::disallowed_methods, reason = "the test measures real time")]
fn now() -> Instant {
    Instant::now()
}

#[tokio::test]
async fn a_collector_that_is_down_and_comes_back_has_all_totals() {
    let address = free_address().await;
    let (node, registry) = TestNode::start();
    let exporter = Running::start(&settings(format!("http://{address}")), &registry);
    for expected in 1..=3 {
        node.grow(10);
        eventually("a failure", || failures(&registry, "otlp") >= expected).await;
    }
    let collector = TestCollector::start_at(address, Answer::Accept, None).await;
    wait_for_totals(&collector, &registry).await;

    drop(collector);
    let before = failures(&registry, "otlp");
    node.grow(10);
    eventually("another failure", || failures(&registry, "otlp") > before).await;
    let collector = TestCollector::start_at(address, Answer::Accept, None).await;
    node.grow(10);
    wait_for_totals(&collector, &registry).await;
    exporter.stop().await;
    assert_eq!(totals::of_otlp(collector.received().metrics.last()), totals_of(&registry));
}

#[tokio::test]
async fn a_collector_that_fails_and_recovers_has_all_totals() {
    for code in [Code::Unavailable, Code::Internal, Code::Unauthenticated, Code::Unimplemented] {
        let collector = TestCollector::start(Answer::Fail(code)).await;
        let (node, registry) = TestNode::start();
        let exporter = Running::start(&settings(collector.endpoint()), &registry);
        node.grow(10);
        eventually("failures", || failures(&registry, "otlp") >= 3).await;
        assert!(collector.received().metrics.is_empty());
        collector.set_answer(Answer::Accept);
        node.grow(10);
        wait_for_totals(&collector, &registry).await;
        exporter.stop().await;
    }
}

#[tokio::test]
async fn a_collector_that_does_not_answer_and_recovers_has_all_totals() {
    let collector = TestCollector::start(Answer::Never).await;
    let (node, registry) = TestNode::start();
    let settings = OtlpSettings { timeout: Duration::from_millis(50), ..settings(collector.endpoint()) };
    let exporter = Running::start(&settings, &registry);
    node.grow(10);
    eventually("failures", || failures(&registry, "otlp") >= 3).await;
    collector.set_answer(Answer::Accept);
    node.grow(10);
    wait_for_totals(&collector, &registry).await;
    exporter.stop().await;
}

/// Connections are accepted by the system and never read.
#[tokio::test]
async fn shutdown_does_not_wait_longer_than_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (node, registry) = TestNode::start();
    let timeout = Duration::from_millis(200);
    let settings = OtlpSettings { timeout, ..settings(endpoint) };
    let exporter = Running::start(&settings, &registry);
    node.grow(10);
    eventually("failures", || failures(&registry, "otlp") >= 2).await;
    let before = failures(&registry, "otlp");
    let start = now();
    exporter.stop().await;
    // With room for a machine that is busy with other tests.
    assert!(elapsed_since(start) < timeout + Duration::from_secs(5));
    assert!(failures(&registry, "otlp") > before);
}

#[tokio::test]
async fn the_exporter_ends_at_once_if_the_collector_is_down() {
    let address = free_address().await;
    let (_, registry) = TestNode::start();
    let timeout = Duration::from_secs(3_600);
    let settings = OtlpSettings { timeout, ..settings(format!("http://{address}")) };
    let exporter = Running::start(&settings, &registry);
    exporter.stop().await;
    assert!(failures(&registry, "otlp") >= 1);
}
