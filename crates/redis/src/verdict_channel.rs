//! Who waits for an answer of the store.

use crate::lease::{Verdict, Waiter};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The end at which a verdict is handed over.
#[derive(Debug)]
pub(crate) struct VerdictSender {
    sender: oneshot::Sender<Verdict>,
    since: Instant,
}

/// The end at which it is waited for.
pub(crate) type VerdictReceiver = oneshot::Receiver<Verdict>;

impl VerdictSender {
    pub(crate) fn new() -> (Self, VerdictReceiver) {
        let (sender, hearing) = oneshot::channel();
        (Self { sender, since: Instant::now() }, hearing)
    }

    /// Since when somebody waits.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }
}

impl Waiter for VerdictSender {
    fn deliver(self, verdict: Verdict) -> bool {
        self.sender.send(verdict).is_ok()
    }
}
