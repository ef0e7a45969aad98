//! How many nodes there are, as the store last told: each enforces its share by itself while the store is away.
//!
//! A larger number is believed at once. A smaller one only when it was told for longer than a silent node is
//! remembered: a store that comes back empty, or from a long pause, has forgotten who was there and hears of them
//! one after the other. While the store says nothing, nothing changes.
//!
//! The number is kept on disk, if there is a folder for it, so that a node which starts while the store is away does
//! not take itself for the only one.

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

/// For how many heartbeats a number is believed that no later one has reached.
const BELIEVED: usize = MISSED as usize + 1;
const FILE: &str = "fleet.json";

/// What was told lately, and what is kept of it.
#[derive(Debug)]
pub(super) struct NodeCount {
    /// The newest last.
    told: Mutex<VecDeque<u32>>,
    record: Option<Arc<NodeCountFile>>,
}

impl NodeCount {
    /// Begins with what is kept in `folder` about the fleet whose keys begin with `prefix` at the store `url`.
    pub(super) fn open(folder: Option<&Path>, url: &StoreUrl, prefix: &str) -> Self {
        let record = folder.map(|folder| Arc::new(NodeCountFile::new(folder, url, prefix)));
        let kept = record.as_ref().and_then(|record| record.read());
        Self { told: Mutex::new(kept.into_iter().collect()), record }
    }

    /// Whether the number outlives the process.
    pub(super) fn is_kept(&self) -> bool {
        self.record.is_some()
    }

    /// How many there are, this one included.
    pub(super) fn nodes(&self) -> u32 {
        self.told.lock().iter().copied().max().unwrap_or(1)
    }

    /// The store has told of `alive` nodes.
    pub(super) fn note(&self, alive: u32) {
        let mut told = self.told.lock();
        told.push_back(alive);
        while told.len() > BELIEVED {
            told.pop_front();
        }
    }

    /// Has it written down how many there are, if that is news. Nobody waits for it: a disk may hang, and a node that
    /// says no more that it is there is missed.
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

/// The file in which the number stands.
#[derive(Debug)]
struct NodeCountFile {
    path: PathBuf,
    /// Of which fleet: neither a name nor a password is part of it.
    store: String,
    prefix: String,
    /// What stands there, as far as is known.
    written: Mutex<Option<u32>>,
    has_failed: Mutex<bool>,
    is_writing: AtomicBool,
}

/// What the file says.
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

    /// Writes the number down. If that fails it is said once, and tried again with the next heartbeat.
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

    /// Whoever reads the file finds the old number or the new one, whole.
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
    fn a_store_that_forgot_who_was_there_is_not_believed_at_once() {
        let known_nodes = NodeCount::open(None, &"redis://here".parse().unwrap(), "tg:");
        assert_eq!(known_nodes.nodes(), 1);
        known_nodes.note(3);
        assert_eq!(known_nodes.nodes(), 3, "more are believed at once");
        for told in [1, 1, 2, 1, 1] {
            known_nodes.note(told);
            assert_eq!(known_nodes.nodes(), 3);
        }
        known_nodes.note(1);
        assert_eq!(known_nodes.nodes(), 2, "and fewer when it goes on");
    }

    #[test]
    fn what_is_kept_is_known_after_a_restart_of_the_same_store_only() {
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
    fn what_cannot_be_used_is_written_anew() {
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
    fn a_place_that_cannot_be_written_to_harms_nobody() {
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
