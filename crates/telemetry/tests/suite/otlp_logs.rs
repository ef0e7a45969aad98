//! Decision records over OTLP.

use crate::otlp_metrics::{Running, settings};
use crate::test_node::{TestNode, eventually, failures};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use std::time::Duration;
use tollgate_core::request::Door;
use tollgate_core::time::UnixTime;
use tollgate_limiter::Clock;
use tollgate_limiter::metrics::{DecisionOutcome, DecisionRecord, KeyPart, catalog};
use tollgate_telemetry::{LogSeverity, MetricRegistry, OtlpExporter, OtlpLogRecord, OtlpSettings};
use tollgate_testbed::telemetry::totals::attribute_text;
use tollgate_testbed::telemetry::{Answer, TestCollector};
use tonic::Code;

fn numbered(number: usize) -> OtlpLogRecord {
    OtlpLogRecord {
        time_us: 1,
        severity: LogSeverity::Info,
        event: "test",
        message: number.to_string(),
        attributes: Vec::new(),
    }
}

fn body(record: &LogRecord) -> String {
    match record.body.as_ref().unwrap().value.as_ref().unwrap() {
        Value::StringValue(text) => text.clone(),
        other => panic!("{other:?}"),
    }
}

fn dropped(registry: &MetricRegistry) -> u64 {
    registry.collect().of_metric(&catalog::LOG_LINES_DROPPED)[0].as_count().unwrap()
}

#[tokio::test]
async fn a_decision_has_its_fields_and_no_key_in_clear() {
    let decision = DecisionRecord {
        time: UnixTime::from_us(1_700_000_000_000_000),
        door: Door::Check,
        outcome: DecisionOutcome::Limited,
        rule: "api".to_owned(),
        algorithm: "token_bucket",
        tier: String::new(),
        route: "/v1/{id}".to_owned(),
        key: vec![KeyPart { kind: "api_key".to_owned(), value: "secret".to_owned(), is_credential: true }],
        cost: 2,
        limit: Some(100),
        remaining: Some(0),
        retry_after_us: Some(1_500_000),
        degraded: false,
        shadowed_by: None,
    };
    let record = OtlpLogRecord::of_decision(&decision, vec![("api_key".to_owned(), "#1a2b".to_owned())]);

    let collector = TestCollector::start(Answer::Accept).await;
    let (_, registry) = TestNode::start();
    let exporter = OtlpExporter::new(&settings(collector.endpoint()), &registry, Clock::system()).unwrap();
    let logs = exporter.logs();
    let exporter = Running::run(exporter);
    logs.record(record);
    collector.wait_for("the record", |received| !received.logs.is_empty()).await;
    exporter.stop().await;

    let record = &collector.received().logs[0];
    assert_eq!(body(record), "limited by rule api");
    assert_eq!(record.event_name, "tollgate.decision");
    assert_eq!(record.time_unix_nano, 1_700_000_000_000_000_000);
    assert_eq!(record.severity_text, "INFO");
    let attributes: Vec<_> = record
        .attributes
        .iter()
        .map(|attribute| format!("{}={}", attribute.key, attribute_text(attribute)))
        .collect();
    let expected = [
        "tollgate.outcome=limited",
        "tollgate.door=check",
        "tollgate.algorithm=token_bucket",
        "tollgate.cost=2",
        "tollgate.degraded=false",
        "tollgate.rule=api",
        "tollgate.route=/v1/{id}",
        "tollgate.limit=100",
        "tollgate.remaining=0",
        "tollgate.retry_after_us=1500000",
        "tollgate.key.api_key=#1a2b",
    ];
    assert_eq!(attributes, expected);
    assert!(!format!("{record:?}").contains("secret"));
}

#[tokio::test]
async fn all_records_arrive_in_order_and_in_batches() {
    let collector = TestCollector::start(Answer::Accept).await;
    let (_, registry) = TestNode::start();
    let exporter = OtlpExporter::new(&settings(collector.endpoint()), &registry, Clock::system()).unwrap();
    let logs = exporter.logs();
    let exporter = Running::run(exporter);
    (0..2_000).for_each(|number| logs.record(numbered(number)));
    exporter.stop().await;
    let received = collector.received();
    let bodies: Vec<_> = received.logs.iter().map(body).collect();
    assert_eq!(bodies, (0..2_000).map(|number| number.to_string()).collect::<Vec<_>>());
    assert!(received.batches.iter().all(|size| *size <= 512), "{:?}", received.batches);
    assert!(received.batches.len() < 20, "{:?}", received.batches);
    // After the end, records are dropped.
    logs.record(numbered(0));
    assert_eq!(dropped(&registry), 1);
}

#[tokio::test]
async fn records_that_do_not_fit_are_dropped_and_counted() {
    let collector = TestCollector::start(Answer::Accept).await;
    let (_, registry) = TestNode::start();
    let settings = OtlpSettings { queue_size: 4, ..settings(collector.endpoint()) };
    let exporter = OtlpExporter::new(&settings, &registry, Clock::system()).unwrap();
    let logs = exporter.logs();
    (0..10).for_each(|number| logs.record(numbered(number)));
    assert_eq!(dropped(&registry), 6);
    Running::run(exporter).stop().await;
    assert_eq!(collector.received().logs.iter().map(body).collect::<Vec<_>>(), ["0", "1", "2", "3"]);
}

#[tokio::test]
async fn a_batch_is_sent_again_after_an_error_that_may_pass() {
    let collector = TestCollector::start(Answer::Fail(Code::Unavailable)).await;
    let (_, registry) = TestNode::start();
    // No metrics: the requests are those of the logs.
    let settings = OtlpSettings {
        interval: Duration::from_secs(3_600),
        batch_delay: Duration::from_millis(50),
        ..settings(collector.endpoint())
    };
    let exporter = OtlpExporter::new(&settings, &registry, Clock::system()).unwrap();
    let logs = exporter.logs();
    let exporter = Running::run(exporter);
    (0..10).for_each(|number| logs.record(numbered(number)));
    collector.wait_for("the first attempt", |received| received.requests == 1).await;
    collector.set_answer(Answer::Accept);
    collector.wait_for("the batch", |received| !received.logs.is_empty()).await;
    exporter.stop().await;
    assert_eq!(collector.received().logs.len(), 10);
    assert_eq!(dropped(&registry), 0);
    assert_eq!(failures(&registry, "otlp"), 1);
}

#[tokio::test]
async fn every_record_is_exported_or_counted_as_dropped() {
    let (short, long) = (Duration::from_millis(50), Duration::from_secs(20));
    for (answer, timeout) in [
        (Answer::Fail(Code::InvalidArgument), long),
        (Answer::Fail(Code::Unavailable), long),
        (Answer::Never, short),
    ] {
        let collector = TestCollector::start(answer).await;
        let (_, registry) = TestNode::start();
        let settings = OtlpSettings { timeout, queue_size: 100, ..settings(collector.endpoint()) };
        let exporter = OtlpExporter::new(&settings, &registry, Clock::system()).unwrap();
        let logs = exporter.logs();
        let exporter = Running::run(exporter);
        let mut pushed = 0;
        for _ in 0..10 {
            (0..30).for_each(|number| logs.record(numbered(number)));
            pushed += 30;
            tokio::task::yield_now().await;
        }
        eventually("drops", || dropped(&registry) > 0).await;
        collector.set_answer(Answer::Accept);
        (0..30).for_each(|number| logs.record(numbered(number)));
        pushed += 30;
        exporter.stop().await;
        let received = collector.received().logs.len() as u64;
        let known = received + dropped(&registry);
        // A record whose answer comes too late is both.
        assert!(known == pushed || timeout == short && known > pushed, "{known} of {pushed}: {answer:?}");
    }
}
