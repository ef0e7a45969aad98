//! `GET /v1/top`: the most frequent keys and routes.

use super::ControlPlane;
use super::problem::Problem;
use super::request_parts::QueryParts;
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tollgate_limiter::{TopKey, TopKeys, TopRoute};
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
}

/// The most frequent keys and routes of about the last minute.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TopLists {
    /// The time that is counted.
    window_seconds: u64,
    /// The keys with the most refused requests.
    limited: Vec<TopKeyView>,
    /// The keys with the most admitted requests.
    allowed: Vec<TopKeyView>,
    /// The routes with the most requests.
    routes: Vec<TopRouteView>,
}

/// A frequent key.
#[derive(Debug, Serialize, ToSchema)]
struct TopKeyView {
    /// The kind of the identity.
    kind: String,
    /// The key, shortened if it is a credential.
    name: String,
    /// Tells shortened keys apart.
    fingerprint: String,
    /// How often, estimated.
    count: u64,
}

/// A frequent route.
#[derive(Debug, Serialize, ToSchema)]
struct TopRouteView {
    /// The template.
    route: String,
    /// How often, estimated.
    count: u64,
}

/// The keys and routes with the most requests at this node.
#[utoipa::path(get, path = "/v1/top", tag = "traffic", params(TopQuery), responses((status = 200, body = TopLists)))]
pub(super) async fn list_top(
    State(plane): State<Arc<ControlPlane>>,
    QueryParts(query): QueryParts<TopQuery>,
) -> Result<Json<TopLists>, Problem> {
    let count = query.count.unwrap_or(DEFAULT_COUNT);
    if !(1..=MOST).contains(&count) {
        return Err(Problem::malformed(format!("`count` must be a number from 1 to {MOST}")));
    }
    let limiter = Arc::clone(&plane.limiter);
    super::beside(move || TopLists::of(&limiter.top(count))).await.map(Json)
}

impl TopLists {
    fn of(top: &TopKeys) -> Self {
        let keys = |keys: &[TopKey]| keys.iter().map(TopKeyView::of).collect();
        Self {
            window_seconds: top.window_seconds,
            limited: keys(&top.limited),
            allowed: keys(&top.allowed),
            routes: top.routes.iter().map(TopRouteView::of).collect(),
        }
    }
}

impl TopKeyView {
    fn of(key: &TopKey) -> Self {
        let TopKey { kind, name, fingerprint, count, .. } = key;
        Self {
            kind: kind.to_string(),
            name: name.to_string(),
            fingerprint: fingerprint.to_string(),
            count: *count,
        }
    }
}

impl TopRouteView {
    fn of(route: &TopRoute) -> Self {
        Self { route: route.route.to_string(), count: route.count }
    }
}
