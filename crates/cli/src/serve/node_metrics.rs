//! The metrics of a node: all parts that count something, for every exporter.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_control::{MetricsSource, RenderedMetrics};
use tollgate_limiter::line_log::LineLog;
use tollgate_limiter::metrics::{MetricSamples, MetricSource, catalog};
use tollgate_telemetry::{MetricRegistry, ProcessMetrics, TextFormat};

/// The registry of a node, which the admin listener renders.
#[derive(Clone, Debug)]
pub struct NodeMetrics(pub Arc<MetricRegistry>);

impl NodeMetrics {
    /// Metrics of the process; the other parts of the node add theirs.
    pub fn new(dropped_log_lines: Arc<AtomicU64>) -> Self {
        let registry = MetricRegistry::default();
        registry.register(Arc::new(ProcessMetrics::new(env!("CARGO_PKG_VERSION"))));
        registry.register(Arc::new(LogLosses { dropped_lines: dropped_log_lines }));
        Self(Arc::new(registry))
    }

    /// Adds the metrics of a log of lines.
    pub fn add_log(&self, log: LineLog) {
        self.0.register(Arc::new(LineLogLosses(log)));
    }
}

impl MetricsSource for NodeMetrics {
    fn render(&self, accept: &str) -> RenderedMetrics {
        let format = TextFormat::accepted(Some(accept));
        let body = format.render(&self.0.collect()).into_bytes();
        RenderedMetrics { content_type: format.content_type(), body }
    }
}

/// The dropped lines of a log.
struct LineLogLosses(LineLog);

impl MetricSource for LineLogLosses {
    fn collect(&self, samples: &mut MetricSamples) {
        samples.count(&catalog::LOG_LINES_DROPPED, &[self.0.name()], self.0.dropped());
    }
}

/// The log of the process.
struct LogLosses {
    dropped_lines: Arc<AtomicU64>,
}

impl MetricSource for LogLosses {
    fn collect(&self, samples: &mut MetricSamples) {
        let dropped = self.dropped_lines.load(Ordering::Relaxed);
        samples.count(&catalog::LOG_LINES_DROPPED, &["process"], dropped);
    }
}
