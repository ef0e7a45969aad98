//! `/v1/lists`: the allow list and the deny list of the rules.

use super::ControlPlane;
use super::access::{AdminPeer, Operator};
use super::problem::Problem;
use super::publish::{BaseRevision, MOST_MESSAGE_CHARACTERS, PublishedRevision, RuleChange, message};
use super::request_parts::{JsonBody, PathParts, QueryParts};
use super::rule_check::SOURCE;
use super::views::{end_text, masked_key};
use axum::Json;
use axum::extract::State;
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tollgate_core::document::Document;
use tollgate_core::rules::edit::RuleEdit;
use tollgate_core::rules::lists::ListVerdict;
use tollgate_core::rules::pattern::{Glob, network};
use tollgate_core::rules::short_forms::{DurationText, Timestamp};
use tollgate_core::rules::written::{RuleFile, WrittenListEntry};
use tollgate_core::time::UnixTime;
use utoipa::{IntoParams, ToSchema};

const MOST_KEY_BYTES: usize = 1_024;
const MOST_REASON_BYTES: usize = 1_024;

/// Both lists of the newest revision.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AccessListsView {
    /// The revision.
    revision: u64,
    /// Clients without limits.
    allow: Vec<ListEntryView>,
    /// Clients that are refused.
    deny: Vec<ListEntryView>,
}

/// An entry of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ListEntryView {
    /// A key, a glob, an address or a network.
    key: String,
    /// The end of its validity.
    expires: Option<String>,
    /// Why.
    reason: Option<String>,
    /// The operator that added it at run time; none for an entry of the author of the rules.
    by: Option<String>,
    /// Whether its validity has ended.
    expired: bool,
}

/// An entry to add.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewListEntry {
    /// A key, a glob, an address or a network.
    #[schema(min_length = 1, max_length = 1024)]
    key: String,
    /// The end of its validity, such as `2027-01-31T00:00:00Z`.
    #[schema(value_type = Option<String>)]
    expires: Option<Timestamp>,
    /// How long it is valid, such as `10m`, instead of `expires`.
    #[serde(rename = "for")]
    #[schema(value_type = Option<String>)]
    lasting: Option<DurationText>,
    /// Why.
    #[schema(max_length = 1024)]
    reason: Option<String>,
}

/// Which entry is meant.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListEntryQuery {
    /// The key of the entry. An address may be spelled differently.
    key: String,
}

/// The name of a list in a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ListName {
    Allow,
    Deny,
}

impl ListName {
    fn verdict(self) -> ListVerdict {
        match self {
            Self::Allow => ListVerdict::Allowed,
            Self::Deny => ListVerdict::Denied,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// The allow list and the deny list.
#[utoipa::path(get, path = "/v1/lists", tag = "lists", responses((status = 200, body = AccessListsView)))]
pub(super) async fn show_lists(
    State(plane): State<Arc<ControlPlane>>,
) -> Result<Json<AccessListsView>, Problem> {
    let (newest, now) = (plane.newest().await?, plane.now());
    let revision = newest.summary.number;
    super::beside(move || AccessListsView::of(&newest.text, revision, now)).await.map(Json)
}

impl AccessListsView {
    fn of(text: &str, revision: u64, now: UnixTime) -> Self {
        let file = Document::parse(SOURCE, text).ok().and_then(|mut document| document.decode::<RuleFile>());
        let view = |entries: &[&Vec<WrittenListEntry>]| {
            entries.iter().flat_map(|list| list.iter()).map(|entry| ListEntryView::of(entry, now)).collect()
        };
        let (allow, deny) = match &file {
            Some(file) => (view(&[&file.whitelist, &file.allow]), view(&[&file.blacklist, &file.deny])),
            None => (Vec::new(), Vec::new()),
        };
        Self { revision, allow, deny }
    }
}

impl ListEntryView {
    fn of(entry: &WrittenListEntry, now: UnixTime) -> Self {
        Self {
            key: entry.key.clone(),
            expires: entry.expires.map(|expires| end_text(expires.time)),
            reason: entry.reason.clone(),
            by: entry.by.clone(),
            expired: entry.expires.is_some_and(|expires| expires.time <= now),
        }
    }
}

/// Adds an entry to a list, or replaces the entry with the same key. It is a new revision of the rules. The tests of the
/// rules do not see entries that are added this way.
#[utoipa::path(post, path = "/v1/lists/{list}", tag = "lists",
    params(("list" = String, Path, description = "`allow` or `deny`"),
           ("If-Match" = Option<String>, Header, description = "The ETag of the revision that is changed"),
           ("X-Message" = Option<String>, Header, description = "What the change is for")),
    request_body = NewListEntry, responses((status = 200, body = PublishedRevision)))]
pub(super) async fn add_entry(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    peer: AdminPeer,
    headers: HeaderMap,
    PathParts(list): PathParts<ListName>,
    JsonBody(new): JsonBody<NewListEntry>,
) -> Result<Json<PublishedRevision>, Problem> {
    let NewListEntry { key, expires, lasting, reason } = new;
    let expires = expiry(plane.now(), expires, lasting)?;
    let entry = WrittenListEntry { key, expires, reason, by: None };
    let shown = shown_pattern(&entry.key);
    plane.add_list_entry(list, entry, shown, operator, peer, &headers).await
}

/// Removes an entry from a list. It is a new revision of the rules.
#[utoipa::path(delete, path = "/v1/lists/{list}", tag = "lists",
    params(("list" = String, Path, description = "`allow` or `deny`"), ListEntryQuery,
           ("If-Match" = Option<String>, Header, description = "The ETag of the revision that is changed"),
           ("X-Message" = Option<String>, Header, description = "What the change is for")),
    responses((status = 200, body = PublishedRevision)))]
pub(super) async fn remove_entry(
    State(plane): State<Arc<ControlPlane>>,
    operator: Operator,
    peer: AdminPeer,
    headers: HeaderMap,
    PathParts(list): PathParts<ListName>,
    QueryParts(query): QueryParts<ListEntryQuery>,
) -> Result<Json<PublishedRevision>, Problem> {
    let base = BaseRevision::of(&headers)?.unwrap_or(BaseRevision::Any);
    let target = format!("{} list: {}", list.name(), shown_pattern(&query.key));
    let change = RuleChange { operator, peer, message: message(&headers)?, action: "list.remove", target };
    plane.apply(base, change, RuleEdit::RemoveListEntry { list: list.verdict(), key: query.key }).await
}

/// A pattern as written; a single key, which may be an API key, abbreviated.
fn shown_pattern(pattern: &str) -> String {
    let is_key = Glob::new(pattern).is_exact() && network(pattern).is_none();
    if is_key { masked_key(pattern) } else { pattern.to_owned() }
}

/// When something ends that is given an end, or a duration, or neither.
pub(super) fn expiry(
    now: UnixTime,
    expires: Option<Timestamp>,
    lasting: Option<DurationText>,
) -> Result<Option<Timestamp>, Problem> {
    let expires = match (expires, lasting) {
        (Some(_), Some(_)) => return Err(Problem::invalid("`expires` and `for` exclude each other")),
        (Some(expires), None) => Some(expires),
        (None, Some(lasting)) if lasting.us == 0 => {
            return Err(Problem::invalid("`for` must be longer than 0"));
        }
        // Lists are written with whole seconds.
        (None, Some(lasting)) => {
            let us = (now + lasting.us).as_us().div_ceil(1_000_000).saturating_mul(1_000_000);
            Some(Timestamp { time: UnixTime::from_us(us) })
        }
        (None, None) => None,
    };
    if expires.is_some_and(|expires| expires.time <= now) {
        return Err(Problem::invalid("it would have expired already"));
    }
    Ok(expires)
}

impl ControlPlane {
    /// Publishes the newest revision with one more list entry, which names the operator: the tests of the rules do not see
    /// it. `shown` is its key for the audit log.
    pub(super) async fn add_list_entry(
        &self,
        list: ListName,
        entry: WrittenListEntry,
        shown: String,
        operator: Operator,
        peer: AdminPeer,
        headers: &HeaderMap,
    ) -> Result<Json<PublishedRevision>, Problem> {
        let is_text = |text: &str, most: usize| text.len() <= most && !text.chars().any(char::is_control);
        if entry.key.trim().is_empty() || !is_text(&entry.key, MOST_KEY_BYTES) {
            return Err(Problem::invalid(format!("`key` must have 1 to {MOST_KEY_BYTES} bytes of text")));
        }
        if !entry.reason.as_deref().is_none_or(|reason| is_text(reason, MOST_REASON_BYTES)) {
            return Err(Problem::invalid(format!(
                "`reason` must be one line of at most {MOST_REASON_BYTES} bytes"
            )));
        }
        let base = BaseRevision::of(headers)?.unwrap_or(BaseRevision::Any);
        let until = entry.expires.map(|expires| format!(", until {}", end_text(expires.time)));
        let target = format!("{} list: {shown}{}", list.name(), until.unwrap_or_default());
        // The history shows why, also for an operator who gave a reason only.
        let message = match message(headers)? {
            message if message.is_empty() => {
                entry.reason.iter().flat_map(|reason| reason.chars()).take(MOST_MESSAGE_CHARACTERS).collect()
            }
            message => message,
        };
        let change = RuleChange { operator, peer, message, action: "list.add", target };
        let entry = WrittenListEntry { by: Some(change.operator.name.clone()), ..entry };
        self.apply(base, change, RuleEdit::AddListEntry { list: list.verdict(), entry }).await
    }
}
