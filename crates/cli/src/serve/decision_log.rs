//! The decision log of a node: lines, records for OTLP, or both.

use super::exporters::NodeExporters;
use super::node_metrics::NodeMetrics;
use crate::command_error::CommandError;
use crate::config::DecisionLogConfig;
use std::sync::Arc;
use tollgate_limiter::line_log::LineLog;
use tollgate_limiter::metrics::{DecisionObserver, DecisionRecord};
use tollgate_limiter::{DecisionLog, KeyText};
use tollgate_telemetry::{OtlpLogExporter, OtlpLogRecord};

/// Receives the decisions that are recorded.
#[derive(Debug)]
pub struct NodeDecisionLog {
    lines: Option<DecisionLog>,
    otlp: Option<OtlpDecisionLog>,
}

#[derive(Debug)]
struct OtlpDecisionLog {
    exporter: OtlpLogExporter,
    keys: KeyText,
}

impl NodeDecisionLog {
    /// Opens the log of `config`.
    pub fn open(
        config: &DecisionLogConfig,
        exporters: &NodeExporters,
        metrics: &NodeMetrics,
    ) -> Result<Arc<Self>, CommandError> {
        let lines = config.lines.as_ref().map(|settings| {
            DecisionLog::open(settings)
                .map_err(|error| CommandError::DecisionLog { path: settings.destination.to_string(), error })
        });
        let lines = lines.transpose()?;
        if let Some(log) = &lines {
            metrics.add_log(log.lines().clone());
        }
        let otlp = config.otlp.clone().zip(exporters.logs());
        let otlp = otlp.map(|(keys, exporter)| OtlpDecisionLog { exporter, keys });
        Ok(Arc::new(Self { lines, otlp }))
    }

    /// The log of lines, if there is one.
    pub fn lines(&self) -> Option<&LineLog> {
        self.lines.as_ref().map(DecisionLog::lines)
    }
}

impl DecisionObserver for NodeDecisionLog {
    fn record(&self, record: DecisionRecord) {
        if let Some(OtlpDecisionLog { exporter, keys }) = &self.otlp {
            let shown = record.key.iter().map(|part| {
                let text = keys.part(part);
                let value = text.strip_prefix(&*part.kind).and_then(|rest| rest.strip_prefix(':'));
                (part.kind.clone(), value.unwrap_or_default().to_owned())
            });
            exporter.record(OtlpLogRecord::of_decision(&record, shown.collect()));
        }
        if let Some(log) = &self.lines {
            log.record(record);
        }
    }

    fn record_dropped(&self, records: u64) {
        if let Some(log) = &self.lines {
            log.record_dropped(records);
        }
    }
}
