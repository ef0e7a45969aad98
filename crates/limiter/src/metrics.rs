//! Metrics: what is counted, and how it reaches the exporters.
//!
//! [`catalog`] names every metric of Tollgate once. Each part of a node that counts something is a [`MetricSource`]; an
//! exporter collects all of them into [`MetricSamples`] when it is due, so that all exporters have the same totals.
//! Decisions are counted without locks, in counters of the thread that decides (`decision_counters.rs`).

pub mod catalog;
pub(crate) mod decision_counters;
mod decision_outcome;
mod decision_record;
mod histogram;
mod samples;
mod spans;

pub use catalog::{MetricDefinition, MetricKind};
pub use decision_counters::{DecisionIncrements, DecisionMeter, OutcomeCounts};
pub use decision_outcome::DecisionOutcome;
pub use decision_record::{DecisionObserver, DecisionRecord, KeyPart};
pub use histogram::{BATCH_BOUNDS, Histogram, HistogramSnapshot, LATENCY_BOUNDS_NS};
pub use samples::{LabelValues, MetricFamily, MetricSample, MetricSamples, MetricSource, MetricValue};
pub use spans::{AttributeValue, SpanRecord, SpanSink};
