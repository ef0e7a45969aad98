//! Exporters of a Tollgate node.
pub mod prometheus;
