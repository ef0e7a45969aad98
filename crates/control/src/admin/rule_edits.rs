//! Changes of parts of the rules: one rule, the numbers of a tier. Comments and order of the rest stay as they are.

use super::ControlPlane;
use super::access::{AdminPeer, Operator};
use super::problem::{PositionedProblem, Problem};
use super::publish::{BaseRevision, NewRules, PublishedRevision, RuleChange, entity_tag, message};
use super::request_parts::{JsonBody, PathParts};
use super::rule_check::SOURCE;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use http::header::ETAG;
use serde_json::{Map, Value};
use std::sync::Arc;
use tollgate_core::diagnostic::Severity;
use tollgate_core::document::Document;
use tollgate_core::rules::edit::{RuleEdit, RuleEditError, TierNumbers};

/// One rule of the newest revision, with its fields as written.
#[utoipa::path(get, path = "/v1/rules/{id}", tag = "rules",
    params(("id" = String, Path, description = "The id of the rule")),
    responses((status = 200, body = serde_json::Value, content_type = "application/json",
               headers(("ETag" = String, description = "The number of the revision, in quotes")))))]
pub(super) async fn show_rule(
    State(plane): State<Arc<ControlPlane>>,
    PathParts(id): PathParts<String>,
) -> Result<Response, Problem> {
    let newest = plane.newest().await?;
    let tag = entity_tag(newest.summary.number);
    let rule = super::beside(move || find_rule(&newest.text, &id)).await??;
    let mut response = Json(rule).into_response();
    response.headers_mut().insert(ETAG, tag);
    Ok(response)
}

fn find_rule(text: &str, id: &str) -> Result<Value, Problem> {
    let file = Document::parse(SOURCE, text).ok().and_then(|mut document| document.decode::<Value>());
    let rules = file.as_ref().and_then(|file| file.get("rules")).and_then(Value::as_array);
    let rule = rules.into_iter().flatten().find(|rule| rule.get("id").and_then(Value::as_str) == Some(id));
    rule.cloned().ok_or_else(|| Problem::not_found("there is no such rule"))
}

/// Adds a rule, or replaces the rule with this id.
#[utoipa::path(put, path = "/v1/rules/{id}", tag = "rules",
    params(("id" = String, Path, description = "The id of the rule"),
           ("If-Match" = Option<String>, Header, description = "The ETag of the revision that is changed; required"),
           ("X-Message" = Option<String>, Header, description = "What the change is for")),
    request_body(content = serde_json::Value, content_type = "application/json"),
    responses((status = 200, body = PublishedRevision)))]
pub(super) async fn put_rule(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    peer: AdminPeer,
    headers: HeaderMap,
    PathParts(id): PathParts<String>,
    JsonBody(rule): JsonBody<Map<String, Value>>,
) -> Result<Json<PublishedRevision>, Problem> {
    plane.published_rules()?;
    let base = BaseRevision::required(&headers)?;
    let change = rule_change(operator, peer, &headers, "rule.put", &id)?;
    plane.apply(base, change, RuleEdit::PutRule { id, rule: Value::Object(rule) }).await
}

/// Changes fields of a rule: a JSON merge patch, in which `null` removes a field.
#[utoipa::path(patch, path = "/v1/rules/{id}", tag = "rules",
    params(("id" = String, Path, description = "The id of the rule"),
           ("If-Match" = Option<String>, Header, description = "The ETag of the revision that is changed; required"),
           ("X-Message" = Option<String>, Header, description = "What the change is for")),
    request_body(content = serde_json::Value, content_type = "application/json"),
    responses((status = 200, body = PublishedRevision)))]
pub(super) async fn patch_rule(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    peer: AdminPeer,
    headers: HeaderMap,
    PathParts(id): PathParts<String>,
    JsonBody(patch): JsonBody<Map<String, Value>>,
) -> Result<Json<PublishedRevision>, Problem> {
    plane.published_rules()?;
    let base = BaseRevision::required(&headers)?;
    let change = rule_change(operator, peer, &headers, "rule.patch", &id)?;
    plane.apply(base, change, RuleEdit::PatchRule { id, patch: Value::Object(patch) }).await
}

/// Removes a rule.
#[utoipa::path(delete, path = "/v1/rules/{id}", tag = "rules",
    params(("id" = String, Path, description = "The id of the rule"),
           ("If-Match" = Option<String>, Header, description = "The ETag of the revision that is changed; required"),
           ("X-Message" = Option<String>, Header, description = "What the change is for")),
    responses((status = 200, body = PublishedRevision)))]
pub(super) async fn remove_rule(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    peer: AdminPeer,
    headers: HeaderMap,
    PathParts(id): PathParts<String>,
) -> Result<Json<PublishedRevision>, Problem> {
    plane.published_rules()?;
    let base = BaseRevision::required(&headers)?;
    let change = rule_change(operator, peer, &headers, "rule.remove", &id)?;
    plane.apply(base, change, RuleEdit::RemoveRule { id }).await
}

/// Sets numbers of a tier: `{"limit": 500, "capacity": 500}`. `limit` and `window` may also be texts such as `500/min`
/// and `60s`; what is absent stays as it is.
#[utoipa::path(put, path = "/v1/rules/tier/{tier}", tag = "rules",
    params(("tier" = String, Path, description = "The name of the tier"),
           ("If-Match" = Option<String>, Header, description = "The ETag of the revision that is changed"),
           ("X-Message" = Option<String>, Header, description = "What the change is for")),
    request_body(content = serde_json::Value, content_type = "application/json",
                 example = json!({ "limit": 500, "capacity": 500 })),
    responses((status = 200, body = PublishedRevision)))]
pub(super) async fn put_tier(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    peer: AdminPeer,
    headers: HeaderMap,
    PathParts(tier): PathParts<String>,
    JsonBody(numbers): JsonBody<TierNumbers>,
) -> Result<Json<PublishedRevision>, Problem> {
    let base = BaseRevision::of(&headers)?.unwrap_or(BaseRevision::Any);
    let target = format!("tier {tier}");
    let message = message(&headers)?;
    let change = RuleChange { operator, peer, message, action: "tier.put", target };
    plane.apply(base, change, RuleEdit::SetTierNumbers { tier, numbers }).await
}

fn rule_change(
    operator: Operator,
    peer: AdminPeer,
    headers: &HeaderMap,
    action: &'static str,
    id: &str,
) -> Result<RuleChange, Problem> {
    Ok(RuleChange { operator, peer, message: message(headers)?, action, target: format!("rule {id}") })
}

impl ControlPlane {
    /// Publishes the newest revision with one change.
    pub(super) async fn apply(
        &self,
        base: BaseRevision,
        change: RuleChange,
        edit: RuleEdit,
    ) -> Result<Json<PublishedRevision>, Problem> {
        let published = self.publish(base, NewRules::Edit(Arc::new(edit)), change).await?;
        Ok(Json(PublishedRevision { revision: published.number }))
    }
}

impl From<RuleEditError> for Problem {
    fn from(error: RuleEditError) -> Self {
        match error {
            RuleEditError::NotFound(message) => Self::not_found(message),
            RuleEditError::Invalid(message) => Self::invalid(message),
            RuleEditError::Text(report) => {
                let errors = PositionedProblem::of_severity(&report, Severity::Error);
                Self::invalid("the rules cannot be changed there").with_errors(errors)
            }
        }
    }
}
