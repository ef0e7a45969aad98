//! `/v1/keys/{kind}/{value}/grant`: extra tokens for a client.

use super::ControlPlane;
use super::access::{AdminPeer, Operator, SecretText};
use super::audit::AuditedAction;
use super::keys::{ClientKey, checked_text};
use super::lists::expiry;
use super::problem::Problem;
use super::request_parts::{JsonBody, PathParts};
use crate::control_state::{GrantRecord, MOST_GRANTS};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tollgate_core::rules::short_forms::{DurationText, Timestamp};
use utoipa::ToSchema;

/// The most tokens of a grant.
const MOST_TOKENS: u64 = 1_000_000_000;
/// The characters of an id.
const ID_CHARACTERS: usize = 12;

/// Extra tokens to give.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewGrant {
    /// How many.
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    tokens: u64,
    /// The only rule whose limits it extends; all rules without.
    rule: Option<String>,
    /// When it ends, such as `2027-01-31T00:00:00Z`.
    #[schema(value_type = Option<String>)]
    expires: Option<Timestamp>,
    /// How long it lasts, such as `10m`, instead of `expires`.
    #[serde(rename = "for")]
    #[schema(value_type = Option<String>)]
    lasting: Option<DurationText>,
    /// Why.
    #[schema(max_length = 1024)]
    reason: Option<String>,
}

/// A grant that was made or ended.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct GrantId {
    /// Its id.
    id: String,
}

/// Gives a client extra tokens: a request that a limit would refuse is admitted as long as there are any. The client has
/// exactly so many more in the whole fleet, until the end of the grant.
#[utoipa::path(post, path = "/v1/keys/{kind}/{value}/grant", tag = "keys", params(ClientKey),
    request_body = NewGrant, responses((status = 200, body = GrantId)))]
pub(super) async fn add_grant(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    peer: AdminPeer,
    PathParts(key): PathParts<ClientKey>,
    JsonBody(new): JsonBody<NewGrant>,
) -> Result<Json<GrantId>, Problem> {
    let key = key.checked()?;
    let repository = plane.shared_state()?;
    if !(1..=MOST_TOKENS).contains(&new.tokens) {
        return Err(Problem::invalid(format!("`tokens` must be a number from 1 to {MOST_TOKENS}")));
    }
    let now = plane.now();
    let expires = expiry(now, new.expires, new.lasting)?;
    let expires = expires.ok_or_else(|| Problem::invalid("a grant needs `for` or `expires`"))?.time;
    let rule = new.rule.map(|rule| checked_text("rule", rule)).transpose()?;
    if let Some(rule) = &rule
        && !plane.limiter.has_rule(rule)
    {
        return Err(Problem::invalid(format!("there is no rule `{rule}`")));
    }
    let reason = new.reason.map(|reason| checked_text("reason", reason)).transpose()?.unwrap_or_default();
    let random =
        SecretText::random_token().ok_or_else(|| Problem::unavailable("there are no random numbers"))?;
    let id: String =
        random.as_str().chars().filter(char::is_ascii_alphanumeric).take(ID_CHARACTERS).collect();
    let record = GrantRecord {
        id: id.clone(),
        kind: key.kind.clone(),
        value: key.value.clone(),
        rule,
        tokens: new.tokens,
        created: now,
        expires,
        author: operator.name.clone(),
        reason: reason.clone(),
    };
    let stored = repository
        .update_control_state(|state| {
            state.grants.retain(|grant| grant.expires > now);
            if state.grants.len() < MOST_GRANTS {
                state.grants.push(record.clone());
            }
        })
        .await?;
    if !stored.grants.iter().any(|grant| grant.id == id) {
        return Err(Problem::conflict(format!("there are {MOST_GRANTS} grants already")));
    }
    let detail = format!("{} tokens; {reason}", new.tokens);
    let target = format!("{}, grant {id}", key.shown());
    let action = AuditedAction { action: "grant.add", target, detail, revision: None };
    plane.record(&operator, peer, action).await;
    Ok(Json(GrantId { id }))
}

/// Ends a grant: the tokens that are left are gone.
#[utoipa::path(delete, path = "/v1/keys/{kind}/{value}/grant/{id}", tag = "keys",
    params(ClientKey, ("id" = String, Path, description = "The id of the grant")),
    responses((status = 200, body = GrantId)))]
pub(super) async fn end_grant(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    peer: AdminPeer,
    PathParts((kind, value, id)): PathParts<(String, String, String)>,
) -> Result<Json<GrantId>, Problem> {
    let key = ClientKey { kind, value }.checked()?;
    let repository = plane.shared_state()?;
    let is_meant = |grant: &GrantRecord| grant.id == id && grant.kind == key.kind && grant.value == key.value;
    if !repository.control_state().await?.grants.iter().any(is_meant) {
        return Err(Problem::not_found("this key has no such grant"));
    }
    repository.update_control_state(|state| state.grants.retain(|grant| !is_meant(grant))).await?;
    let target = format!("{}, grant {id}", key.shown());
    plane
        .record(&operator, peer, AuditedAction { action: "grant.end", target, ..AuditedAction::default() })
        .await;
    Ok(Json(GrantId { id }))
}
