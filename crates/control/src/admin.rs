//! The admin listener of a node: health, metrics and top keys.
//!
//! A group of endpoints has a file in `admin/`, its rows in [`ENDPOINTS`] and its line in [`AdminState::respond`]. No
//! endpoint reads a body. What takes long to answer runs in a thread that decides no requests.

mod metrics;
mod top;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use metrics::MetricsRenderer;
pub use metrics::{MetricsSource, RenderedMetrics};
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tollgate_http::endpoint::{EndpointMethods, EndpointTable};
use tollgate_http::{FullResponse, origin};
use tollgate_limiter::Limiter;
use tollgate_listen::{ListenerSetup, Readiness, ServeOptions, health_response, serve};
use top::TopLists;

/// An endpoint of the admin listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdminEndpoint {
    Health,
    Ready,
    Metrics,
    Top,
}

const ENDPOINTS: EndpointTable<AdminEndpoint> = EndpointTable(&[
    ("/healthz", EndpointMethods::Read, AdminEndpoint::Health),
    ("/readyz", EndpointMethods::Read, AdminEndpoint::Ready),
    ("/metrics", EndpointMethods::Read, AdminEndpoint::Metrics),
    ("/v1/top", EndpointMethods::Read, AdminEndpoint::Top),
]);

/// The most open connections: a few scrapers, probes and operators.
const MOST_CONNECTIONS: u32 = 100;
/// How long a request in flight may take at shutdown. The doors are drained before.
const GRACE: Duration = Duration::from_secs(1);

/// What the admin listener needs to respond.
pub struct AdminListener {
    /// What `/readyz` reports.
    pub readiness: Arc<Readiness>,
    /// What `/metrics` reports.
    pub metrics: Arc<dyn MetricsSource>,
    /// What `/v1/top` reports on.
    pub limiter: Arc<Limiter>,
}

impl fmt::Debug for AdminListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminListener").field("readiness", &self.readiness).finish_non_exhaustive()
    }
}

impl AdminListener {
    /// Serves until `shutdown` resolves, then drains. Returns the number of connections that were cut because they were
    /// still busy at the end of the grace period.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> usize {
        let Self { readiness, metrics, limiter } = self;
        let metrics = MetricsRenderer::new(metrics);
        let admin = Arc::new(AdminState { readiness, metrics, top: TopLists::new(limiter) });
        let connect = |_peer| {
            let admin = Arc::clone(&admin);
            service_fn(move |request| {
                let admin = Arc::clone(&admin);
                async move { Ok::<_, Infallible>(admin.respond(request).await) }
            })
        };
        let options =
            ServeOptions { most_connections: MOST_CONNECTIONS, grace: GRACE, ..ServeOptions::default() };
        serve(listener, ListenerSetup::default(), connect, shutdown, options).await
    }
}

/// What the connections of the admin listener share.
struct AdminState {
    readiness: Arc<Readiness>,
    metrics: MetricsRenderer,
    top: TopLists,
}

impl AdminState {
    async fn respond(&self, request: Request<Incoming>) -> FullResponse {
        let (head, _) = request.into_parts();
        let endpoint = match ENDPOINTS.find(&head.method, head.uri.path()) {
            Ok(endpoint) => endpoint,
            Err(response) => return *response,
        };
        // A web page must not read what an operator's browser can reach.
        if let Err(error) = origin::verify(&head.headers) {
            return error.response();
        }
        match endpoint {
            AdminEndpoint::Health => health_response(),
            AdminEndpoint::Ready => self.readiness.response(),
            AdminEndpoint::Metrics => self.metrics.respond(&head.headers).await,
            AdminEndpoint::Top => self.top.respond(head.uri.query()).await,
        }
    }
}
