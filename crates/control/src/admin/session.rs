//! `/v1/session`: login and logout of the page.

use super::ControlPlane;
use super::access::{
    AdminPeer, Credential, Operator, SESSION_COOKIE, SESSION_SECONDS, SecretDigest, session_cookie,
};
use super::problem::Problem;
use super::request_parts::JsonBody;
use super::views::end_text;
use crate::access_token::TokenRole;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderValue};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// A login.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LoginRequest {
    /// A token.
    token: String,
}

/// The caller, as the server knows it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SessionView {
    /// The name of the token.
    name: String,
    /// `read` or `operate`.
    role: &'static str,
    /// When the session, or the token, ends.
    expires: Option<String>,
}

impl SessionView {
    fn of(operator: &Operator) -> Self {
        let expires = operator.expires.map(end_text);
        Self { name: operator.name.clone(), role: operator.role.name(), expires }
    }
}

/// Logs in with a token. The response sets the cookie of a session.
#[utoipa::path(post, path = "/v1/session", tag = "session", security(()), request_body = LoginRequest,
    responses((status = 200, body = SessionView), (status = 429, description = "Too many attempts from this address",
    body = super::problem::ProblemBody<'static>, content_type = "application/problem+json")))]
pub(super) async fn log_in(
    State(plane): State<Arc<ControlPlane>>,
    peer: AdminPeer,
    JsonBody(login): JsonBody<LoginRequest>,
) -> Result<Response, Problem> {
    plane.access.logins.attempt(peer.address.ip())?;
    let now = plane.now();
    let digest = SecretDigest::of(login.token.trim());
    let Some(token) = plane.access.tokens.find(digest, now).await else {
        tracing::warn!(from = %peer.address, "login refused: the token is not valid");
        return Err(Problem::unauthorized("the token is not valid"));
    };
    if token.role() == TokenRole::Follow {
        return Err(Problem::forbidden(
            "the token is for nodes that follow; the page needs `read` or `operate`",
        ));
    }
    let opened = plane.access.sessions.open(digest, now);
    let (cookie, expires) = opened.ok_or_else(|| Problem::unavailable("the system has no random numbers"))?;
    let operator = token.operator(Credential::Session);
    tracing::info!(from = %peer.address, name = operator.name, "login");
    let expires = operator.expires.map_or(expires, |token| token.min(expires));
    let view = SessionView::of(&Operator { expires: Some(expires), ..operator });
    Ok(with_cookie(&plane, cookie.as_str(), SESSION_SECONDS, Json(view).into_response()))
}

/// The caller: the name and the role of its token.
#[utoipa::path(get, path = "/v1/session", tag = "session", responses((status = 200, body = SessionView)))]
pub(super) async fn show_session(operator: Operator) -> Json<SessionView> {
    Json(SessionView::of(&operator))
}

/// Logs out: the session ends, and the cookie is removed.
#[utoipa::path(delete, path = "/v1/session", tag = "session", responses((status = 200, body = SessionView)))]
pub(super) async fn log_out(
    State(plane): State<Arc<ControlPlane>>,
    headers: HeaderMap,
    operator: Operator,
) -> Response {
    if let Some(cookie) = session_cookie(&headers) {
        plane.access.sessions.close(cookie);
    }
    with_cookie(&plane, "", 0, Json(SessionView::of(&operator)).into_response())
}

/// Sets the cookie of the session. No script can read it, and no page of another site sends it.
fn with_cookie(plane: &ControlPlane, value: &str, seconds: u64, mut response: Response) -> Response {
    let secure = if plane.access.hosts.is_secure { "; Secure" } else { "" };
    let cookie =
        format!("{SESSION_COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}
