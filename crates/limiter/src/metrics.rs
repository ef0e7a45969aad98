//! Metrics: what is counted, and how it reaches the exporters.
//!
//! [`catalog`] names every metric of Tollgate once. Each part of a node that counts something is a [`MetricSource`]; an
//! exporter collects all of them into [`MetricSamples`] when it is due, so that all exporters have the same totals.

pub mod catalog;
mod decision_record;
mod histogram;
mod samples;
mod spans;

pub use catalog::{MetricDefinition, MetricKind};
pub use decision_record::{DecisionObserver, DecisionRecord, KeyPart};
pub use histogram::{BATCH_BOUNDS, Histogram, HistogramSnapshot, LATENCY_BOUNDS_NS};
pub use samples::{LabelValues, MetricFamily, MetricSample, MetricSamples, MetricSource, MetricValue};
pub use spans::{AttributeValue, SpanRecord, SpanSink};

/// The value of the label `outcome`. A decision has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DecisionOutcome {
    /// Admitted at once, or without any limit.
    Allowed,
    /// Refused by a limit, a penalty or as a hot key.
    Limited,
    /// Admitted; a rule in shadow mode would have refused it.
    ShadowLimited,
    /// Refused by the deny list.
    Denied,
    /// Made without the store, whatever the result.
    Degraded,
    /// Admitted after a wait in a queue.
    Queued,
    /// Refused by a rule that sheds load.
    Shed,
    /// Delayed, and then admitted or refused.
    Tarpitted,
    /// Admitted with a flag for the upstream.
    Flagged,
}

impl DecisionOutcome {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Allowed,
        Self::Limited,
        Self::ShadowLimited,
        Self::Denied,
        Self::Degraded,
        Self::Queued,
        Self::Shed,
        Self::Tarpitted,
        Self::Flagged,
    ];

    /// The value of the label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Limited => "limited",
            Self::ShadowLimited => "shadow_limited",
            Self::Denied => "denied",
            Self::Degraded => "degraded",
            Self::Queued => "queued",
            Self::Shed => "shed",
            Self::Tarpitted => "tarpitted",
            Self::Flagged => "flagged",
        }
    }
}
