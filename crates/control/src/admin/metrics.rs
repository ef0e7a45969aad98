//! The metrics of the node, for Prometheus and the like.

use super::problem::Problem;
use http::HeaderMap;
use std::sync::Arc;
use tollgate_http::headers::ACCEPT;

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

/// Renders the metrics beside the threads of the runtime.
pub(super) async fn render(
    source: &Arc<dyn MetricsSource>,
    headers: &HeaderMap,
) -> Result<RenderedMetrics, Problem> {
    let lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
    let accept = lines.collect::<Vec<_>>().join(", ");
    let source = Arc::clone(source);
    super::beside(move || source.render(&accept)).await
}
