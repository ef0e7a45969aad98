//! `GET /v1/top`: the most frequent keys and routes of the node.

use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Mutex;
use tollgate_http::{FullResponse, HttpError, response};
use tollgate_limiter::{Limiter, TopKey, TopRoute};

const DEFAULT_COUNT: usize = 20;
const MOST: usize = 1_000;

/// Lists top keys, for one request at a time: the tables are locked meanwhile, and threads that decide write to them.
pub(super) struct TopLists {
    limiter: Arc<Limiter>,
    turn: Arc<Mutex<()>>,
}

impl TopLists {
    pub(super) fn new(limiter: Arc<Limiter>) -> Self {
        Self { limiter, turn: Arc::default() }
    }

    /// Responds with the first `count` of each list.
    pub(super) async fn respond(&self, query: Option<&str>) -> FullResponse {
        let Some(count) = count(query.unwrap_or_default()) else {
            let error = HttpError::bad_request(format!("`count` must be a number from 1 to {MOST}"));
            return error.in_field("count").response();
        };
        let limiter = Arc::clone(&self.limiter);
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let listed = tokio::task::spawn_blocking(move || {
            let body = list(&limiter, count).to_string().into_bytes();
            drop(turn);
            body
        });
        match listed.await {
            Ok(body) => response::ok(body),
            Err(error) => {
                tracing::error!(%error, "top keys cannot be listed");
                response::unavailable("the top keys cannot be listed; see the log\n")
            }
        }
    }
}

/// The count of the query; none if it is invalid. Other parameters are ignored.
fn count(query: &str) -> Option<usize> {
    let given = query.split('&').find_map(|parameter| parameter.strip_prefix("count="));
    match given {
        None => Some(DEFAULT_COUNT),
        Some(given) => given.parse().ok().filter(|count| (1..=MOST).contains(count)),
    }
}

fn list(limiter: &Limiter, count: usize) -> Value {
    let top = limiter.top(count);
    let keys = |keys: &[TopKey]| -> Vec<Value> { keys.iter().map(key).collect() };
    json!({
        "window_seconds": top.window_seconds,
        "limited": keys(&top.limited),
        "allowed": keys(&top.allowed),
        "routes": top.routes.iter().map(route).collect::<Vec<_>>(),
    })
}

fn key(TopKey { kind, name, fingerprint, count }: &TopKey) -> Value {
    json!({ "kind": kind, "name": name, "fingerprint": fingerprint, "count": count })
}

fn route(TopRoute { route, count }: &TopRoute) -> Value {
    json!({ "route": route, "count": count })
}
