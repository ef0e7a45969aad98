//! Export with OTLP over gRPC: metrics, decision logs and spans.
//!
//! The metrics of the registry are pushed at an interval, with cumulative values: an export that fails loses nothing, because
//! the next one has the totals again. Log records and spans wait in bounded queues and are sent in batches; what does not fit
//! is dropped and counted. Each signal has its own connection, which is opened when the signal first has something to send.

mod attributes;
mod batches;
mod collector;
mod logs;
mod metrics;
mod spans;

pub use collector::OtlpSettingsError;
pub use logs::{LogSeverity, OtlpLogExporter, OtlpLogRecord};
pub use spans::OtlpSpanExporter;

use crate::export_failures::ExportFailures;
use crate::registry::MetricRegistry;
use attributes::resource;
use batches::Batches;
use collector::Collector;
use logs::LogSignal;
use metrics::MetricExport;
use spans::SpanSignal;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tollgate_limiter::Clock;

/// The settings of the OTLP exporter.
#[derive(Clone)]
pub struct OtlpSettings {
    /// The collector, such as `http://127.0.0.1:4317`; `https://` connects with TLS.
    pub endpoint: String,
    /// The time between two exports of metrics.
    pub interval: Duration,
    /// The time that an export may take, and that the last exports at shutdown may take together.
    pub timeout: Duration,
    /// Headers of every request, such as `authorization`. Their values are never shown.
    pub headers: Vec<(String, String)>,
    /// For `https://`, the certificates to trust instead of the system's, as PEM.
    pub ca_certificates: Option<String>,
    /// `service.instance.id`, which tells nodes apart; `None` for a random one.
    pub instance_id: Option<String>,
    /// The share of store calls that become spans.
    pub span_ratio: f64,
    /// The number of log records, and of spans, that may wait for their export.
    pub queue_size: usize,
    /// The time that log records and spans are gathered for a batch, and before a failed batch is sent again.
    pub batch_delay: Duration,
}

impl Default for OtlpSettings {
    fn default() -> Self {
        Self {
            endpoint: "http://127.0.0.1:4317".to_owned(),
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(5),
            headers: Vec::new(),
            ca_certificates: None,
            instance_id: None,
            span_ratio: 0.01,
            queue_size: 8_192,
            batch_delay: Duration::from_secs(1),
        }
    }
}

impl OtlpSettings {
    /// Whether an exporter can be built from these settings.
    pub fn validate(&self) -> Result<(), OtlpSettingsError> {
        Collector::new(self).map(drop)
    }
}

impl fmt::Debug for OtlpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("OtlpSettings")
            .field("interval", &self.interval)
            .field("timeout", &self.timeout)
            .field("headers", &headers)
            .finish_non_exhaustive()
    }
}

/// Exports metrics, log records and spans to an OTLP collector.
#[derive(Debug)]
pub struct OtlpExporter {
    timeout: Duration,
    failures: Arc<ExportFailures>,
    metrics: MetricExport,
    logs: Batches<LogSignal>,
    spans: Batches<SpanSignal>,
    log_exporter: OtlpLogExporter,
    span_exporter: OtlpSpanExporter,
}

impl OtlpExporter {
    /// An exporter of the metrics in `registry`, to which its own metrics are added. Nothing is sent before it is started.
    pub fn new(
        settings: &OtlpSettings,
        registry: &Arc<MetricRegistry>,
        clock: Clock,
    ) -> Result<Self, OtlpSettingsError> {
        let collector = Collector::new(settings)?;
        let failures = Arc::new(ExportFailures::new("otlp"));
        let instance = settings.instance_id.clone();
        let resource = resource(&instance.unwrap_or_else(|| format!("{:032x}", fastrand::u128(..))));

        let (log_exporter, waiting_logs) = OtlpLogExporter::new(settings);
        let (span_exporter, waiting_spans) = OtlpSpanExporter::new(settings);
        registry.register(Arc::clone(&failures) as _);
        registry.register(Arc::new(log_exporter.clone()));
        registry.register(Arc::new(span_exporter.clone()));
        Ok(Self {
            timeout: settings.timeout,
            metrics: MetricExport::new(
                settings.interval,
                collector.clone(),
                Arc::clone(registry),
                clock,
                resource.clone(),
                Arc::clone(&failures),
            ),
            logs: Batches::new(
                LogSignal::new(resource.clone()),
                waiting_logs,
                log_exporter.dropped(),
                settings,
                collector.clone(),
                Arc::clone(&failures),
            ),
            spans: Batches::new(
                SpanSignal::new(resource),
                waiting_spans,
                span_exporter.dropped(),
                settings,
                collector,
                Arc::clone(&failures),
            ),
            failures,
            log_exporter,
            span_exporter,
        })
    }

    /// Takes the log records to export.
    pub fn logs(&self) -> OtlpLogExporter {
        self.log_exporter.clone()
    }

    /// Takes the spans to export.
    pub fn spans(&self) -> OtlpSpanExporter {
        self.span_exporter.clone()
    }

    /// Exports in a task of `handle` until `shutdown`, and then once more what there is. The task ends within the timeout
    /// after `shutdown`.
    pub fn start(
        self,
        handle: &Handle,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        handle.spawn(self.run(shutdown))
    }

    async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let (stop, stopping) = watch::channel(false);
        let is_complete = {
            let signals = async {
                tokio::join!(
                    self.metrics.run(stopping.clone()),
                    self.logs.run(stopping.clone()),
                    self.spans.run(stopping.clone()),
                )
            };
            let mut signals = std::pin::pin!(signals);
            let has_ended = tokio::select! {
                _ = &mut signals => true,
                () = shutdown => false,
            };
            stop.send_replace(true);
            has_ended || tokio::time::timeout(self.timeout, signals).await.is_ok()
        };
        if !is_complete {
            self.failures.record("all", &"the last export at shutdown did not end within the timeout");
            self.logs.abandon();
            self.spans.abandon();
        }
    }
}
