//! `GET /v1/control-state`: grants and the emergency limit, for nodes that follow this control plane. Grants name API keys,
//! so a token that may only read does not get them.

use super::ControlPlane;
use super::problem::Problem;
use super::publish::has_tag;
use crate::control_state::ControlState;
use crate::repository::{KnownControlState, RuleRepository};
use crate::revision::text_digest;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::header::ETAG;
use http::{HeaderMap, HeaderValue};
use std::sync::Arc;
use tollgate_http::response;

/// The characters of a digest in an entity tag.
const TAG_DIGITS: usize = 16;

/// The control state as it is stored: the emergency limit, and all grants with the identities that they are for.
#[utoipa::path(get, path = "/v1/control-state", tag = "followers",
    params(("If-None-Match" = Option<String>, Header, description = "The ETag of the state that the node has")),
    responses(
        (status = 200, body = ControlState, content_type = "application/json",
         headers(("ETag" = String, description = "Changes with the state"))),
        (status = 304, description = "The node has the newest state")))]
pub(super) async fn show_control_state(
    State(plane): State<Arc<ControlPlane>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let state = plane.control_state().await?;
    let json = serde_json::to_string(&state).map_err(|error| Problem::unavailable(error.to_string()))?;
    // A failover of the store may lose a change: then another one has the same version.
    let tag = format!("\"{}-{}\"", state.version, &text_digest(&json)[..TAG_DIGITS]);
    let tag = HeaderValue::from_str(&tag).map_err(|error| Problem::unavailable(error.to_string()))?;
    if has_tag(&headers, tag.as_bytes()) {
        return Ok(response::not_modified(tag).map(Body::new));
    }
    let mut response = response::content("application/json", json.into_bytes()).map(Body::new);
    response.headers_mut().insert(ETAG, tag);
    Ok(response)
}

impl ControlPlane {
    /// The control state; while the repository is unavailable, as this node read it last.
    async fn control_state(&self) -> Result<ControlState, Problem> {
        self.control_state_if(|known| known.is_read).await
    }

    /// The control state that is in force on this node. Without a state that was read, that is none.
    pub(super) async fn control_state_in_force(&self) -> Result<ControlState, Problem> {
        self.control_state_if(|known| known.is_read || matches!(self.repository, RuleRepository::Shared(_)))
            .await
    }

    /// The control state; while the repository is unavailable, the known one if it is `usable`.
    async fn control_state_if(
        &self,
        usable: impl FnOnce(&KnownControlState) -> bool,
    ) -> Result<ControlState, Problem> {
        let Some(followed) = self.rule_owner.followed() else {
            return match self.repository.control_state().await {
                Ok(state) => Ok(state),
                Err(error) => {
                    let known = self.repository.known_control_state();
                    if usable(&known) { Ok(known.state) } else { Err(error.into()) }
                }
            };
        };
        let state = followed.state().ok_or_else(|| {
            Problem::unavailable(format!(
                "the control plane {} has not told its control state to this node",
                followed.url
            ))
        })?;
        Ok((*state).clone())
    }
}
