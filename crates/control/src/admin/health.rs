//! Health, readiness and metrics: endpoints that need no token.

use super::ControlPlane;
use super::problem::Problem;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use std::sync::Arc;
use tollgate_http::response;
use tollgate_listen::health_response;

/// The process answers.
#[utoipa::path(get, path = "/healthz", tag = "health", security(()),
    responses((status = 200, body = String, content_type = "text/plain")))]
pub(super) async fn show_health() -> Response {
    health_response().map(Body::new)
}

/// Whether the node should receive traffic: rules are in force, and it is not about to stop.
#[utoipa::path(get, path = "/readyz", tag = "health", security(()),
    responses((status = 200, body = String, content_type = "text/plain"),
              (status = 503, description = "Not ready; the reason", body = String, content_type = "text/plain")))]
pub(super) async fn show_readiness(State(plane): State<Arc<ControlPlane>>) -> Response {
    plane.readiness.response().map(Body::new)
}

/// The metrics of the node, for Prometheus. Open if the listener has a loopback address, else any token is needed.
#[utoipa::path(get, path = "/metrics", tag = "health",
    responses((status = 200, description = "Prometheus text or OpenMetrics, by `Accept`", body = String, content_type = "text/plain")))]
pub(super) async fn show_metrics(
    State(plane): State<Arc<ControlPlane>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let rendering = plane.metrics.render_for(&headers).await?;
    Ok(response::content(rendering.content_type, rendering.body).map(Body::new))
}
