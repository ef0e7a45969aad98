//! The number of nodes, as last counted by the store: each enforces its share while the store is unavailable.
//!
//! A larger count is used at once. A smaller one is used only after more heartbeats than a silent node may miss: a store
//! that was restarted empty, or paused, learns of its nodes one by one. While the store is unavailable, the count stays.
//!
//! The count is kept on disk, if there is a folder for it, so that a node that starts during an outage does not assume
//! that it is the only one.

use super::StoreUrl;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tollgate_core::heartbeat::{MISSED, MOST_NODES};
use tollgate_limiter::file;

/// For how many heartbeats a count is used that no later one has reached.
const USED_FOR: usize = MISSED as usize + 1;
const FILE: &str = "fleet.json";

/// The last counts, and the file that keeps the result.
#[derive(Debug)]
pub(super) struct NodeCount {
    /// The newest last.
    counts: Mutex<VecDeque<u32>>,
    record: Option<Arc<NodeCountFile>>,
}

impl NodeCount {
    /// Begins with what is kept in `folder` about the fleet whose keys begin with `prefix` at the store `url`.
    pub(super) fn open(folder: Option<&Path>, url: &StoreUrl, prefix: &str) -> Self {
        let record = folder.map(|folder| Arc::new(NodeCountFile::new(folder, url, prefix)));
        let kept = record.as_ref().and_then(|record| record.read());
        Self { counts: Mutex::new(kept.into_iter().collect()), record }
    }

    /// Whether the number outlives the process.
    pub(super) fn is_kept(&self) -> bool {
        self.record.is_some()
    }

    /// How many there are, this one included.
    pub(super) fn nodes(&self) -> u32 {
        self.counts.lock().iter().copied().max().unwrap_or(1)
    }

    /// Notes that the store counts `alive` nodes.
    pub(super) fn note(&self, alive: u32) {
        let mut counts = self.counts.lock();
        counts.push_back(alive);
        while counts.len() > USED_FOR {
            counts.pop_front();
        }
    }

    /// Writes the count to the file if it has changed. Runs in the background: a disk may hang, and heartbeats must not
    /// wait for it.
    pub(super) fn keep(&self) {
        let Some(record) = &self.record else { return };
        let (record, nodes) = (Arc::clone(record), self.nodes());
        if *record.written.lock() != Some(nodes) && !record.is_writing.swap(true, Ordering::Relaxed) {
            tokio::task::spawn_blocking(move || {
                record.keep(nodes);
                record.is_writing.store(false, Ordering::Relaxed);
            });
        }
    }
}

/// The file that holds the count.
#[derive(Debug)]
struct NodeCountFile {
    path: PathBuf,
    /// Of which fleet: neither a name nor a password is part of it.
    store: String,
    prefix: String,
    /// The count in the file, as far as it is known.
    written: Mutex<Option<u32>>,
    has_failed: Mutex<bool>,
    is_writing: AtomicBool,
}

/// The content of the file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct WrittenNodeCount {
    store: String,
    prefix: String,
    nodes: u32,
}

impl NodeCountFile {
    fn new(folder: &Path, url: &StoreUrl, prefix: &str) -> Self {
        Self {
            path: folder.join(FILE),
            store: url.without_login().to_string(),
            prefix: prefix.to_owned(),
            written: Mutex::new(None),
            has_failed: Mutex::new(false),
            is_writing: AtomicBool::new(false),
        }
    }

    /// The number that was kept, if it is about this fleet.
    fn read(&self) -> Option<u32> {
        let path = self.path.display();
        let text = match file::read_text(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(file = %path, %error, "node count file cannot be read");
                return None;
            }
        };
        let kept: WrittenNodeCount = match serde_json::from_str(&text) {
            Ok(kept) => kept,
            Err(error) => {
                tracing::warn!(file = %path, %error, "node count file is malformed; replacing it");
                return None;
            }
        };
        if (&kept.store, &kept.prefix) != (&self.store, &self.prefix) {
            tracing::info!(file = %path, store = kept.store, "node count file belongs to another store; ignored");
            return None;
        }
        if !(1..=MOST_NODES).contains(&kept.nodes) {
            tracing::warn!(file = %path, nodes = kept.nodes, "node count file has an impossible count; replacing it");
            return None;
        }
        *self.written.lock() = Some(kept.nodes);
        Some(kept.nodes)
    }

    /// Writes the number down. A failure is logged once, and tried again with the next heartbeat.
    fn keep(&self, nodes: u32) {
        let result = self.write(nodes);
        let file = self.path.display();
        let mut has_failed = self.has_failed.lock();
        match result {
            Ok(()) if *has_failed => tracing::info!(%file, "node count file written again"),
            Ok(()) => {}
            Err(error) if !*has_failed => {
                tracing::warn!(%file, %error, "node count file cannot be written; retrying");
                *has_failed = true;
                return;
            }
            Err(_) => return,
        }
        *has_failed = false;
        *self.written.lock() = Some(nodes);
    }

    /// Replaces the file atomically.
    fn write(&self, nodes: u32) -> io::Result<()> {
        let kept = WrittenNodeCount { store: self.store.clone(), prefix: self.prefix.clone(), nodes };
        let mut text = serde_json::to_string(&kept)?;
        text.push('\n');
        file::replace(&self.path, text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn known_nodes(folder: &Path, url: &str) -> NodeCount {
        NodeCount::open(Some(folder), &url.parse().unwrap(), "tg:")
    }

    fn keep(known_nodes: &NodeCount) {
        known_nodes.record.as_ref().unwrap().keep(known_nodes.nodes());
    }

    #[test]
    fn smaller_count_is_used_only_after_six_heartbeats() {
        let known_nodes = NodeCount::open(None, &"redis://here".parse().unwrap(), "tg:");
        assert_eq!(known_nodes.nodes(), 1);
        known_nodes.note(3);
        assert_eq!(known_nodes.nodes(), 3, "more are believed at once");
        for counts in [1, 1, 2, 1, 1] {
            known_nodes.note(counts);
            assert_eq!(known_nodes.nodes(), 3);
        }
        known_nodes.note(1);
        assert_eq!(known_nodes.nodes(), 2, "and fewer when it goes on");
    }

    #[test]
    fn count_is_read_after_a_restart_for_the_same_store_only() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("made/for/it");
        let first = known_nodes(&data, "redis://:secret@here/2");
        first.note(3);
        keep(&first);
        assert_eq!(known_nodes(&data, "redis://someone:else@here:6379/2").nodes(), 3);
        for other in ["redis://there/2", "redis://here", "rediss://here/2", "redis-cluster://here"] {
            assert_eq!(known_nodes(&data, other).nodes(), 1, "{other}");
        }
        let other = NodeCount::open(Some(&data), &"redis://here/2".parse().unwrap(), "other:");
        assert_eq!(other.nodes(), 1, "another fleet at the same store");
        let text = fs::read_to_string(data.join(FILE)).unwrap();
        assert_eq!(text, "{\"store\":\"redis://here:6379/2\",\"prefix\":\"tg:\",\"nodes\":3}\n");
        assert_eq!(fs::read_dir(&data).unwrap().count(), 1, "nothing else is left there");
    }

    #[test]
    fn malformed_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE);
        let number =
            |nodes: &str| format!("{{\"store\":\"redis://here:6379\",\"prefix\":\"tg:\",\"nodes\":{nodes}}}");
        let texts =
            ["", "3", "{", "\u{0}\u{0}", &number("0"), &number("-3"), &number("4000000000"), &number("x")];
        for text in texts {
            fs::write(&file, text).unwrap();
            let known_nodes = known_nodes(folder.path(), "redis://here");
            assert_eq!(known_nodes.nodes(), 1, "{text}");
            known_nodes.note(2);
            keep(&known_nodes);
            assert_eq!(fs::read_to_string(&file).unwrap().trim_end(), number("2"), "{text}");
        }
    }

    #[test]
    fn unwritable_folder_is_retried() {
        let folder = tempfile::tempdir().unwrap();
        let blocked = folder.path().join("blocked");
        fs::write(&blocked, "not a folder").unwrap();
        let known_nodes = known_nodes(&blocked, "redis://here");
        known_nodes.note(4);
        keep(&known_nodes);
        assert_eq!(known_nodes.nodes(), 4);
        fs::remove_file(&blocked).unwrap();
        keep(&known_nodes);
        assert!(blocked.join(FILE).exists(), "it is tried again");
    }
}
