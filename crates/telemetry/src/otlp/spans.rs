//! Spans as OTLP traces. Each span is a trace of its own: store calls serve many requests at once.

use super::OtlpSettings;
use super::attributes::{scope, typed_attribute};
use super::batches::{RecordQueue, Signal};
use super::collector::Collector;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status as SpanStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::mpsc;
use tollgate_limiter::metrics::{MetricSamples, MetricSource, SpanRecord, SpanSink, catalog};
use tonic::Status;
use tonic::transport::Channel;

/// Takes spans to export. It never blocks: if the queue is full, the span is dropped and counted.
#[derive(Clone, Debug)]
pub struct OtlpSpanExporter {
    queue: RecordQueue<SpanRecord>,
    /// The share of operations that become spans.
    ratio: f64,
}

impl OtlpSpanExporter {
    pub(super) fn new(settings: &OtlpSettings) -> (Self, mpsc::Receiver<SpanRecord>) {
        let (queue, waiting) = RecordQueue::new(settings);
        (Self { queue, ratio: settings.span_ratio }, waiting)
    }

    pub(super) fn dropped(&self) -> Arc<AtomicU64> {
        self.queue.dropped()
    }
}

impl SpanSink for OtlpSpanExporter {
    fn samples_next(&self) -> bool {
        fastrand::f64() < self.ratio
    }

    fn record(&self, span: SpanRecord) {
        self.queue.push(span);
    }
}

impl MetricSource for OtlpSpanExporter {
    fn collect(&self, samples: &mut MetricSamples) {
        samples.count(&catalog::SPANS_DROPPED, &[], self.queue.dropped_count());
    }
}

/// Traces in OTLP.
#[derive(Debug)]
pub(super) struct SpanSignal {
    resource: Resource,
}

impl SpanSignal {
    pub(super) fn new(resource: Resource) -> Self {
        Self { resource }
    }

    fn request(&self, records: &[SpanRecord]) -> ExportTraceServiceRequest {
        let spans = records.iter().map(encode).collect();
        let scope_spans = vec![ScopeSpans { scope: Some(scope()), spans, ..ScopeSpans::default() }];
        let resource = Some(self.resource.clone());
        let resource_spans = vec![ResourceSpans { resource, scope_spans, ..ResourceSpans::default() }];
        ExportTraceServiceRequest { resource_spans }
    }
}

impl Signal for SpanSignal {
    type Record = SpanRecord;

    const NAME: &'static str = "spans";

    async fn send(
        &self,
        collector: &Collector,
        channel: Channel,
        records: &[SpanRecord],
    ) -> Result<u64, Status> {
        let request = collector.request(self.request(records));
        let answer = TraceServiceClient::new(channel).export(request).await?.into_inner();
        let rejected = answer.partial_success.map_or(0, |partial| partial.rejected_spans);
        Ok(u64::try_from(rejected).unwrap_or(0))
    }
}

fn encode(span: &SpanRecord) -> Span {
    let status = span
        .error
        .as_ref()
        .map(|error| SpanStatus { message: error.clone().into_owned(), code: StatusCode::Error as i32 });
    Span {
        // All zeros are invalid.
        trace_id: fastrand::u128(1..).to_be_bytes().to_vec(),
        span_id: fastrand::u64(1..).to_be_bytes().to_vec(),
        name: span.name.to_owned(),
        kind: SpanKind::Client as i32,
        start_time_unix_nano: span.start.as_us().saturating_mul(1_000),
        // The wall clock may have stepped back meanwhile.
        end_time_unix_nano: span.end.max(span.start).as_us().saturating_mul(1_000),
        attributes: span.attributes.iter().map(|(name, value)| typed_attribute(name, value)).collect(),
        status,
        ..Span::default()
    }
}
