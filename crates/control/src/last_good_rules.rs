//! The last good rules, kept on disk: a node that restarts while its rule source is missing or broken uses them.
//!
//! The file has the rules below a line with the name of their source: the rules of another source are not used. Rules of a
//! repository have their revision in a second line, so that they are served as that revision. The file is written in a
//! thread of its own, so that a disk that hangs does not delay new rules.

use crate::past_text::past_text;
use crate::revision::{RevisionSummary, text_digest};
use parking_lot::Mutex;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};
use tollgate_core::time::UnixTime;
use tollgate_limiter::file;

const FILE: &str = "last-good-rules.yaml";
/// The rules and the lines above them.
const MAX_BYTES: u64 = file::MOST_BYTES + (64 << 10);
/// How often a failed write is retried.
const RETRY_EVERY: Duration = Duration::from_secs(10);
/// How the line with the revision begins.
const REVISION: &str = "# revision ";

/// The last good rules of a node.
#[derive(Debug)]
pub(crate) struct LastGoodRules {
    path: PathBuf,
    pending: Arc<Mutex<Option<String>>>,
    wake: SyncSender<()>,
}

/// Rules that were kept.
#[derive(Debug)]
pub(crate) struct KeptRules {
    /// The file in which they are kept.
    pub(crate) path: PathBuf,
    /// The rules, in YAML.
    pub(crate) text: String,
    /// The revision that they are, if they came from a repository.
    pub(crate) revision: Option<RevisionSummary>,
    /// When they were written.
    pub(crate) written: String,
}

impl LastGoodRules {
    /// Keeps rules in `folder`.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join(FILE);
        let pending = Arc::default();
        let (wake, woken) = sync_channel(1);
        let writer = LastGoodWriter { path: path.clone(), pending: Arc::clone(&pending), has_failed: false };
        thread::Builder::new().name("last-good-rules".to_owned()).spawn(move || writer.run(&woken))?;
        Ok(Self { path, pending, wake })
    }

    /// The rules that are kept of `source`, if there are any.
    pub(crate) fn read(&self, source: &str) -> io::Result<Option<KeptRules>> {
        let content = match read(&self.path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(text) = content.strip_prefix(&title(source)) else {
            let title = content.lines().next().unwrap_or_default();
            tracing::debug!(file = %self.path.display(), title, source, "the last good rules belong to another rule source");
            return Ok(None);
        };
        let (revision, text) = split_revision(text);
        let modified = std::fs::metadata(&self.path).and_then(|metadata| metadata.modified());
        let since = modified.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let written = past_text(UnixTime::from_us(since.map_or(0, |since| since.as_micros() as u64)));
        Ok(Some(KeptRules { path: self.path.clone(), text: text.to_owned(), revision, written }))
    }

    /// Has the rules of `source` written soon. They replace rules that are not written yet.
    pub(crate) fn keep(&self, source: &str, revision: Option<&RevisionSummary>, text: &str) {
        let json = revision.and_then(|revision| serde_json::to_string(revision).ok());
        let revision = json.map_or_else(String::new, |json| format!("{REVISION}{json}\n"));
        *self.pending.lock() = Some(format!("{}{revision}{text}", title(source)));
        // If the channel is full, the thread wakes up anyway.
        let _ = self.wake.try_send(());
    }
}

/// The first line.
fn title(source: &str) -> String {
    format!("# The last good rules of {source:?}, kept by tollgate for a restart\n")
}

/// The revision in the first line of `kept`, if it is that of the text below, and the text.
fn split_revision(kept: &str) -> (Option<RevisionSummary>, &str) {
    let line = kept.strip_prefix(REVISION).and_then(|rest| rest.split_once('\n'));
    let revision = line.and_then(|(json, text)| {
        let summary: RevisionSummary = serde_json::from_str(json).ok()?;
        (summary.digest == text_digest(text)).then_some((summary, text))
    });
    match revision {
        Some((summary, text)) => (Some(summary), text),
        None => (None, kept),
    }
}

fn read(path: &Path) -> io::Result<String> {
    file::text(file::read_at_most(path, MAX_BYTES)?)
}

/// The state of the writing thread.
struct LastGoodWriter {
    path: PathBuf,
    pending: Arc<Mutex<Option<String>>>,
    has_failed: bool,
}

impl LastGoodWriter {
    /// Writes until the sender is dropped.
    fn run(mut self, woken: &Receiver<()>) {
        while woken.recv_timeout(RETRY_EVERY) != Err(RecvTimeoutError::Disconnected) {
            let pending = self.pending.lock().take();
            if let Some(content) = pending {
                self.write(content);
            }
        }
    }

    fn write(&mut self, content: String) {
        let file = self.path.display();
        if read(&self.path).is_ok_and(|current| current == content) {
            return;
        }
        match file::replace(&self.path, content.as_bytes()) {
            Ok(()) if self.has_failed => {
                tracing::info!(%file, "last good rules saved after a failure");
                self.has_failed = false;
            }
            Ok(()) => tracing::debug!(%file, "last good rules saved"),
            Err(error) => {
                if !self.has_failed {
                    tracing::error!(%file, %error, "last good rules cannot be saved; retrying");
                }
                self.has_failed = true;
                // Newer rules take precedence.
                self.pending.lock().get_or_insert(content);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::revision::{RevisionDraft, RevisionOrigin};

    #[test]
    fn a_revision_is_read_only_with_its_own_text() {
        let draft = RevisionDraft {
            text: "rules: []\n".to_owned(),
            author: "ana".to_owned(),
            message: "line one\nline two".to_owned(),
            origin: RevisionOrigin::Published,
        };
        let revision = draft.numbered(7, UnixTime::from_us(5));
        let json = serde_json::to_string(&revision.summary).unwrap();
        let kept = format!("{REVISION}{json}\n{}", revision.text);
        assert_eq!(split_revision(&kept), (Some(revision.summary), "rules: []\n"));
        for text in
            [format!("{kept}# edited"), "# revision 7\nrules: []\n".to_owned(), "rules: []".to_owned()]
        {
            assert_eq!(split_revision(&text), (None, text.as_str()));
        }
    }
}
