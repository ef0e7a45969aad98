//! Metrics and records of decisions.

pub(crate) mod decision_counters;
mod decision_record;

pub use decision_counters::DecisionOutcome;
pub use decision_record::{DecisionObserver, DecisionRecord, KeyPart};
