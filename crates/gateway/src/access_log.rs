//! The access log: one line of JSON per request, written by a separate thread.
//!
//! A request never waits for a disk: if the writer falls behind, or cannot write, the line is dropped and counted.

mod body;
mod entry;
mod writer;

pub(crate) use body::LoggedBody;
use entry::AccessLogEntry;
pub(crate) use entry::PendingLogEntry;
use http::{Method, Uri};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;
use tollgate_limiter::Clock;
use writer::AccessLogWriter;

/// The most entries that wait to be written.
const MOST_QUEUED: usize = 64 << 10;
/// How long a shutdown waits for queued entries.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// A handle to the access log. Clones share the writer.
#[derive(Clone, Debug)]
pub struct AccessLog {
    queue: SyncSender<WriterMessage>,
    state: Arc<AccessLogState>,
    clock: Clock,
}

/// What the writer and the handles share.
#[derive(Debug, Default)]
struct AccessLogState {
    /// Entries that were not written.
    dropped: AtomicU64,
    /// The writer is to reopen its file.
    reopen: AtomicBool,
}

/// Where lines are written.
enum AccessLogTarget {
    Stream(Box<dyn Write + Send>),
    File(PathBuf, File),
}

impl AccessLogTarget {
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).mode(0o640).open(path)?;
        Ok(Self::File(path.to_owned(), file))
    }
}

/// A message to the writer.
#[derive(Debug)]
enum WriterMessage {
    Entry(AccessLogEntry),
    /// Write everything before this, then notify the sender.
    Flush(oneshot::Sender<()>),
    /// Look at the state.
    Wake,
}

impl AccessLog {
    /// Writes to `target`, which is flushed whenever the queue is empty. The values of the query parameters `hidden` are
    /// not written: they are identities, and may be secret.
    pub fn start(target: impl Write + Send + 'static, clock: Clock, hidden: Vec<String>) -> io::Result<Self> {
        Self::write_to(AccessLogTarget::Stream(Box::new(target)), clock, hidden)
    }

    /// Appends to the file at `path`. If it does not exist, it is created with mode 640.
    pub fn open(path: &Path, clock: Clock, hidden: Vec<String>) -> io::Result<Self> {
        Self::write_to(AccessLogTarget::open(path)?, clock, hidden)
    }

    fn write_to(target: AccessLogTarget, clock: Clock, hidden: Vec<String>) -> io::Result<Self> {
        let (queue, messages) = sync_channel(MOST_QUEUED);
        let state = Arc::new(AccessLogState::default());
        let writer = AccessLogWriter::new(target, Arc::clone(&state), hidden);
        thread::Builder::new().name("access-log".to_owned()).spawn(move || writer.run(&messages))?;
        Ok(Self { queue, state, clock })
    }

    /// Makes the writer reopen its file, after a log rotation has moved it. Returns at once; entries that are already
    /// queued may still go to the old file. Without a file this has no effect.
    pub fn reopen(&self) {
        self.state.reopen.store(true, Ordering::Release);
        // If the queue is full, the writer is awake.
        let _ = self.queue.try_send(WriterMessage::Wake);
    }

    /// Waits until the queued entries are written, or for [`FLUSH_TIMEOUT`].
    pub(crate) async fn flush(&self) {
        let (flushed, wait) = oneshot::channel();
        if self.queue.try_send(WriterMessage::Flush(flushed)).is_ok() {
            // The writer reports its errors itself.
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, wait).await;
        }
    }

    /// The number of entries that were dropped because the writer fell behind or could not write.
    pub fn dropped(&self) -> u64 {
        self.state.dropped.load(Ordering::Relaxed)
    }

    /// Starts the entry of a request.
    pub(crate) fn start_entry(&self, client: IpAddr, method: &Method, target: &Uri) -> PendingLogEntry {
        let entry = AccessLogEntry {
            start: self.clock.now(),
            duration_us: 0,
            client,
            method: method.clone(),
            target: target.clone(),
            status: 0,
            bytes: 0,
            is_complete: false,
        };
        PendingLogEntry::new(self.clone(), entry)
    }

    fn send(&self, mut entry: AccessLogEntry) {
        entry.duration_us = self.clock.now().since(entry.start);
        if self.queue.try_send(WriterMessage::Entry(entry)).is_err() {
            self.state.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
