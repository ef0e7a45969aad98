//! Questions about rules: what differs, what a decision depends on, what other rules would have done.

use super::ControlPlane;
use super::problem::{PositionedProblem, Problem};
use super::request_parts::{JsonBody, PathParts, RuleTextBody};
use super::rule_check::SOURCE;
use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::{Map, Value};
use std::sync::Arc;
use tollgate_core::diagnostic::{DiagnosticReport, Severity};
use tollgate_core::key::Identity;
use tollgate_core::path;
use tollgate_core::rules::written::RuleTestRequest;
use tollgate_core::rules::{self, Explanation, RuleDiff, RulePreview};
use tollgate_core::time::UnixTime;
use tollgate_limiter::Clock;

/// How long a preview may take.
const PREVIEW_TIME_US: u64 = 1_000_000;

/// The difference of two revisions, by lines and by name.
#[derive(Debug, Serialize)]
pub(super) struct RevisionDiff {
    /// The first revision.
    a: u64,
    /// The second revision; none for a text that is not published.
    b: Option<u64>,
    #[serde(flatten)]
    diff: RuleDiff,
}

/// What differs between two revisions: `unified` as `diff -u` prints it, `lines` of both texts, and a `summary` by rule,
/// tier and list.
#[utoipa::path(get, path = "/v1/revisions/{a}/diff/{b}", tag = "revisions",
    params(("a" = u64, Path, description = "The first revision"), ("b" = u64, Path, description = "The second revision")),
    responses((status = 200, body = serde_json::Value, content_type = "application/json")))]
pub(super) async fn diff_revisions(
    State(plane): State<Arc<ControlPlane>>,
    PathParts((a, b)): PathParts<(u64, u64)>,
) -> Result<Json<RevisionDiff>, Problem> {
    let (one, other) = (plane.revision(a).await?.text, plane.revision(b).await?.text);
    let diff = super::beside(move || rules::diff(&one, &other)).await?;
    Ok(Json(RevisionDiff { a, b: Some(b), diff }))
}

/// What differs between the newest revision and the rules of the request.
#[utoipa::path(post, path = "/v1/rules/diff", tag = "rules",
    request_body(content((String = "application/yaml"), (serde_json::Value = "application/json"))),
    responses((status = 200, body = serde_json::Value, content_type = "application/json")))]
pub(super) async fn diff_rules(
    State(plane): State<Arc<ControlPlane>>,
    RuleTextBody(text): RuleTextBody,
) -> Result<Json<RevisionDiff>, Problem> {
    let newest = plane.newest().await?;
    let a = newest.summary.number;
    let diff = super::beside(move || rules::diff(&newest.text, &text)).await?;
    Ok(Json(RevisionDiff { a, b: None, diff }))
}

/// Explains the decision on a request: which rules apply and why not, and what would let it pass. The fields are those of
/// `POST /v1/check`; with `yaml`, it is explained under these rules instead of the newest revision.
#[utoipa::path(post, path = "/v1/rules/explain", tag = "rules",
    request_body(content = serde_json::Value, content_type = "application/json",
                 example = json!({ "key": "sk_1", "endpoint": "/v1/orders" })),
    responses((status = 200, body = serde_json::Value, content_type = "application/json")))]
pub(super) async fn explain_request(
    State(plane): State<Arc<ControlPlane>>,
    JsonBody(mut fields): JsonBody<Map<String, Value>>,
) -> Result<Json<Explanation>, Problem> {
    let text = match fields.remove("yaml") {
        Some(Value::String(yaml)) => yaml,
        Some(Value::Null) | None => plane.newest().await?.text,
        Some(_) => return Err(Problem::malformed("`yaml` must be a text")),
    };
    let request: RuleTestRequest = serde_json::from_value(Value::Object(fields))
        .map_err(|error| Problem::malformed(format!("the request cannot be used: {error}")))?;
    let now = plane.now();
    super::beside(move || explain(&text, request, now)).await?.map(Json)
}

/// Explains the decision on `request` under the rules `text`.
pub(super) fn explain(
    text: &str,
    mut request: RuleTestRequest,
    now: UnixTime,
) -> Result<Explanation, Problem> {
    let endpoint = path::endpoint(request.endpoint.as_deref().unwrap_or_default())
        .map_err(|error| Problem::invalid(format!("`endpoint`: {error}")))?
        .into_owned();
    request.endpoint = Some(endpoint);
    let loaded = rules::load(SOURCE, text)?;
    let ids: Vec<(&str, &str)> =
        request.ids.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    Ok(rules::explain(&loaded, &request.as_request(&ids), now))
}

/// What the rules of the request would have done to a sample of the last minutes' requests at this node, compared with
/// the newest revision.
#[utoipa::path(post, path = "/v1/rules/preview", tag = "rules",
    request_body(content((String = "application/yaml"), (serde_json::Value = "application/json"))),
    responses((status = 200, body = serde_json::Value, content_type = "application/json")))]
pub(super) async fn preview_rules(
    State(plane): State<Arc<ControlPlane>>,
    RuleTextBody(text): RuleTextBody,
) -> Result<Json<RulePreview>, Problem> {
    let (before, limiter) = (plane.newest().await?.text, Arc::clone(&plane.limiter));
    let preview = move || {
        let (before, after) = (rules::load(SOURCE, &before)?, rules::load(SOURCE, &text)?);
        let clock = Clock::system();
        let start = clock.now();
        let samples = limiter.recent_requests();
        let fingerprint = |identity: &Identity<'_>| limiter.fingerprint(identity);
        let may_continue = || clock.now().since(start) < PREVIEW_TIME_US;
        Ok(rules::preview(&samples, &before, &after, fingerprint, may_continue))
    };
    super::beside(preview).await?.map(Json)
}

impl From<DiagnosticReport> for Problem {
    fn from(report: DiagnosticReport) -> Self {
        let errors = PositionedProblem::of_severity(&report, Severity::Error);
        Self::invalid("the rules are invalid").with_errors(errors)
    }
}
