//! `/v1/revisions`: the history of the rules, and the way back.

use super::ControlPlane;
use super::access::{AdminPeer, Operator};
use super::audit::ListPage;
use super::problem::Problem;
use super::publish::{BaseRevision, NewRules, PublishedRevision, RuleChange, checked_message};
use super::request_parts::{OptionalJsonBody, PathParts, QueryParts};
use super::views::{RevisionText, RevisionView};
use crate::revision::{RevisionSummary, StoredRevision};
use axum::Json;
use axum::extract::State;
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::ToSchema;

/// A part of the history.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RevisionList {
    /// Newest first.
    revisions: Vec<RevisionView>,
}

/// Why a revision is published again.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RollbackRequest {
    /// The message of the new revision.
    message: Option<String>,
}

/// The history of the rules, newest revisions first.
#[utoipa::path(get, path = "/v1/revisions", tag = "revisions", params(ListPage),
    responses((status = 200, body = RevisionList)))]
pub(super) async fn list_revisions(
    State(plane): State<Arc<ControlPlane>>,
    QueryParts(page): QueryParts<ListPage>,
) -> Result<Json<RevisionList>, Problem> {
    let (before, count) = page.bounds()?;
    let revisions = match plane.rule_owner.followed() {
        // The history is at the control plane.
        Some(followed) => {
            let in_force = followed.revision().map(|revision| revision.summary.clone());
            let is_listed = |summary: &RevisionSummary| before.is_none_or(|before| summary.number < before);
            in_force.into_iter().filter(is_listed).collect()
        }
        None => plane.repository.history(before, count).await?,
    };
    Ok(Json(RevisionList { revisions: revisions.into_iter().map(RevisionView::from).collect() }))
}

/// One revision, with its rules.
#[utoipa::path(get, path = "/v1/revisions/{revision}", tag = "revisions",
    params(("revision" = u64, Path, description = "The number of the revision")),
    responses((status = 200, body = RevisionText)))]
pub(super) async fn show_revision(
    State(plane): State<Arc<ControlPlane>>,
    PathParts(number): PathParts<u64>,
) -> Result<Json<RevisionText>, Problem> {
    Ok(Json(plane.revision(number).await?.into()))
}

/// Publishes the rules of an earlier revision as a new one.
#[utoipa::path(post, path = "/v1/revisions/{revision}/rollback", tag = "revisions",
    params(("revision" = u64, Path, description = "The number of the revision to return to"),
           ("If-Match" = Option<String>, Header, description = "The ETag of the revision that is replaced")),
    request_body = Option<RollbackRequest>,
    responses((status = 200, body = PublishedRevision)))]
pub(super) async fn roll_back(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    peer: AdminPeer,
    headers: HeaderMap,
    PathParts(number): PathParts<u64>,
    OptionalJsonBody(rollback): OptionalJsonBody<RollbackRequest>,
) -> Result<Json<PublishedRevision>, Problem> {
    plane.published_rules()?;
    let base = BaseRevision::of(&headers)?.unwrap_or(BaseRevision::Any);
    let message = match rollback.message {
        Some(message) => checked_message(&message)?,
        None => format!("rollback to revision {number}"),
    };
    let text = plane.revision(number).await?.text;
    let target = format!("revision {number}");
    let change = RuleChange { operator, peer, message, action: "rules.rollback", target };
    let published = plane.publish(base, NewRules::Text(text.into()), change).await?;
    Ok(Json(PublishedRevision { revision: published.number }))
}

impl ControlPlane {
    /// The newest revision; of another control plane, and while the repository is unavailable, the one in force. Its
    /// number is 0 if the repository could not be reached since the start.
    pub(super) async fn newest(&self) -> Result<StoredRevision, Problem> {
        if let Some(followed) = self.rule_owner.followed() {
            let in_force = followed.revision().ok_or_else(|| {
                Problem::not_found(format!("no revision of the control plane {} is in force", followed.url))
            })?;
            return Ok((*in_force).clone());
        }
        let newest = match (self.repository.newest().await, self.repository.in_force()) {
            (Ok(newest), _) => newest,
            (Err(error), Some(in_force)) => {
                tracing::debug!(%error, "newest revision cannot be read; showing the one in force");
                Some((*in_force).clone())
            }
            (Err(error), None) => return Err(error.into()),
        };
        newest.ok_or_else(|| Problem::not_found("there is no revision yet"))
    }

    /// The revision with this number.
    pub(super) async fn revision(&self, number: u64) -> Result<StoredRevision, Problem> {
        if let Some(followed) = self.rule_owner.followed() {
            let in_force = followed.revision().filter(|in_force| in_force.summary.number == number);
            let in_force = in_force.ok_or_else(|| {
                let url = &followed.url;
                Problem::not_found(format!(
                    "this node has only the revision in force; the history is at {url}"
                ))
            })?;
            return Ok((*in_force).clone());
        }
        let revision = self.repository.get(number).await?;
        revision.ok_or_else(|| Problem::not_found(format!("there is no revision {number}")))
    }
}
