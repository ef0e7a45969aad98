//! Metrics: what is counted, and how it reaches the exporters.
//!
//! [`catalog`] names every metric of Tollgate once. Each part of a node that counts something is a [`MetricSource`]; an
//! exporter collects all of them into [`MetricSamples`] when it is due, so that all exporters have the same totals.

pub mod catalog;
mod histogram;
mod samples;

pub use catalog::{MetricDefinition, MetricKind};
pub use histogram::{BATCH_BOUNDS, Histogram, HistogramSnapshot, LATENCY_BOUNDS_NS};
pub use samples::{LabelValues, MetricFamily, MetricSample, MetricSamples, MetricSource, MetricValue};
