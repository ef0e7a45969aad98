//! `GET /v1/audit`: every change that was made through the admin API.

use super::ControlPlane;
use super::access::{AdminPeer, Operator};
use super::problem::Problem;
use super::request_parts::QueryParts;
use super::views::AuditView;
use crate::audit::AuditEntry;
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

const DEFAULT_COUNT: u16 = 100;

/// Which part of a list is wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListPage {
    /// Only entries with a lower number.
    before: Option<u64>,
    /// At most so many, newest first.
    #[param(minimum = 1, maximum = 1000)]
    count: Option<u16>,
}

impl ListPage {
    /// The bound and the count, in range.
    pub(super) fn bounds(&self) -> Result<(Option<u64>, usize), Problem> {
        match self.count.unwrap_or(DEFAULT_COUNT) {
            count @ 1..=1000 => Ok((self.before, usize::from(count))),
            _ => Err(Problem::malformed("`count` must be a number from 1 to 1000")),
        }
    }
}

/// A part of the audit log.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AuditList {
    /// Newest first.
    entries: Vec<AuditView>,
}

/// What an operator did, for the audit log.
#[derive(Clone, Debug, Default)]
pub(super) struct AuditedAction {
    pub(super) action: &'static str,
    pub(super) target: String,
    pub(super) detail: String,
    pub(super) revision: Option<u64>,
}

/// The audit log, newest entries first.
#[utoipa::path(get, path = "/v1/audit", tag = "audit", params(ListPage), responses((status = 200, body = AuditList)))]
pub(super) async fn list_audit(
    State(plane): State<Arc<ControlPlane>>,
    QueryParts(page): QueryParts<ListPage>,
) -> Result<Json<AuditList>, Problem> {
    let (before, count) = page.bounds()?;
    let entries = plane.repository.audit(before, count).await?;
    Ok(Json(AuditList { entries: entries.into_iter().map(AuditView::from).collect() }))
}

impl ControlPlane {
    /// Appends to the audit log. The change is made already: if it cannot be recorded, it is in the log of the process.
    pub(super) async fn record(&self, operator: &Operator, peer: AdminPeer, action: AuditedAction) {
        let AuditedAction { action, target, detail, revision } = action;
        let entry = AuditEntry {
            id: 0,
            time: self.now(),
            actor: operator.name.clone(),
            role: operator.role.name().to_owned(),
            from: peer.address.ip().to_string(),
            action: action.to_owned(),
            target,
            detail,
            revision,
        };
        // The repository logs entries, also those that it cannot store.
        drop(self.repository.append_audit(entry).await);
    }
}
