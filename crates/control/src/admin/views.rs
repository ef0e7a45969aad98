//! How stored things are shown in JSON.

use crate::audit::AuditEntry;
use crate::past_text::past_text;
use crate::revision::{RevisionSummary, StoredRevision};
use serde::Serialize;
use tollgate_core::rate::rfc3339;
use tollgate_core::time::UnixTime;
use utoipa::ToSchema;

/// An end in RFC 3339, rounded up to the second: at that time it has ended.
pub(super) fn end_text(time: UnixTime) -> String {
    rfc3339(time)
}

/// The start of a key: enough to recognise it, not enough to use it.
pub(super) fn masked_key(key: &str) -> String {
    let shown = (key.chars().count() / 2).min(8);
    key.chars().take(shown).chain(['…']).collect()
}

/// A revision without its text.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RevisionView {
    /// Its number.
    revision: u64,
    /// The SHA-256 of the YAML, in hexadecimal digits.
    digest: String,
    /// The name of the token that published it, or `file`.
    author: String,
    /// When it was stored.
    time: String,
    /// What the author said about it.
    message: String,
    /// `file`, `example` or `published`.
    origin: &'static str,
}

/// A revision with its text.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RevisionText {
    #[serde(flatten)]
    summary: RevisionView,
    /// The rules.
    yaml: String,
}

/// An entry of the audit log.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AuditView {
    /// Its number. A later entry has a higher one.
    id: u64,
    /// When.
    time: String,
    /// The name of the token.
    actor: String,
    /// The role of the token.
    role: String,
    /// The address of the client.
    from: String,
    /// What was done.
    action: String,
    /// To what.
    target: String,
    /// More about it.
    detail: String,
    /// The revision that it made.
    revision: Option<u64>,
}

impl From<RevisionSummary> for RevisionView {
    fn from(summary: RevisionSummary) -> Self {
        let RevisionSummary { number, digest, author, time, message, origin } = summary;
        Self { revision: number, digest, author, time: past_text(time), message, origin: origin.name() }
    }
}

impl From<StoredRevision> for RevisionText {
    fn from(revision: StoredRevision) -> Self {
        Self { summary: revision.summary.into(), yaml: revision.text }
    }
}

impl From<AuditEntry> for AuditView {
    fn from(entry: AuditEntry) -> Self {
        let AuditEntry { id, time, actor, role, from, action, target, detail, revision } = entry;
        Self { id, time: past_text(time), actor, role, from, action, target, detail, revision }
    }
}
