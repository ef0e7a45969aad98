//! `/v1/keys/{kind}/{value}/grant` and `/v1/grants`: extra tokens for a client.

use super::ControlPlane;
use super::access::{AdminPeer, Operator, SecretText};
use super::audit::AuditedAction;
use super::keys::{ClientKey, checked_text};
use super::lists::expiry;
use super::problem::Problem;
use super::request_parts::{JsonBody, PathParts};
use super::views::{end_text, masked_key};
use crate::control_state::{GrantRecord, MOST_GRANTS};
use crate::past_text::past_text;
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tollgate_core::rate::grouped;
use tollgate_core::request::NamedIdentity;
use tollgate_core::rules::short_forms::{DurationText, Timestamp};
use utoipa::ToSchema;

/// The most tokens of a grant.
const MOST_TOKENS: u64 = 1_000_000_000;
/// The characters of an id.
const ID_CHARACTERS: usize = 12;

/// The longest id that a caller may choose.
const LONGEST_ID: usize = 64;

/// Extra tokens to give.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewGrant {
    /// An id of up to 64 letters, digits, `-` and `_`, so that the request can be repeated: the same grant is given once as long as it lasts.
    /// Chosen by the server without it.
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9_-]+$")]
    id: Option<String>,
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

/// A grant in force.
#[derive(Debug, Serialize, ToSchema)]
struct GrantView {
    /// Its id.
    id: String,
    /// The kind of the identity.
    kind: String,
    /// The identity; of an API key only the start.
    value: String,
    /// The only rule that it is for.
    rule: Option<String>,
    /// How many tokens it had.
    tokens: u64,
    /// When it was given.
    created: String,
    /// When it ends.
    expires: String,
    /// The operator.
    author: String,
    /// Why.
    reason: String,
}

/// The grants in force.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct GrantList {
    /// The one that ends first comes first.
    grants: Vec<GrantView>,
}

/// A grant that was made or ended.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct GrantId {
    /// Its id.
    id: String,
}

/// The grants in force, of all clients.
#[utoipa::path(get, path = "/v1/grants", tag = "keys", responses((status = 200, body = GrantList)))]
pub(super) async fn list_grants(State(plane): State<Arc<ControlPlane>>) -> Result<Json<GrantList>, Problem> {
    let now = plane.now();
    let mut grants = plane.control_state_in_force().await?.grants;
    grants.retain(|grant| grant.expires > now);
    grants.sort_by(|one, other| (one.expires, &one.id).cmp(&(other.expires, &other.id)));
    Ok(Json(GrantList { grants: grants.into_iter().map(GrantView::from).collect() }))
}

/// Gives a client extra tokens: a request that a limit would refuse is admitted as long as there are any. The client has
/// exactly so many more in the whole fleet, until the end of the grant. With an `id`, repeating the request changes
/// nothing as long as the grant lasts.
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
    let id = match new.id {
        Some(id) => chosen_id(id)?,
        None => random_id()?,
    };
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
            let is_known = state.grants.iter().any(|grant| grant.id == id);
            if !is_known && state.grants.len() < MOST_GRANTS {
                state.grants.push(record.clone());
            }
        })
        .await?;
    let Some(stored) = stored.grants.iter().find(|grant| grant.id == id) else {
        return Err(Problem::conflict(format!("there are {MOST_GRANTS} grants already")));
    };
    if *stored != record {
        // A repetition, if it is the same grant. Its end may have been given as a duration.
        let is_same = (&stored.kind, &stored.value, &stored.rule, stored.tokens)
            == (&record.kind, &record.value, &record.rule, record.tokens);
        return if is_same {
            Ok(Json(GrantId { id }))
        } else {
            Err(Problem::conflict(format!("there is another grant with the id `{id}`")))
        };
    }
    let mut detail = format!("{} tokens, until {}", grouped(new.tokens), end_text(expires));
    if !reason.is_empty() {
        detail += &format!("; {reason}");
    }
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
    let found = repository.control_state().await?.grants.into_iter().find(is_meant);
    let grant = found.ok_or_else(|| Problem::not_found("this key has no such grant"))?;
    plane.end(grant, &operator, peer).await
}

/// Ends a grant of whatever client: the tokens that are left are gone. The audit log names the id, and of an API key only
/// the start.
#[utoipa::path(delete, path = "/v1/grants/{id}", tag = "keys",
    params(("id" = String, Path, description = "The id of the grant")),
    responses((status = 200, body = GrantId)))]
pub(super) async fn end_grant_by_id(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    peer: AdminPeer,
    PathParts(id): PathParts<String>,
) -> Result<Json<GrantId>, Problem> {
    let repository = plane.shared_state()?;
    let found = repository.control_state().await?.grants.into_iter().find(|grant| grant.id == id);
    let grant = found.ok_or_else(|| Problem::not_found("there is no such grant; it has ended"))?;
    plane.end(grant, &operator, peer).await
}

impl ControlPlane {
    async fn end(
        &self,
        grant: GrantRecord,
        operator: &Operator,
        peer: AdminPeer,
    ) -> Result<Json<GrantId>, Problem> {
        let GrantRecord { id, kind, value, .. } = grant;
        let repository = self.shared_state()?;
        repository.update_control_state(|state| state.grants.retain(|grant| grant.id != id)).await?;
        let target = format!("{}, grant {id}", ClientKey { kind, value }.shown());
        let action = AuditedAction { action: "grant.end", target, ..AuditedAction::default() };
        self.record(operator, peer, action).await;
        Ok(Json(GrantId { id }))
    }
}

impl From<GrantRecord> for GrantView {
    fn from(grant: GrantRecord) -> Self {
        let GrantRecord { id, kind, value, rule, tokens, created, expires, author, reason } = grant;
        let is_secret = kind == NamedIdentity::ApiKey.name();
        let value = if is_secret { masked_key(&value) } else { value };
        let (created, expires) = (past_text(created), end_text(expires));
        Self { id, kind, value, rule, tokens, created, expires, author, reason }
    }
}

/// An id that a caller chose.
fn chosen_id(id: String) -> Result<String, Problem> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if (1..=LONGEST_ID).contains(&id.len()) && id.chars().all(is_plain) {
        return Ok(id);
    }
    Err(Problem::invalid(format!("`id` must have 1 to {LONGEST_ID} letters, digits, `-` and `_`")))
}

fn random_id() -> Result<String, Problem> {
    let random = SecretText::random();
    let random = random.ok_or_else(|| Problem::unavailable("there are no random numbers"))?;
    Ok(random.as_str().chars().filter(char::is_ascii_alphanumeric).take(ID_CHARACTERS).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_of_grants_do_not_repeat() {
        // Of 48 random bits, ten thousand repeat once in five million runs.
        let ids: HashSet<String> = (0..10_000).map(|_| random_id().ok().unwrap()).collect();
        assert_eq!(ids.len(), 10_000);
        assert!(ids.iter().all(|id| id.len() == ID_CHARACTERS));
    }
}
