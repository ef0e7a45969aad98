//! Servers that receive telemetry, and the totals that they received in one form.

#![expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a test without its servers has failed")]

mod test_collector;
mod test_statsd_server;
pub mod totals;

pub use test_collector::{Answer, Received, TestCollector};
pub use test_statsd_server::TestStatsdServer;
