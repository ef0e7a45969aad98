//! The thread of a rule source. Compiling and testing rules may take a second, which no thread that decides requests must
//! be kept from them; the file system may block for longer.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

/// Follows a rule source until it is dropped.
pub struct FollowedRules {
    reload: Arc<Notify>,
    /// Dropping it ends the thread.
    _stop: watch::Sender<()>,
}

/// What the thread is told.
pub(crate) struct SourceSignals {
    reload: Arc<Notify>,
    stop: watch::Receiver<()>,
}

/// How the polls of a rule source fare.
#[derive(Clone, Debug, Default)]
pub struct SourceHealth(Arc<AtomicU64>);

impl fmt::Debug for FollowedRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FollowedRules")
    }
}

impl FollowedRules {
    /// Runs the future of `follow` in a thread of its own, until this is dropped. The future may block. Its I/O and its
    /// timers are those of `runtime`.
    pub(crate) fn start<F>(
        runtime: Handle,
        follow: impl FnOnce(SourceSignals) -> F + Send + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = ()>,
    {
        let (stop, stopped) = watch::channel(());
        let reload = Arc::new(Notify::new());
        let signals = SourceSignals { reload: Arc::clone(&reload), stop: stopped };
        let run = move || {
            let following: Pin<Box<F>> = Box::pin(follow(signals));
            runtime.block_on(following);
        };
        thread::Builder::new().name("rule-source".to_owned()).spawn(run)?;
        Ok(Self { reload, _stop: stop })
    }

    /// Has the source read soon. Does not wait for it.
    pub fn reload(&self) {
        self.reload.notify_one();
    }
}

impl SourceSignals {
    /// Resolves when the thread has to end.
    pub(crate) async fn stopped(&mut self) {
        // Nothing is ever sent: an error means that the sender is gone.
        while self.stop.changed().await.is_ok() {}
    }

    /// Resolves when the source is to be read.
    pub(crate) fn reload(&self) -> Arc<Notify> {
        Arc::clone(&self.reload)
    }
}

impl SourceHealth {
    /// Consecutive polls that failed.
    pub fn failed_polls(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Records a poll that was answered. Returns how many had failed before.
    pub(crate) fn record_success(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }

    /// Records a poll that failed. Returns how many had failed before.
    pub(crate) fn record_failure(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}
