//! Entries of the audit log: each change that an operator made or tried.

use crate::revision::unix_us;
use serde::{Deserialize, Serialize};
use tollgate_core::time::UnixTime;

/// An entry of the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuditEntry {
    /// Its number, given by the repository. A later entry has a higher one.
    pub id: u64,
    /// When.
    #[serde(rename = "time_us", with = "unix_us")]
    pub time: UnixTime,
    /// The name of the token.
    pub actor: String,
    /// The role of the token.
    pub role: String,
    /// The address of the client.
    pub from: String,
    /// What was done, such as `publish`.
    pub action: String,
    /// To what, such as `rules` or `api_key/…`.
    pub target: String,
    /// More about it.
    pub detail: String,
    /// The revision that it made, if any.
    pub revision: Option<u64>,
}

/// The longest text of an entry, in characters; more is cut off.
const MOST_CHARACTERS: usize = 1_000;

impl AuditEntry {
    /// The entry with texts of bounded length.
    pub(crate) fn bounded(mut self) -> Self {
        let Self { actor, role, from, action, target, detail, .. } = &mut self;
        for text in [actor, role, from, action, target, detail] {
            if let Some((end, _)) = text.char_indices().nth(MOST_CHARACTERS) {
                text.truncate(end);
                text.push('…');
            }
        }
        self
    }

    /// Logs the entry: the repository may be lost, or bounded.
    pub(crate) fn log(&self) {
        let Self { id, actor, role, from, action, target, detail, revision, .. } = self;
        tracing::info!(id, actor, role, from, action, target, detail, revision, "audit");
    }
}
