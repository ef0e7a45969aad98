//! The metrics of a node: its version, and the lines that its log has lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_control::{MetricsSource, RenderedMetrics};

/// Renders the version of the node.
pub struct BuildInfo {
    /// Lines of the log that could not be written.
    pub dropped_log_lines: Arc<AtomicU64>,
}

impl MetricsSource for BuildInfo {
    fn render(&self, _accept: &str) -> RenderedMetrics {
        let version = env!("CARGO_PKG_VERSION");
        let dropped = self.dropped_log_lines.load(Ordering::Relaxed);
        let body = format!(
            "# HELP tollgate_build_info Version of the node.\n\
             # TYPE tollgate_build_info gauge\n\
             tollgate_build_info{{version=\"{version}\"}} 1\n\
             # HELP tollgate_log_lines_dropped_total Lines of the process log that could not be written.\n\
             # TYPE tollgate_log_lines_dropped_total counter\n\
             tollgate_log_lines_dropped_total {dropped}\n"
        );
        RenderedMetrics { content_type: "text/plain; version=0.0.4; charset=utf-8", body: body.into_bytes() }
    }
}
