//! The audit log of the repository.
//!
//! A node keeps the last entries that it has made. The store can only lose its last changes: if the last entry of a node
//! is there, they all are. Entries that were lost are appended again, with their time and a new id. So are entries that
//! could not be stored because the store did not answer.

use super::scripts::SCRIPTS;
use super::{LISTED_AT_ONCE, MOST_SHARED_AUDIT, SharedRepository, texts};
use crate::audit::AuditEntry;
use crate::repository::{RepositoryError, from_json, to_json};
use std::collections::VecDeque;
use std::slice;

/// The most entries that a node keeps.
const MOST_RECENT: usize = 100;

/// The last entries that a node has made, oldest first.
pub(super) type RecentAudit = VecDeque<RecordedEntry>;

/// An entry as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordedEntry {
    /// 0 if it was not stored yet.
    id: u64,
    json: String,
}

impl SharedRepository {
    pub(in crate::repository) async fn append_audit(
        &self,
        entry: AuditEntry,
    ) -> Result<u64, RepositoryError> {
        let core = &self.0;
        let json = to_json("the audit entry", &entry)?;
        let arguments = [json.clone().into_bytes(), MOST_SHARED_AUDIT.to_string().into_bytes()];
        let appended = core.call(&SCRIPTS.append_audit, slice::from_ref(&core.keys.audit), &arguments).await;
        let invalid = || RepositoryError::Invalid("the id of an audit entry".to_owned());
        let appended =
            appended.and_then(|id| id.into_text().and_then(|id| id.parse().ok()).ok_or_else(invalid));
        // If the answer was lost, the entry may be there twice later.
        let id = appended.as_ref().copied().unwrap_or(0);
        let mut recent = core.recent_audit.lock();
        if recent.len() == MOST_RECENT {
            recent.pop_front();
        }
        recent.push_back(RecordedEntry { id, json });
        appended
    }

    pub(in crate::repository) async fn audit(
        &self,
        before: Option<u64>,
        count: usize,
    ) -> Result<Vec<AuditEntry>, RepositoryError> {
        let keys = [self.0.keys.audit.clone()];
        let mut listed: Vec<AuditEntry> = Vec::new();
        let mut before = before;
        while listed.len() < count {
            let wanted = (count - listed.len()).min(LISTED_AT_ONCE);
            let reply = self.0.list(&SCRIPTS.list_audit, &keys, before, wanted).await?;
            let is_last = reply.len() < wanted;
            for member in reply {
                listed.push(audit_entry(&member)?);
            }
            before = listed.last().map(|entry| entry.id);
            if is_last {
                break;
            }
        }
        Ok(listed)
    }

    /// Appends the entries of this node that the store has lost.
    pub(super) async fn restore_audit(&self) -> Result<(), RepositoryError> {
        let core = &self.0;
        let recent: Vec<RecordedEntry> = core.recent_audit.lock().iter().cloned().collect();
        let Some(last) = recent.iter().max_by_key(|entry| entry.id) else { return Ok(()) };
        let keys = [core.keys.audit.clone()];
        let found = core.list(&SCRIPTS.list_audit, &keys, Some(last.id + 1), 1).await?;
        let is_stored = recent.iter().all(|entry| entry.id > 0);
        if is_stored && found.first() == Some(&last.member()) {
            return Ok(());
        }
        let mut arguments = vec![MOST_SHARED_AUDIT.to_string().into_bytes()];
        for RecordedEntry { id, json } in &recent {
            arguments.extend([id.to_string().into_bytes(), json.clone().into_bytes()]);
        }
        let ids = texts(core.call(&SCRIPTS.restore_audit, &keys, &arguments).await?);
        let mut restored = 0;
        let mut known = core.recent_audit.lock();
        for (entry, id) in recent.iter().zip(&ids) {
            let place = known.iter().position(|known| known == entry);
            match (place, id.parse()) {
                (Some(place), Ok(id)) => {
                    restored += usize::from(id != entry.id);
                    known[place].id = id;
                }
                // It was removed as one of the oldest.
                (Some(place), Err(_)) => drop(known.remove(place)),
                (None, _) => {}
            }
        }
        if restored > 0 {
            tracing::warn!(
                entries = restored,
                "the repository had lost audit entries, or could not store them; they were appended"
            );
        }
        Ok(())
    }
}

impl RecordedEntry {
    /// The entry as it is listed.
    fn member(&self) -> String {
        format!("{} {}", self.id, self.json)
    }
}

/// An entry as it is stored, behind its id.
fn audit_entry(member: &str) -> Result<AuditEntry, RepositoryError> {
    let invalid = || RepositoryError::Invalid("audit entry".to_owned());
    let (id, json) = member.split_once(' ').ok_or_else(invalid)?;
    let entry: AuditEntry = from_json("audit entry", json)?;
    Ok(AuditEntry { id: id.parse().map_err(|_| invalid())?, ..entry })
}
