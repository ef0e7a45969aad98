//! The last good rules, kept on disk: a node that restarts while its rule source is missing or broken uses them.
//!
//! The file has the rules below a line with the name of their source: the rules of another source are not used. It is
//! written in a thread of its own, so that a disk that hangs does not delay new rules.

use parking_lot::Mutex;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};
use tollgate_core::rate::rfc3339;
use tollgate_core::time::UnixTime;
use tollgate_limiter::file;

const FILE: &str = "last-good-rules.yaml";
/// The rules and the line above them.
const MAX_BYTES: u64 = file::MOST_BYTES + (64 << 10);
/// How often a failed write is retried.
const RETRY_EVERY: Duration = Duration::from_secs(10);

/// The last good rules of a source.
#[derive(Debug)]
pub(crate) struct LastGoodRules {
    file: LastGoodFile,
    pending: Arc<Mutex<Option<String>>>,
    wake: SyncSender<()>,
}

#[derive(Clone, Debug)]
struct LastGoodFile {
    path: PathBuf,
    /// The first line.
    title: String,
}

/// Rules that were kept.
#[derive(Debug)]
pub(crate) struct KeptRules {
    /// The file in which they are kept.
    pub(crate) path: PathBuf,
    /// The rules, in YAML.
    pub(crate) text: String,
    /// When they were written.
    pub(crate) written: String,
}

impl LastGoodRules {
    /// Keeps the rules of `source` in `folder`.
    pub(crate) fn open(folder: &Path, source: &str) -> io::Result<Self> {
        let title = format!("# The last good rules of {source:?}, kept by tollgate for a restart\n");
        let file = LastGoodFile { path: folder.join(FILE), title };
        let pending = Arc::default();
        let (wake, woken) = sync_channel(1);
        let writer = LastGoodWriter { file: file.clone(), pending: Arc::clone(&pending), has_failed: false };
        thread::Builder::new().name("last-good-rules".to_owned()).spawn(move || writer.run(&woken))?;
        Ok(Self { file, pending, wake })
    }

    /// The rules that are kept of this source, if there are any.
    pub(crate) fn read(&self) -> io::Result<Option<KeptRules>> {
        let path = self.file.path.clone();
        let text = match self.file.read() {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(text) = text.strip_prefix(&self.file.title) else {
            let title = text.lines().next().unwrap_or_default();
            tracing::warn!(file = %path.display(), title, "the last good rules belong to another rule file");
            return Ok(None);
        };
        let modified = std::fs::metadata(&path).and_then(|metadata| metadata.modified());
        let since = modified.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let written = rfc3339(UnixTime::from_us(since.map_or(0, |since| since.as_micros() as u64)));
        Ok(Some(KeptRules { path, text: text.to_owned(), written }))
    }

    /// Has `text` written soon. It replaces a text that is not written yet.
    pub(crate) fn keep(&self, text: String) {
        *self.pending.lock() = Some(text);
        // If the channel is full, the thread wakes up anyway.
        let _ = self.wake.try_send(());
    }
}

impl LastGoodFile {
    fn read(&self) -> io::Result<String> {
        file::text(file::read_at_most(&self.path, MAX_BYTES)?)
    }
}

/// The state of the writing thread.
struct LastGoodWriter {
    file: LastGoodFile,
    pending: Arc<Mutex<Option<String>>>,
    has_failed: bool,
}

impl LastGoodWriter {
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
        if self.file.read().is_ok_and(|current| current == content) {
            return;
        }
        match file::replace(&self.file.path, content.as_bytes()) {
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
                self.pending.lock().get_or_insert(text);
            }
        }
    }
}
