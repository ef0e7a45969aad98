//! `/v1/keys/{kind}/{value}`: the limits of a client, and what an operator does about it.

use super::ControlPlane;
use super::access::{AdminPeer, Operator};
use super::audit::AuditedAction;
use super::lists::{ListName, expiry};
use super::problem::Problem;
use super::publish::PublishedRevision;
use super::request_parts::{JsonBody, PathParts, QueryParts};
use super::rule_check::SOURCE;
use super::views::{end_text, masked_key};
use crate::control_state::GrantRecord;
use axum::Json;
use axum::extract::State;
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::sync::Arc;
use tollgate_core::request::NamedIdentity;
use tollgate_core::rules::lists::ListVerdict;
use tollgate_core::rules::pattern::{Glob, network};
use tollgate_core::rules::short_forms::{DurationText, Timestamp};
use tollgate_core::rules::written::WrittenListEntry;
use tollgate_core::rules::{self, Explanation};
use tollgate_core::{path, time::UnixTime};
use tollgate_limiter::{ClientIdentities, EndpointScope, GrantBalance, LimitReading, Method, Request};
use utoipa::{IntoParams, ToSchema};

const LONGEST_TEXT: usize = 1_024;

/// A client, by one of its identities.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct ClientKey {
    /// `api_key`, `user`, `tenant`, `ip`, or the name of a custom identity.
    pub(super) kind: String,
    /// The identity.
    pub(super) value: String,
}

/// What the client asks for.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct KeyQuery {
    /// Only limits of this path; all without.
    endpoint: Option<String>,
    /// The HTTP method, with `endpoint`.
    method: Option<String>,
}

/// A client and all of its limits.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct KeyView {
    /// The kind of the identity.
    kind: String,
    /// The identity.
    value: String,
    /// The tier of the client.
    tier: Option<String>,
    /// The list entry that decides, if one does.
    lists: Vec<KeyListing>,
    /// The limits.
    limits: Vec<KeyLimit>,
    /// Cooldowns and denials on this node.
    holds: Vec<KeyHold>,
    /// Extra tokens.
    grants: Vec<KeyGrant>,
    /// Which rules match, and why not.
    #[schema(value_type = Option<Object>)]
    explain: Option<Explanation>,
}

/// A list entry that a client is on.
#[derive(Debug, Serialize, ToSchema)]
struct KeyListing {
    /// `allow` or `deny`.
    list: &'static str,
    /// The entry.
    key: String,
    /// The end of its validity.
    expires: Option<String>,
    /// Why.
    reason: Option<String>,
    /// The operator that added it at run time.
    by: Option<String>,
}

/// A limit of a client.
#[derive(Debug, Serialize, ToSchema)]
struct KeyLimit {
    /// The rule.
    rule: String,
    /// The name of the limit.
    limit: String,
    /// The algorithm.
    algorithm: String,
    /// The route whose state this is.
    route: Option<String>,
    /// The limit.
    quota: u32,
    /// The seconds of its window; 0 for requests in flight.
    window_seconds: u32,
    /// What is left; unknown if the store does not answer.
    remaining: Option<u32>,
    /// Tokens that are lent to nodes.
    lent: Option<u32>,
    /// When nothing is used any more.
    reset_at: Option<String>,
    /// The seconds that a request of cost 1 would wait.
    retry_after: Option<f64>,
    /// By which identities it counts, and whether it refuses.
    why: String,
    /// Where the state was read: `store`, `memory` or `unknown`.
    source: &'static str,
}

/// A hold of a client.
#[derive(Debug, Serialize, ToSchema)]
struct KeyHold {
    /// Why.
    reason: &'static str,
    /// For how many seconds more.
    retry_after: f64,
}

/// A grant of a client.
#[derive(Debug, Serialize, ToSchema)]
struct KeyGrant {
    /// Its id.
    id: String,
    /// How many tokens it had.
    tokens: u64,
    /// How many are left; unknown if the store does not answer.
    remaining: Option<u64>,
    /// The only rule that it is for.
    rule: Option<String>,
    /// When it ends.
    expires: String,
    /// The operator.
    author: String,
    /// Why.
    reason: String,
}

/// How many states start fresh.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ResetResult {
    /// States that existed.
    reset: usize,
}

/// For how long, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TimedListing {
    /// The end, such as `2027-01-31T00:00:00Z`.
    #[schema(value_type = Option<String>)]
    expires: Option<Timestamp>,
    /// How long, such as `10m`, instead of `expires`.
    #[serde(rename = "for")]
    #[schema(value_type = Option<String>)]
    lasting: Option<DurationText>,
    /// Why.
    #[schema(max_length = 1024)]
    reason: Option<String>,
}

/// The limits of a client with what is left of each, without spending anything.
#[utoipa::path(get, path = "/v1/keys/{kind}/{value}", tag = "keys", params(ClientKey, KeyQuery),
    responses((status = 200, body = KeyView)))]
pub(super) async fn show_key(
    State(plane): State<Arc<ControlPlane>>,
    PathParts(key): PathParts<ClientKey>,
    QueryParts(query): QueryParts<KeyQuery>,
) -> Result<Json<KeyView>, Problem> {
    let key = key.checked()?;
    let endpoint = path::endpoint(query.endpoint.as_deref().unwrap_or_default())
        .map_err(|error| Problem::invalid(format!("`endpoint`: {error}")))?
        .into_owned();
    let method = query.method.as_deref().map(Method::from_name);
    let scope = if query.endpoint.is_some() { EndpointScope::Request } else { EndpointScope::Any };
    let (limiter, now) = (&plane.limiter, plane.now());
    let (readings, balances, holds) = key.with_request(|client| {
        let request = Request { endpoint: &endpoint, method, ..*client };
        (limiter.peek(&request, scope), limiter.grant_balances(&request), limiter.holds_of(&request))
    });
    let (readings, balances) = (readings.await, balances.await);
    let (state, newest) = tokio::join!(plane.control_state_in_force(), plane.newest());
    let records = state.map(|state| state.grants).unwrap_or_default();
    let text = newest?.text;
    let asked = key.clone();
    let (tier, lists, explain) = super::beside(move || {
        let Ok(loaded) = rules::load(SOURCE, &text) else { return (None, Vec::new(), None) };
        asked.with_request(|client| {
            let request = Request { endpoint: &endpoint, method, ..*client };
            let explain = rules::explain(&loaded, &request, now);
            let entry = loaded.lists.find_entry(&request, now);
            let lists = entry.map(|(verdict, entry)| KeyListing {
                list: match verdict {
                    ListVerdict::Allowed => "allow",
                    ListVerdict::Denied => "deny",
                },
                key: entry.pattern.to_string(),
                expires: entry.expires.map(end_text),
                reason: entry.reason.clone(),
                by: entry.by.clone(),
            });
            let is_asked = query.endpoint.is_some();
            (explain.tier.clone(), lists.into_iter().collect(), is_asked.then_some(explain))
        })
    })
    .await?;
    Ok(Json(KeyView {
        kind: key.kind,
        value: key.value,
        tier,
        lists,
        limits: readings.iter().map(|reading| KeyLimit::of(reading, now)).collect(),
        holds: holds.iter().map(|(reason, us)| KeyHold { reason, retry_after: seconds(*us) }).collect(),
        grants: balances.iter().map(|balance| KeyGrant::of(balance, &records)).collect(),
        explain,
    }))
}

/// Lets the limits of a client start fresh on all nodes, and ends its cooldowns.
#[utoipa::path(delete, path = "/v1/keys/{kind}/{value}", tag = "keys", params(ClientKey),
    responses((status = 200, body = ResetResult)))]
pub(super) async fn reset_key(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    peer: AdminPeer,
    PathParts(key): PathParts<ClientKey>,
) -> Result<Json<ResetResult>, Problem> {
    let key = key.checked()?;
    let reset = key.with_request(|request| plane.limiter.reset(request, EndpointScope::Any)).await;
    let reset =
        reset.map_err(|_| Problem::unavailable("the store does not answer; nothing is known to be reset"))?;
    let detail = format!("{reset} states");
    let action = AuditedAction { action: "key.reset", target: key.shown(), detail, revision: None };
    plane.record(&operator, peer, action).await;
    Ok(Json(ResetResult { reset }))
}

/// Puts a client on the deny list, for a while or for ever. It is a new revision of the rules.
#[utoipa::path(post, path = "/v1/keys/{kind}/{value}/block", tag = "keys", params(ClientKey),
    request_body = TimedListing, responses((status = 200, body = PublishedRevision)))]
pub(super) async fn block_key(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    peer: AdminPeer,
    headers: HeaderMap,
    PathParts(key): PathParts<ClientKey>,
    JsonBody(listing): JsonBody<TimedListing>,
) -> Result<Json<PublishedRevision>, Problem> {
    let key = key.checked()?;
    let (shown, entry) = (key.shown(), key.listed(listing, plane.now())?);
    plane.add_list_entry(ListName::Deny, entry, shown, operator, peer, &headers).await
}

/// Puts a client on the allow list, for a while or for ever. It is a new revision of the rules.
#[utoipa::path(post, path = "/v1/keys/{kind}/{value}/allow", tag = "keys", params(ClientKey),
    request_body = TimedListing, responses((status = 200, body = PublishedRevision)))]
pub(super) async fn allow_key(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    peer: AdminPeer,
    headers: HeaderMap,
    PathParts(key): PathParts<ClientKey>,
    JsonBody(listing): JsonBody<TimedListing>,
) -> Result<Json<PublishedRevision>, Problem> {
    let key = key.checked()?;
    let (shown, entry) = (key.shown(), key.listed(listing, plane.now())?);
    plane.add_list_entry(ListName::Allow, entry, shown, operator, peer, &headers).await
}

impl ClientKey {
    /// The same; an error if it cannot be the identity of a client.
    pub(super) fn checked(self) -> Result<Self, Problem> {
        let kind = checked_text("kind", self.kind)?;
        let value = checked_text("value", self.value)?;
        if kind == "ip" && value.parse::<IpAddr>().is_err() {
            return Err(Problem::invalid("`value` must be an address, such as 203.0.113.9"));
        }
        Ok(Self { kind, value })
    }

    /// For the audit log: API keys are secrets.
    pub(super) fn shown(&self) -> String {
        let is_secret = self.kind == NamedIdentity::ApiKey.name();
        let value = if is_secret { masked_key(&self.value) } else { self.value.clone() };
        format!("{} {value}", self.kind)
    }

    fn with_request<T>(&self, with: impl FnOnce(&Request<'_>) -> T) -> T {
        ClientIdentities::one(&self.kind, &self.value).with_request(with)
    }

    fn listed(self, listing: TimedListing, now: UnixTime) -> Result<WrittenListEntry, Problem> {
        let expires = expiry(now, listing.expires, listing.lasting)?;
        // Lists have patterns and networks, and no kinds: an identity must not become another.
        if !Glob::new(&self.value).is_exact() {
            return Err(Problem::invalid(
                "an identity with wildcards cannot be listed; edit the rules instead",
            ));
        }
        let is_named = NamedIdentity::ALL.iter().any(|kind| kind.name() == self.kind);
        if self.kind != "ip" && !is_named {
            return Err(Problem::invalid(
                "only an `ip` and the identities `api_key`, `user` and `tenant` can be listed; limit others by a rule",
            ));
        }
        if self.kind != "ip" && network(&self.value).is_some() {
            return Err(Problem::invalid(format!(
                "on a list `{}` is an address; this identity of the kind `{}` cannot be listed",
                self.value, self.kind
            )));
        }
        Ok(WrittenListEntry { key: self.value, expires, reason: listing.reason, by: None })
    }
}

/// One line of text that is not empty.
pub(super) fn checked_text(name: &str, text: String) -> Result<String, Problem> {
    let is_text =
        !text.trim().is_empty() && text.len() <= LONGEST_TEXT && !text.chars().any(char::is_control);
    if is_text {
        return Ok(text);
    }
    Err(Problem::invalid(format!("`{name}` must be one line of 1 to {LONGEST_TEXT} bytes")))
}

impl KeyLimit {
    fn of(reading: &LimitReading, now: UnixTime) -> Self {
        let status = reading.state.map(|state| state.status);
        let by = reading.counted_by.join(" and ");
        let why = if reading.enforced {
            format!("counts by {by}")
        } else {
            format!("counts by {by}, refuses nothing")
        };
        Self {
            rule: reading.rule.clone(),
            limit: reading.limit.clone(),
            algorithm: reading.algorithm.name().to_owned(),
            route: reading.route.clone(),
            quota: reading.quota,
            window_seconds: reading.window_seconds,
            remaining: status.map(|status| status.remaining),
            lent: reading.state.map(|state| state.lent),
            reset_at: status.map(|status| end_text(now + status.reset_after_us)),
            retry_after: status.map(|status| seconds(status.retry_after_us)),
            why,
            source: reading.source.name(),
        }
    }
}

impl KeyGrant {
    fn of(balance: &GrantBalance, records: &[GrantRecord]) -> Self {
        let grant = &balance.grant;
        let record = records.iter().find(|record| record.id == grant.id);
        Self {
            id: grant.id.clone(),
            tokens: grant.tokens,
            remaining: balance.left,
            rule: grant.rule.clone(),
            expires: end_text(grant.expires),
            author: record.map(|record| record.author.clone()).unwrap_or_default(),
            reason: record.map(|record| record.reason.clone()).unwrap_or_default(),
        }
    }
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}
