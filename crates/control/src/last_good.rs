//! The last good rules, kept on disk: a node that restarts while its rule file is gone or broken goes on with them.
//!
//! The file is the rule file as it was, below one line that says of which rule file: rules of another one are not used.
//! It is written by a thread of its own, so that a disk that hangs keeps no rules from being put in force.

use parking_lot::Mutex;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};
use tollgate_core::rate::rfc3339;
use tollgate_limiter::file;

const FILE: &str = "last-good-rules.yaml";
/// A rule file and the line above it.
const MOST_BYTES: u64 = file::MOST_BYTES + (64 << 10);
/// When it is tried again to write what could not be written.
const RETRY_EVERY: Duration = Duration::from_secs(10);

/// Where the last good rules are kept.
#[derive(Debug)]
pub(crate) struct LastGood {
    file: KeptFile,
    pending: Arc<Mutex<Option<String>>>,
    wake: SyncSender<()>,
}

#[derive(Clone, Debug)]
struct KeptFile {
    path: PathBuf,
    /// The first line.
    title: String,
}

/// What was kept.
#[derive(Debug)]
pub(crate) struct KeptRules {
    /// The file that it is kept in.
    pub(crate) path: PathBuf,
    /// The text of the rule file.
    pub(crate) text: String,
    /// When it was written.
    pub(crate) written: String,
}

impl LastGood {
    /// Keeps the rules of the file `rules` in `folder`.
    pub(crate) fn open(folder: &Path, rules: &Path) -> io::Result<Self> {
        // The same file, wherever the node is started from.
        let rules = std::path::absolute(rules)?;
        let title = format!("# The last good rules of {rules:?}, kept by tollgate for a restart\n");
        let file = KeptFile { path: folder.join(FILE), title };
        let pending = Arc::default();
        let (wake, woken) = sync_channel(1);
        let writing = Writing { file: file.clone(), pending: Arc::clone(&pending), has_failed: false };
        thread::Builder::new().name("last-good-rules".to_owned()).spawn(move || writing.run(&woken))?;
        Ok(Self { file, pending, wake })
    }

    /// What is kept of this rule file; none if there is nothing.
    pub(crate) fn read(&self) -> io::Result<Option<KeptRules>> {
        let path = self.file.path.clone();
        let text = match self.file.read() {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(text) = text.strip_prefix(&self.file.title) else {
            let of = text.lines().next().unwrap_or_default();
            tracing::warn!(file = %path.display(), of, "the last good rules are kept of another rule file only");
            return Ok(None);
        };
        let modified = std::fs::metadata(&path).and_then(|metadata| metadata.modified());
        let since = modified.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let written = rfc3339(since.map_or(0, |since| since.as_micros() as u64));
        Ok(Some(KeptRules { path, text: text.to_owned(), written }))
    }

    /// Has `text` written soon, instead of what was to be written before.
    pub(crate) fn keep(&self, text: String) {
        *self.pending.lock() = Some(text);
        // If a wake-up is already waiting, one more says nothing new.
        let _ = self.wake.try_send(());
    }
}

impl KeptFile {
    fn read(&self) -> io::Result<String> {
        file::text(file::read_at_most(&self.path, MOST_BYTES)?)
    }
}

/// The thread's part.
struct Writing {
    file: KeptFile,
    pending: Arc<Mutex<Option<String>>>,
    has_failed: bool,
}

impl Writing {
    /// Writes until the sender is dropped.
    fn run(mut self, woken: &Receiver<()>) {
        while woken.recv_timeout(RETRY_EVERY) != Err(RecvTimeoutError::Disconnected) {
            let pending = self.pending.lock().take();
            if let Some(text) = pending {
                self.write(text);
            }
        }
    }

    fn write(&mut self, text: String) {
        let content = format!("{}{text}", self.file.title);
        let file = self.file.path.display();
        if self.file.read().is_ok_and(|there| there == content) {
            return;
        }
        match file::replace(&self.file.path, content.as_bytes()) {
            Ok(()) if self.has_failed => {
                tracing::info!(%file, "the last good rules are kept again");
                self.has_failed = false;
            }
            Ok(()) => tracing::debug!(%file, "the last good rules are kept"),
            Err(error) => {
                if !self.has_failed {
                    tracing::error!(%file, %error, "the last good rules cannot be kept for a restart");
                }
                self.has_failed = true;
                // Unless newer rules have come.
                self.pending.lock().get_or_insert(text);
            }
        }
    }
}
