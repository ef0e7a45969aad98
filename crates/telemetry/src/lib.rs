//! The exporters of a Tollgate node.
//!
//! Each part of a node that counts something is a [`MetricSource`](tollgate_limiter::metrics::MetricSource) in a
//! [`MetricRegistry`]. An exporter collects the values when it is due and writes them out, so all exporters have the same
//! totals, and the parts of the node never wait for an exporter.
//!
//! ```
//! use std::sync::Arc;
//! use tollgate_telemetry::{MetricRegistry, ProcessMetrics, TextFormat};
//!
//! let registry = Arc::new(MetricRegistry::default());
//! registry.register(Arc::new(ProcessMetrics::new("1.2.3")));
//!
//! let text = TextFormat::Prometheus.render(&registry.collect());
//! assert!(text.contains("tollgate_build_info{version=\"1.2.3\"} 1.0\n"));
//! ```
//!
//! - [`TextFormat`] writes the text that Prometheus scrapes.
//! - [`OtlpExporter`] pushes metrics to an OpenTelemetry collector, and also log records and spans.
//! - [`StatsdExporter`] sends the growth of counters to a StatsD server.

mod export_failures;
mod number_text;
mod otlp;
mod process;
pub mod prometheus;
mod registry;
mod statsd;

pub use otlp::{
    LogSeverity, OtlpExporter, OtlpLogExporter, OtlpLogRecord, OtlpSettings, OtlpSettingsError,
    OtlpSpanExporter,
};
pub use process::ProcessMetrics;
pub use prometheus::TextFormat;
pub use registry::MetricRegistry;
pub use statsd::{StatsdExporter, StatsdSettings, StatsdSettingsError};
