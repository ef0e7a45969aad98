//! `GET /metrics`: the counters of the node, for Prometheus and the like.

use http::HeaderMap;
use std::sync::Arc;
use tollgate_http::headers::ACCEPT;
use tollgate_http::{FullResponse, response};

/// Renders the metrics of a node.
pub trait MetricsSource: Send + Sync {
    /// The metrics in the best format that `accept`, the value of the `Accept` header, allows. Empty means any. It is
    /// called in a thread that may block.
    fn render(&self, accept: &str) -> RenderedMetrics;
}

/// Metrics in an exposition format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedMetrics {
    /// The media type of the format.
    pub content_type: &'static str,
    /// The metrics.
    pub body: Vec<u8>,
}

/// Responds with the metrics, which are rendered beside the threads of the runtime.
pub(super) async fn respond(source: &Arc<dyn MetricsSource>, headers: &HeaderMap) -> FullResponse {
    let lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
    let accept = lines.collect::<Vec<_>>().join(", ");
    let source = Arc::clone(source);
    match tokio::task::spawn_blocking(move || source.render(&accept)).await {
        Ok(RenderedMetrics { content_type, body }) => response::content(content_type, body),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be rendered");
            response::unavailable("the metrics cannot be rendered; see the log\n")
        }
    }
}
