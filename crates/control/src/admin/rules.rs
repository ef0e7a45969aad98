//! `/v1/rules`: the newest revision of the rules, publishing, validation.

use super::ControlPlane;
use super::access::{AdminPeer, Operator};
use super::problem::Problem;
use super::publish::{BaseRevision, NewRules, PublishedRevision, RuleChange, entity_tag, has_tag, message};
use super::request_parts::{QueryParts, RuleTextBody};
use super::rule_check::{CheckedRules, RuleVerdict};
use super::rule_summary::{RuleSummary, summarize};
use super::views::RevisionText;
use crate::access_token::TokenRole;
use crate::revision::StoredRevision;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use http::header::{ACCEPT, ETAG};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tollgate_http::response;
use utoipa::ToSchema;

/// The newest revision, with its rules as they are compiled.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CurrentRules {
    #[serde(flatten)]
    revision: RevisionText,
    /// The rules in short.
    rules: Vec<RuleSummary>,
}

/// The text that a client has.
#[derive(Debug, Deserialize)]
pub(super) struct KnownText {
    digest: Option<String>,
}

/// The newest revision of the rules: as YAML with `Accept: application/yaml`, else as JSON. The `ETag` is the number of
/// the revision.
#[utoipa::path(get, path = "/v1/rules", tag = "rules",
    params(("If-None-Match" = Option<String>, Header, description = "The ETag of the revision that the client has"),
           ("digest" = Option<String>, Query, description = "The SHA-256 of the text that the client has, in hexadecimal digits: another text of the same number is sent")),
    responses(
        (status = 200, content((CurrentRules = "application/json"), (String = "application/yaml")),
         headers(("ETag" = String, description = "The number of the revision, in quotes"))),
        (status = 304, description = "The client has the newest revision")))]
pub(super) async fn show_rules(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    QueryParts(KnownText { digest }): QueryParts<KnownText>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let newest = plane.newest().await?;
    if operator.role == TokenRole::Follow && newest.summary.number == 0 {
        // A node that follows has numbers to compare.
        return Err(Problem::unavailable("the repository has not been reached since the start"));
    }
    let tag = entity_tag(newest.summary.number);
    let has_text = digest.is_none_or(|digest| digest == newest.summary.digest);
    if has_text && has_tag(&headers, tag.as_bytes()) {
        return Ok(response::not_modified(tag).map(Body::new));
    }
    let mut response = if accepts_yaml(&headers) {
        response::content("application/yaml", newest.text.into_bytes()).map(Body::new)
    } else {
        Json(plane.current_rules(newest).await?).into_response()
    };
    response.headers_mut().insert(ETAG, tag);
    Ok(response)
}

impl ControlPlane {
    /// The revision with its rules. They are compiled once, however many nodes ask after a publish.
    async fn current_rules(&self, newest: StoredRevision) -> Result<CurrentRules, Problem> {
        let mut known = self.summaries.lock().await;
        let id = newest.summary.id();
        let rules = match known.as_ref() {
            Some((summarized, rules)) if *summarized == id => rules.clone(),
            _ => {
                let text = newest.text.clone();
                let rules = super::beside(move || summarize(&text)).await?;
                *known = Some((id, rules.clone()));
                rules
            }
        };
        Ok(CurrentRules { revision: newest.into(), rules })
    }
}

/// Publishes rules: YAML, JSON with the same fields, or `{"yaml": "…"}`. `If-Match` must be the ETag of the newest
/// revision. Invalid rules, and rules whose tests fail, are refused. Publishing the newest text again changes nothing.
#[utoipa::path(put, path = "/v1/rules", tag = "rules",
    params(("If-Match" = Option<String>, Header, description = "The ETag of the revision that is replaced; required"),
           ("X-Message" = Option<String>, Header, description = "What the change is for")),
    request_body(content((String = "application/yaml"), (serde_json::Value = "application/json"))),
    responses((status = 200, body = PublishedRevision)))]
pub(super) async fn put_rules(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    peer: AdminPeer,
    headers: HeaderMap,
    RuleTextBody(text): RuleTextBody,
) -> Result<Json<PublishedRevision>, Problem> {
    plane.published_rules()?;
    let base = BaseRevision::required(&headers)?;
    let message = message(&headers)?;
    let change = RuleChange { operator, peer, message, action: "rules.publish", target: "rules".to_owned() };
    let published = plane.publish(base, NewRules::Text(text.into()), change).await?;
    Ok(Json(PublishedRevision { revision: published.number }))
}

/// Validates rules and runs their tests. Nothing is published.
#[utoipa::path(post, path = "/v1/rules/validate", tag = "rules",
    request_body(content((String = "application/yaml"), (serde_json::Value = "application/json"))),
    responses((status = 200, body = RuleVerdict)))]
pub(super) async fn validate_rules(
    State(plane): State<Arc<ControlPlane>>,
    RuleTextBody(text): RuleTextBody,
) -> Result<Json<RuleVerdict>, Problem> {
    let doors = plane.doors.clone();
    super::beside(move || CheckedRules::of(&text, &doors).verdict).await.map(Json)
}

/// Whether `Accept` asks for YAML.
fn accepts_yaml(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
    let mut types =
        lines.flat_map(|line| line.split(',')).map(|part| part.split(';').next().unwrap_or(part).trim());
    types.any(|name| matches!(name, "application/yaml" | "application/x-yaml" | "text/yaml"))
}
