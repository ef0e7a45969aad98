//! The tests of the exporters, as one binary.

#![allow(clippy::unwrap_used, clippy::panic)] // A failed precondition ends the test.

mod cardinality;
mod otlp_failures;
mod otlp_logs;
mod otlp_metrics;
mod otlp_spans;
mod statsd;
mod statsd_failures;
mod test_node;
