//! Files that are watched, in a thread of their own: a disk that hangs blocks that thread and nothing else, neither a
//! decision nor the stop of the process.
//!
//! The *folders* are watched rather than the files: editors write beside and rename, and Kubernetes swaps a symlink.
//! Because not every file system tells of changes, the files are also read every second.

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

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A save is often several events; this long after the first, it is usually complete. Also the pause between two looks,
/// for the folder may be a busy one.
const SETTLE: Duration = Duration::from_millis(20);

/// Why the files are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// One of them is not as it was seen before.
    Changed,
    /// None has changed, but [`FileWatch::reload`] was called.
    Asked,
}

/// What stands in the files, in their order, or why that is not known.
pub type Contents = Vec<io::Result<Vec<u8>>>;

/// Watched files, until it is dropped.
#[derive(Debug)]
pub struct FileWatch {
    requested: Arc<Requested>,
    wake: SyncSender<()>,
}

#[derive(Debug, Default)]
struct Requested {
    reload: AtomicBool,
    stop: AtomicBool,
    /// The files were looked at since [`FileWatch::has_looked`] was last called.
    has_looked: AtomicBool,
}

impl FileWatch {
    /// Hands the content of `files` to `take`, in a thread called `name`: at once, and whenever one of them changes.
    pub fn start(
        name: &str,
        files: Vec<PathBuf>,
        take: impl FnMut(Contents, Cause) + Send + 'static,
    ) -> io::Result<Self> {
        Self::start_with(name, Files::new(files), take)
    }

    /// The same, but for what `files` have been seen as already.
    pub(crate) fn start_with(
        name: &str,
        files: Files,
        take: impl FnMut(Contents, Cause) + Send + 'static,
    ) -> io::Result<Self> {
        let (wake, woken) = sync_channel(1);
        let requested = Arc::new(Requested::default());
        let looking = Looking { files, take, requested: Arc::clone(&requested) };
        let changed = wake.clone();
        thread::Builder::new().name(name.to_owned()).spawn(move || looking.run(changed, &woken))?;
        Ok(Self { requested, wake })
    }

    /// Has the files handed over again soon, whether they have changed or not. Waits for nothing.
    pub fn reload(&self) {
        self.requested.reload.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether the files were looked at since this was last called, or since the start. If not after many seconds, the
    /// disk hangs, and what has changed there is not known.
    pub fn has_looked(&self) -> bool {
        self.requested.has_looked.swap(false, Ordering::AcqRel)
    }

    fn wake(&self) {
        // If a wake-up is already waiting, one more says nothing new.
        let _ = self.wake.try_send(());
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        self.requested.stop.store(true, Ordering::Release);
        self.wake();
    }
}

/// Files, and what they were seen as last. Contents are kept as hashes: some of the files are secret.
#[derive(Debug)]
pub(crate) struct Files {
    paths: Vec<PathBuf>,
    hasher: RandomState,
    seen: Option<Vec<Result<u64, String>>>,
}

impl Files {
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths, hasher: RandomState::new(), seen: None }
    }

    pub(crate) fn read(&self) -> Contents {
        self.paths.iter().map(|path| file::read(path)).collect()
    }

    fn is_new(&self, contents: &Contents) -> bool {
        self.seen.as_ref() != Some(&self.digest(contents))
    }

    pub(crate) fn note(&mut self, contents: &Contents) {
        self.seen = Some(self.digest(contents));
    }

    fn digest(&self, contents: &Contents) -> Vec<Result<u64, String>> {
        let digest = |content: &io::Result<Vec<u8>>| match content {
            Ok(bytes) => Ok(self.hasher.hash_one(bytes)),
            Err(error) => Err(error.to_string()),
        };
        contents.iter().map(digest).collect()
    }
}

/// The thread's part.
struct Looking<T> {
    files: Files,
    take: T,
    requested: Arc<Requested>,
}

impl<T: FnMut(Contents, Cause)> Looking<T> {
    fn run(mut self, changed: SyncSender<()>, woken: &Receiver<()>) {
        // Without a watcher a change is noticed by looking.
        let watcher = watch_folders(&self.files.paths, changed);
        if let Err(error) = &watcher {
            let file = self.files.paths.first().map(|path| path.display().to_string());
            tracing::warn!(file, %error, "a folder cannot be watched; its files are read every second instead");
        }
        while !self.requested.stop.load(Ordering::Acquire) {
            self.look();
            self.requested.has_looked.store(true, Ordering::Release);
            thread::sleep(SETTLE);
            if woken.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }

    fn look(&mut self) {
        let is_asked = self.requested.reload.swap(false, Ordering::AcqRel);
        let mut contents = self.files.read();
        if self.files.is_new(&contents) {
            // It may have been seen half written, however it was noticed.
            thread::sleep(SETTLE);
            contents = self.files.read();
        }
        if self.requested.stop.load(Ordering::Acquire) {
            return;
        }
        if self.files.is_new(&contents) {
            self.files.note(&contents);
            (self.take)(contents, Cause::Changed);
        } else if is_asked {
            (self.take)(contents, Cause::Asked);
        }
    }
}

/// Sends a word whenever something in the folders of `files` changes. Stops when it is dropped.
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
