//! The counters of the node, for Prometheus and the like.
//!
//! However many clients scrape, one rendering runs at a time, and those that wait share the next one: threads that render
//! must not take the cores from threads that decide.

use super::problem::Problem;
use bytes::Bytes;
use http::HeaderMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Mutex;
use tokio::task::JoinError;
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

/// Renders metrics, one request at a time.
pub(super) struct MetricsRenderer {
    source: Arc<dyn MetricsSource>,
    /// The number of requests so far.
    arrivals: AtomicU64,
    /// The last rendering, while requests wait that can use it.
    last: Arc<Mutex<Option<SharedRendering>>>,
}

/// A rendering for all requests that arrived before it began.
#[derive(Clone)]
pub(super) struct SharedRendering {
    accept: String,
    arrivals: u64,
    pub(super) content_type: &'static str,
    pub(super) body: Bytes,
}

impl MetricsRenderer {
    pub(super) fn new(source: Arc<dyn MetricsSource>) -> Self {
        Self { source, arrivals: AtomicU64::new(0), last: Arc::default() }
    }

    /// The metrics as they are after the arrival of the request with `headers`.
    pub(super) async fn render_for(&self, headers: &HeaderMap) -> Result<SharedRendering, Problem> {
        let lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
        self.render(lines.collect::<Vec<_>>().join(", ")).await.map_err(|error| {
            tracing::error!(%error, "metrics cannot be rendered");
            Problem::unavailable("the metrics cannot be rendered; see the log")
        })
    }

    async fn render(&self, accept: String) -> Result<SharedRendering, JoinError> {
        let arrival = self.arrivals.fetch_add(1, Ordering::SeqCst);
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some(shared) = last.as_ref()
            && shared.accept == accept
            && arrival < shared.arrivals
        {
            return Ok(shared.clone());
        }
        let arrivals = self.arrivals.load(Ordering::SeqCst);
        let source = Arc::clone(&self.source);
        // The lock is released by the thread: a client that disconnects does not make room for another rendering.
        tokio::task::spawn_blocking(move || {
            *last = None;
            let RenderedMetrics { content_type, body } = source.render(&accept);
            let shared = SharedRendering { accept, arrivals, content_type, body: body.into() };
            *last = (arrivals > arrival + 1).then(|| shared.clone());
            shared
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use std::task::Poll;

    /// Metrics that take as long as the test wants, and contain the number of renderings.
    struct GatedMetrics {
        gate: parking_lot::Mutex<mpsc::Receiver<()>>,
        renderings: Arc<AtomicUsize>,
    }

    impl MetricsSource for GatedMetrics {
        fn render(&self, _: &str) -> RenderedMetrics {
            let number = self.renderings.fetch_add(1, Ordering::SeqCst) + 1;
            let _ = self.gate.lock().recv();
            RenderedMetrics { content_type: "text/plain", body: number.to_string().into_bytes() }
        }
    }

    #[tokio::test]
    async fn requests_that_wait_share_the_next_rendering() {
        let (open, gate) = mpsc::channel();
        let renderings = Arc::new(AtomicUsize::new(0));
        let source =
            GatedMetrics { gate: parking_lot::Mutex::new(gate), renderings: Arc::clone(&renderings) };
        let renderer = MetricsRenderer::new(Arc::new(source));
        let mut requests: Vec<_> = (0..10).map(|_| Box::pin(renderer.render(String::new()))).collect();
        let mut other = Box::pin(renderer.render("other".to_owned()));
        // Each is polled once: the first renders, the others wait.
        for request in &mut requests {
            assert!(std::future::poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx).is_pending())).await);
        }
        assert!(std::future::poll_fn(|cx| Poll::Ready(other.as_mut().poll(cx).is_pending())).await);
        // A client that disconnects does not start another rendering.
        drop(requests.remove(0));
        (0..3).for_each(|_| open.send(()).unwrap());
        for request in requests {
            assert_eq!(request.await.unwrap().body, "2");
        }
        assert_eq!(other.await.unwrap().body, "3", "another format");
        assert_eq!(renderings.load(Ordering::SeqCst), 3);
        assert!(renderer.last.lock().await.is_none(), "nothing is kept that no request waits for");
        drop(open);
        assert_eq!(
            renderer.render(String::new()).await.unwrap().body,
            "4",
            "a later request gets later metrics"
        );
    }
}
