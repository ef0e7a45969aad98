//! `GET /v1/top`: the most frequent keys and routes.

use super::ControlPlane;
use super::problem::Problem;
use super::request_parts::QueryParts;
use crate::live::NodeTop;
use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

const DEFAULT_COUNT: usize = 20;
const MOST: usize = 1_000;

/// How much of each list is wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct TopQuery {
    /// The length of each list.
    #[param(minimum = 1, maximum = 1000)]
    count: Option<usize>,
    /// Whose requests are counted.
    #[serde(default)]
    #[param(inline)]
    scope: TopScope,
}

/// Whose requests are counted.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum TopScope {
    /// Those of all nodes, from the first 10 of each.
    #[default]
    Fleet,
    /// Those of the node that is asked.
    Node,
}

/// The keys and routes with the most requests in the last minute.
#[utoipa::path(get, path = "/v1/top", tag = "traffic", params(TopQuery), responses((status = 200, body = NodeTop)))]
pub(super) async fn list_top(
    State(plane): State<Arc<ControlPlane>>,
    QueryParts(query): QueryParts<TopQuery>,
) -> Result<Json<NodeTop>, Problem> {
    let count = query.count.unwrap_or(DEFAULT_COUNT);
    if !(1..=MOST).contains(&count) {
        return Err(Problem::malformed(format!("`count` must be a number from 1 to {MOST}")));
    }
    // One request at a time: the tables are locked meanwhile, and threads that decide write to them.
    let _turn = Arc::clone(&plane.top_turn).lock_owned().await;
    match query.scope {
        TopScope::Fleet => Ok(Json(plane.live.top_of_fleet(count).await)),
        TopScope::Node => {
            let live = plane.live.clone();
            super::beside(move || live.top_of_node(count)).await.map(Json)
        }
    }
}
