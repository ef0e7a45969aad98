//! `GET /v1/live`, `GET /v1/nodes` and `POST /v1/nodes/{id}/status`: what the fleet does.

use super::ControlPlane;
use super::problem::Problem;
use super::request_parts::{JsonBody, PathParts, QueryParts};
use crate::live::{FleetNodes, LiveRange, LiveReport, NodeState, NodeStatus, StatusError};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

/// Which figures are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LiveQuery {
    /// `5m`: five minutes in steps of a second; `1h`: an hour in steps of 15 seconds.
    #[param(default = "5m")]
    range: Option<String>,
}

/// The name of a node.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct NodePath {
    /// The id of the node, as its status has it.
    id: String,
}

/// A status was taken in.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StatusTaken {
    /// The node.
    id: String,
    /// When the next status is due, in seconds.
    next_seconds: u64,
}

/// Decisions over time, rules by share limited and events: of all nodes, as far as they are known.
#[utoipa::path(get, path = "/v1/live", tag = "traffic", params(LiveQuery), responses((status = 200, body = LiveReport)))]
pub(super) async fn show_live(
    State(plane): State<Arc<ControlPlane>>,
    QueryParts(query): QueryParts<LiveQuery>,
) -> Result<Json<LiveReport>, Problem> {
    let range = query.range.as_deref().unwrap_or("5m");
    let range = LiveRange::named(range).ok_or_else(|| Problem::malformed("`range` must be 5m or 1h"))?;
    let live = plane.live.clone();
    super::beside(move || live.report(range)).await.map(Json)
}

/// The nodes of the fleet with their status, the one that is asked first.
#[utoipa::path(get, path = "/v1/nodes", tag = "traffic", responses((status = 200, body = FleetNodes)))]
pub(super) async fn list_nodes(State(plane): State<Arc<ControlPlane>>) -> Json<FleetNodes> {
    let mut listed = plane.live.nodes().await;
    if let Some(newest) = plane.changes.borrow().revision {
        let with_status = listed.nodes.iter_mut().filter(|node| node.state != NodeState::NoStatus);
        with_status.for_each(|node| node.behind = Some(newest.saturating_sub(node.status.revision)));
    }
    Json(listed)
}

/// Takes in the status of a node that follows this control plane. The answer says when the next one is due; without it,
/// the node is not listed any more after about three times as long, and at least 15 seconds.
#[utoipa::path(post, path = "/v1/nodes/{id}/status", tag = "followers", params(NodePath), request_body = NodeStatus,
    responses((status = 200, body = StatusTaken)))]
pub(super) async fn post_status(
    State(plane): State<Arc<ControlPlane>>,
    PathParts(path): PathParts<NodePath>,
    JsonBody(status): JsonBody<NodeStatus>,
) -> Result<Json<StatusTaken>, Problem> {
    let taken = plane.live.take_in_posted(&path.id, status);
    let next = taken.map_err(|error| match error {
        StatusError::Invalid => Problem::malformed(error.to_string()),
        StatusError::TooMany => Problem::unavailable(error.to_string()),
    })?;
    Ok(Json(StatusTaken { id: path.id, next_seconds: next.as_secs() }))
}
