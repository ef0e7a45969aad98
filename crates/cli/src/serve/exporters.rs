//! The exporters of a node: started when its listeners are open, stopped when its doors are drained.

use super::node_metrics::NodeMetrics;
use crate::config::{SettingError, TelemetryConfig};
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tollgate_limiter::Clock;
use tollgate_limiter::metrics::SpanSink;
use tollgate_telemetry::{OtlpExporter, OtlpLogExporter, StatsdExporter};

/// Exporters that are not started yet. Their own metrics are registered.
#[derive(Debug)]
pub struct NodeExporters {
    otlp: Option<OtlpExporter>,
    statsd: Option<StatsdExporter>,
}

impl NodeExporters {
    /// The exporters of `config`. Nothing is connected: a backend that is down is no error.
    pub fn new(config: &TelemetryConfig, metrics: &NodeMetrics, clock: &Clock) -> Result<Self, SettingError> {
        let otlp = config.otlp.as_ref().map(|otlp| OtlpExporter::new(otlp, &metrics.0, clock.clone()));
        let statsd = config.statsd.as_ref().map(|statsd| StatsdExporter::new(statsd, &metrics.0));
        Ok(Self { otlp: otlp.transpose()?, statsd: statsd.transpose()? })
    }

    /// What exports the spans of store calls, if something does.
    pub fn spans(&self) -> Option<Arc<dyn SpanSink>> {
        self.otlp.as_ref().map(|otlp| Arc::new(otlp.spans()) as _)
    }

    /// What exports decision records, if something does.
    pub fn logs(&self) -> Option<OtlpLogExporter> {
        self.otlp.as_ref().map(OtlpExporter::logs)
    }

    /// Exports until `stop` resolves. Each task then exports once more, and ends within the timeout of its exporter.
    pub fn start<S>(self, stop: impl Fn() -> S) -> Result<Vec<JoinHandle<()>>, SettingError>
    where
        S: Future<Output = ()> + Send + 'static,
    {
        let runtime = Handle::current();
        let otlp = self.otlp.map(|otlp| otlp.start(&runtime, stop()));
        let statsd = self.statsd.map(|statsd| statsd.start(&runtime, stop())).transpose()?;
        Ok(otlp.into_iter().chain(statsd).collect())
    }
}
