//! `/v1/tokens`: the access tokens.

use super::ControlPlane;
use super::access::{AdminPeer, OPERATE_TOKEN, Operator, SecretText};
use super::audit::AuditedAction;
use super::problem::Problem;
use super::request_parts::{JsonBody, PathParts};
use super::views::end_text;
use crate::access_token::{StoredToken, TokenRole};
use crate::past_text::past_text;
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tollgate_core::rules::short_forms::Timestamp;
use utoipa::ToSchema;

const MOST_NAME_CHARACTERS: usize = 100;

/// A token to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewToken {
    /// What it is for: the author of revisions and the actor in the audit log.
    #[schema(min_length = 1, max_length = 100)]
    name: String,
    /// What it allows.
    #[schema(value_type = String, pattern = "^(read|follow|operate)$")]
    role: TokenRole,
    /// When it expires, such as `2027-01-31T00:00:00Z`; not at all without it.
    #[schema(value_type = Option<String>)]
    expires: Option<Timestamp>,
}

/// A token that was created.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CreatedToken {
    /// Its id, by which it is revoked.
    id: String,
    /// The token itself. It is not stored and cannot be shown again.
    token: String,
}

/// A token, without its secret.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TokenView {
    /// Its id, by which it is revoked.
    id: String,
    /// What it is called.
    name: String,
    /// `read`, `follow` or `operate`.
    role: &'static str,
    /// When it was created; none for the token in the file of the node.
    created: Option<String>,
    /// When it expires, if it does.
    expires: Option<String>,
}

/// All tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TokenList {
    tokens: Vec<TokenView>,
}

/// What was revoked.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RevokedToken {
    /// The id of the token.
    revoked: String,
}

/// The tokens, without their secrets.
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens", responses((status = 200, body = TokenList)))]
pub(super) async fn list_tokens(State(plane): State<Arc<ControlPlane>>) -> Result<Json<TokenList>, Problem> {
    let file = plane.access.tokens.file().map(|_| TokenView {
        id: OPERATE_TOKEN.to_owned(),
        name: OPERATE_TOKEN.to_owned(),
        role: TokenRole::Operate.name(),
        created: None,
        expires: None,
    });
    let stored = plane.access.tokens.list().await?.into_iter().map(|token| TokenView {
        id: token.id,
        name: token.name,
        role: token.role.name(),
        created: Some(past_text(token.created)),
        expires: token.expires.map(end_text),
    });
    Ok(Json(TokenList { tokens: file.into_iter().chain(stored).collect() }))
}

/// Creates a token. It is in this response only.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", request_body = NewToken,
    responses((status = 200, body = CreatedToken)))]
pub(super) async fn create_token(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    peer: AdminPeer,
    JsonBody(new): JsonBody<NewToken>,
) -> Result<Json<CreatedToken>, Problem> {
    let name = new.name.trim();
    let is_name = (1..=MOST_NAME_CHARACTERS).contains(&name.chars().count())
        && !name.chars().any(char::is_control)
        && name != OPERATE_TOKEN;
    if !is_name {
        return Err(Problem::invalid(format!(
            "`name` must have 1 to {MOST_NAME_CHARACTERS} characters, and must not be `{OPERATE_TOKEN}`"
        )));
    }
    let now = plane.now();
    let expires = new.expires.map(|expires| expires.time);
    if expires.is_some_and(|expires| expires <= now) {
        return Err(Problem::invalid("`expires` is in the past"));
    }
    let no_random = || Problem::unavailable("the system has no random numbers");
    let (id, token) =
        (SecretText::random().ok_or_else(no_random)?, SecretText::random_token().ok_or_else(no_random)?);
    let id = id.as_str()[..16].to_owned();
    let stored = StoredToken {
        id: id.clone(),
        name: name.to_owned(),
        role: new.role,
        hash: token.digest().to_hex(),
        created: now,
        expires,
    };
    plane.repository.put_token(stored).await?;
    plane.access.tokens.read_again().await;
    let detail = format!("{name}, role {}", new.role);
    let action = AuditedAction { action: "token.create", target: id.clone(), detail, revision: None };
    plane.record(&operator, peer, action).await;
    Ok(Json(CreatedToken { id, token: token.as_str().to_owned() }))
}

/// Revokes a token, at once. Sessions that were opened with it end.
#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "tokens",
    params(("id" = String, Path, description = "The id of the token")),
    responses((status = 200, body = RevokedToken)))]
pub(super) async fn revoke_token(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    peer: AdminPeer,
    PathParts(id): PathParts<String>,
) -> Result<Json<RevokedToken>, Problem> {
    let is_revoked = if id == OPERATE_TOKEN {
        let revoked = plane.access.tokens.file().map(|file| file.revoke()).transpose();
        let removed = |error| Problem::unavailable(format!("the file cannot be removed: {error}"));
        revoked.map_err(removed)?.unwrap_or(false)
    } else {
        plane.repository.remove_token(&id).await?
    };
    plane.access.tokens.read_again().await;
    if !is_revoked {
        return Err(Problem::not_found("there is no such token"));
    }
    let action = AuditedAction { action: "token.revoke", target: id.clone(), ..AuditedAction::default() };
    plane.record(&operator, peer, action).await;
    Ok(Json(RevokedToken { revoked: id }))
}
