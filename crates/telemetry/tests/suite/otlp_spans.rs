//! Spans over OTLP.

use crate::otlp_metrics::{Running, settings};
use crate::test_node::TestNode;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use std::collections::BTreeSet;
use tollgate_core::time::UnixTime;
use tollgate_limiter::Clock;
use tollgate_limiter::metrics::{AttributeValue, SpanRecord, SpanSink, catalog};
use tollgate_telemetry::{OtlpExporter, OtlpSettings};
use tollgate_testbed::telemetry::totals::attribute_text;
use tollgate_testbed::telemetry::{Answer, TestCollector};

fn span(shard: &str, error: Option<&'static str>) -> SpanRecord {
    SpanRecord {
        name: "store call",
        start: UnixTime::from_us(1_000),
        end: UnixTime::from_us(1_250),
        attributes: vec![
            ("shard", AttributeValue::from(shard.to_owned())),
            ("clients", AttributeValue::from(16_u32)),
        ],
        error: error.map(Into::into),
    }
}

#[tokio::test]
async fn spans_arrive_with_times_details_and_errors() {
    let collector = TestCollector::start(Answer::Accept).await;
    let (_, registry) = TestNode::start();
    let exporter = OtlpExporter::new(&settings(collector.endpoint()), &registry, Clock::system()).unwrap();
    let spans = exporter.spans();
    let exporter = Running::run(exporter);
    assert!(spans.samples_next());
    spans.record(span("a", None));
    spans.record(span("b", Some("timeout")));
    // The clock stepped back.
    spans.record(SpanRecord { end: UnixTime::from_us(1), ..span("c", None) });
    exporter.stop().await;

    let received = collector.received().spans;
    assert_eq!(received.len(), 3);
    let ids: BTreeSet<_> = received.iter().map(|span| (&span.trace_id, &span.span_id)).collect();
    assert_eq!(ids.len(), 3);
    for span in &received {
        assert_eq!((span.trace_id.len(), span.span_id.len()), (16, 8));
        assert_eq!(span.name, "store call");
        assert_eq!(span.start_time_unix_nano, 1_000_000);
        assert_eq!(attribute_text(&span.attributes[1]), "16");
    }
    assert_eq!(received[0].end_time_unix_nano, 1_250_000);
    assert_eq!(received[0].status, None);
    assert_eq!(attribute_text(&received[1].attributes[0]), "b");
    let status = received[1].status.as_ref().unwrap();
    assert_eq!((status.code, status.message.as_str()), (StatusCode::Error as i32, "timeout"));
    assert_eq!(received[2].end_time_unix_nano, 1_000_000);
}

#[tokio::test]
async fn spans_that_do_not_fit_are_dropped_and_counted() {
    let (_, registry) = TestNode::start();
    let settings = OtlpSettings { queue_size: 2, span_ratio: 0.0, ..OtlpSettings::default() };
    let exporter = OtlpExporter::new(&settings, &registry, Clock::system()).unwrap();
    let spans = exporter.spans();
    assert!((0..1_000).all(|_| !spans.samples_next()));
    (0..5).for_each(|_| spans.record(span("a", None)));
    assert_eq!(registry.collect().of_metric(&catalog::SPANS_DROPPED)[0].as_count(), Some(3));
}
