//! Decision records as OTLP logs.

use super::OtlpSettings;
use super::attributes::{scope, text_value, typed_attribute};
use super::batches::{RecordQueue, Signal};
use super::collector::Collector;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::mpsc;
use tollgate_limiter::metrics::{
    AttributeValue, DecisionOutcome, DecisionRecord, MetricSamples, MetricSource, catalog,
};
use tonic::Status;
use tonic::transport::Channel;

/// The severity of a log record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogSeverity {
    /// For information.
    Info,
    /// Worth attention.
    Warn,
    /// A failure.
    Error,
}

/// A record to export. It contains nothing that logs must not show.
#[derive(Clone, Debug, PartialEq)]
pub struct OtlpLogRecord {
    /// The time of the event, in microseconds since the epoch.
    pub time_us: u64,
    /// Its severity.
    pub severity: LogSeverity,
    /// The kind of event, such as `tollgate.decision`.
    pub event: &'static str,
    /// The body, a short sentence.
    pub message: String,
    /// The fields.
    pub attributes: Vec<(String, AttributeValue)>,
}

impl OtlpLogRecord {
    /// The record of a decision. `key` has the identities by which the rule counts as they may be shown, which means hashed
    /// or abbreviated if they are credentials: (kind, value). Those of `record`, in clear, are not used.
    pub fn of_decision(record: &DecisionRecord, key: Vec<(String, String)>) -> Self {
        let mut attributes = Vec::with_capacity(12 + key.len());
        let mut add = |name: &str, value: AttributeValue| {
            attributes.push((format!("tollgate.{name}"), value));
        };
        add("outcome", record.outcome.name().into());
        add("door", record.door.name().into());
        add("algorithm", record.algorithm.into());
        add("cost", record.cost.into());
        add("degraded", record.degraded.into());
        for (name, text) in [("rule", &record.rule), ("tier", &record.tier), ("route", &record.route)] {
            add(name, text.clone().into());
        }
        if let Some(limit) = record.limit {
            add("limit", limit.into());
        }
        if let Some(remaining) = record.remaining {
            add("remaining", remaining.into());
        }
        if let Some(retry_after_us) = record.retry_after_us {
            add("retry_after_us", retry_after_us.into());
        }
        if let Some(rule) = &record.shadowed_by {
            add("shadowed_by", rule.clone().into());
        }
        for (kind, value) in key {
            add(&format!("key.{kind}"), value.into());
        }
        attributes.retain(|(_, value)| !matches!(value, AttributeValue::Text(text) if text.is_empty()));
        Self {
            time_us: record.time.as_us(),
            severity: severity(record),
            event: "tollgate.decision",
            message: message(record),
            attributes,
        }
    }
}

fn severity(record: &DecisionRecord) -> LogSeverity {
    if record.degraded { LogSeverity::Warn } else { LogSeverity::Info }
}

fn message(record: &DecisionRecord) -> String {
    let outcome = match record.outcome {
        DecisionOutcome::ShadowLimited => "allowed, would be limited",
        DecisionOutcome::Degraded => "decided without the store",
        outcome => outcome.name(),
    };
    let rule = if record.outcome == DecisionOutcome::ShadowLimited {
        record.shadowed_by.as_ref().unwrap_or(&record.rule)
    } else {
        &record.rule
    };
    if rule.is_empty() { outcome.to_owned() } else { format!("{outcome} by rule {rule}") }
}

/// Takes log records to export. It never blocks: if the queue is full, the record is dropped and counted.
#[derive(Clone, Debug)]
pub struct OtlpLogExporter {
    queue: RecordQueue<OtlpLogRecord>,
}

impl OtlpLogExporter {
    pub(super) fn new(settings: &OtlpSettings) -> (Self, mpsc::Receiver<OtlpLogRecord>) {
        let (queue, waiting) = RecordQueue::new(settings);
        (Self { queue }, waiting)
    }

    /// Exports a record with one of the next batches.
    pub fn record(&self, record: OtlpLogRecord) {
        self.queue.push(record);
    }

    pub(super) fn dropped(&self) -> Arc<AtomicU64> {
        self.queue.dropped()
    }
}

impl MetricSource for OtlpLogExporter {
    fn collect(&self, samples: &mut MetricSamples) {
        samples.count(&catalog::LOG_LINES_DROPPED, &["decision_otlp"], self.queue.dropped_count());
    }
}

/// Logs in OTLP.
#[derive(Debug)]
pub(super) struct LogSignal {
    resource: Resource,
}

impl LogSignal {
    pub(super) fn new(resource: Resource) -> Self {
        Self { resource }
    }

    fn request(&self, records: &[OtlpLogRecord]) -> ExportLogsServiceRequest {
        let log_records = records.iter().map(encode).collect();
        let scope_logs = vec![ScopeLogs { scope: Some(scope()), log_records, ..ScopeLogs::default() }];
        let resource = Some(self.resource.clone());
        let resource_logs = vec![ResourceLogs { resource, scope_logs, ..ResourceLogs::default() }];
        ExportLogsServiceRequest { resource_logs }
    }
}

impl Signal for LogSignal {
    type Record = OtlpLogRecord;

    const NAME: &'static str = "logs";

    async fn send(
        &self,
        collector: &Collector,
        channel: Channel,
        records: &[OtlpLogRecord],
    ) -> Result<u64, Status> {
        let request = collector.request(self.request(records));
        let answer = LogsServiceClient::new(channel).export(request).await?.into_inner();
        let rejected = answer.partial_success.map_or(0, |partial| partial.rejected_log_records);
        Ok(u64::try_from(rejected).unwrap_or(0))
    }
}

fn encode(record: &OtlpLogRecord) -> LogRecord {
    let (severity, severity_text) = match record.severity {
        LogSeverity::Info => (SeverityNumber::Info, "INFO"),
        LogSeverity::Warn => (SeverityNumber::Warn, "WARN"),
        LogSeverity::Error => (SeverityNumber::Error, "ERROR"),
    };
    let time_ns = record.time_us.saturating_mul(1_000);
    LogRecord {
        time_unix_nano: time_ns,
        observed_time_unix_nano: time_ns,
        severity_number: severity as i32,
        severity_text: severity_text.to_owned(),
        body: Some(text_value(&record.message)),
        attributes: record.attributes.iter().map(|(name, value)| typed_attribute(name, value)).collect(),
        event_name: record.event.to_owned(),
        ..LogRecord::default()
    }
}
