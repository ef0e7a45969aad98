//! Watches files in a thread of its own: a disk that hangs blocks that thread and nothing else, neither a decision nor
//! the stop of the process.
//!
//! The *folders* are watched rather than the files: editors write a new file and rename it, and Kubernetes swaps a
//! symlink. Because not every file system reports changes, the files are also read every second.

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;
use tollgate_limiter::file;

const READ_EVERY: Duration = Duration::from_secs(1);
/// A save often causes several events; this long after the first, it is usually complete. Also the least time between
/// two reads, because the folder may be a busy one.
const SETTLE: Duration = Duration::from_millis(20);

/// Why the contents of the files are passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadCause {
    /// A file has changed since the last read.
    Changed,
    /// No file has changed, but [`FileWatcher::reload`] was called.
    Requested,
}

/// The content of each file, in order, or the error of reading it.
pub type FileContents = Vec<io::Result<Vec<u8>>>;

/// Watches files until it is dropped.
#[derive(Debug)]
pub struct FileWatcher {
    flags: Arc<WatcherFlags>,
    wake: SyncSender<()>,
}

#[derive(Debug, Default)]
struct WatcherFlags {
    reload: AtomicBool,
    stop: AtomicBool,
    /// The files were read since the last call of [`FileWatcher::take_has_read`].
    has_read: AtomicBool,
}

impl FileWatcher {
    /// Passes the contents of `files` to `on_read`, in a thread called `name`: at once, and whenever a file changes.
    pub fn start(
        name: &str,
        files: Vec<PathBuf>,
        on_read: impl FnMut(FileContents, ReadCause) + Send + 'static,
    ) -> io::Result<Self> {
        Self::start_from(name, WatchedFiles::new(files), on_read)
    }

    /// The same without the first call, if the contents are those that `files` have recorded.
    pub(crate) fn start_from(
        name: &str,
        files: WatchedFiles,
        on_read: impl FnMut(FileContents, ReadCause) + Send + 'static,
    ) -> io::Result<Self> {
        let (wake, woken) = sync_channel(1);
        let flags = Arc::new(WatcherFlags::default());
        let watching = WatcherThread { files, on_read, flags: Arc::clone(&flags) };
        let changed = wake.clone();
        thread::Builder::new().name(name.to_owned()).spawn(move || watching.run(changed, &woken))?;
        Ok(Self { flags, wake })
    }

    /// Has the files read and passed on soon, whether they have changed or not. Does not wait for it.
    pub fn reload(&self) {
        self.flags.reload.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether the files were read since the last call, or since the start. If not after many seconds, the disk hangs,
    /// and changes are not noticed.
    pub fn take_has_read(&self) -> bool {
        self.flags.has_read.swap(false, Ordering::AcqRel)
    }

    fn wake(&self) {
        // If the channel is full, the thread wakes up anyway.
        let _ = self.wake.try_send(());
    }
}

impl Drop for FileWatcher {
    fn drop(&mut self) {
        self.flags.stop.store(true, Ordering::Release);
        self.wake();
    }
}

/// Files, and what they contained last. Contents are kept as hashes, because some of the files are secret.
#[derive(Debug)]
pub(crate) struct WatchedFiles {
    paths: Vec<PathBuf>,
    hasher: RandomState,
    recorded: Option<Vec<Result<u64, String>>>,
}

impl WatchedFiles {
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths, hasher: RandomState::new(), recorded: None }
    }

    pub(crate) fn read(&self) -> FileContents {
        self.paths.iter().map(|path| file::read(path)).collect()
    }

    fn is_changed(&self, contents: &FileContents) -> bool {
        self.recorded.as_ref() != Some(&self.digest(contents))
    }

    pub(crate) fn record(&mut self, contents: &FileContents) {
        self.recorded = Some(self.digest(contents));
    }

    fn digest(&self, contents: &FileContents) -> Vec<Result<u64, String>> {
        let digest = |content: &io::Result<Vec<u8>>| match content {
            Ok(bytes) => Ok(self.hasher.hash_one(bytes)),
            Err(error) => Err(error.to_string()),
        };
        contents.iter().map(digest).collect()
    }
}

/// The state of the watching thread.
struct WatcherThread<F> {
    files: WatchedFiles,
    on_read: F,
    flags: Arc<WatcherFlags>,
}

impl<F: FnMut(FileContents, ReadCause)> WatcherThread<F> {
    fn run(mut self, changed: SyncSender<()>, woken: &Receiver<()>) {
        // Without it, changes are noticed by reading.
        let watcher = watch_folders(&self.files.paths, changed);
        if let Err(error) = &watcher {
            let file = self.files.paths.first().map(|path| path.display().to_string());
            tracing::warn!(file, %error, "folder cannot be watched; reading its files every second instead");
        }
        while !self.flags.stop.load(Ordering::Acquire) {
            self.read();
            self.flags.has_read.store(true, Ordering::Release);
            thread::sleep(SETTLE);
            if woken.recv_timeout(READ_EVERY) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }

    fn read(&mut self) {
        let is_requested = self.flags.reload.swap(false, Ordering::AcqRel);
        let mut contents = self.files.read();
        if self.files.is_changed(&contents) {
            // A file may have been read half written, with or without an event.
            thread::sleep(SETTLE);
            contents = self.files.read();
        }
        if self.flags.stop.load(Ordering::Acquire) {
            return;
        }
        if self.files.is_changed(&contents) {
            self.files.record(&contents);
            (self.on_read)(contents, ReadCause::Changed);
        } else if is_requested {
            (self.on_read)(contents, ReadCause::Requested);
        }
    }
}

/// Sends a message whenever something in the folders of `files` changes, until the watcher is dropped.
fn watch_folders(files: &[PathBuf], changed: SyncSender<()>) -> notify::Result<RecommendedWatcher> {
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if event.is_ok_and(|event| !event.kind.is_access()) {
            let _ = changed.try_send(());
        }
    })?;
    let folders: BTreeSet<&Path> = files.iter().map(|file| folder_of(file)).collect();
    for folder in folders {
        watcher.watch(folder, RecursiveMode::NonRecursive)?;
    }
    Ok(watcher)
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
