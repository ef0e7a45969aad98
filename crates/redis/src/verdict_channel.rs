//! The channel on which a request receives the verdict of the store.

use crate::lease::{Verdict, Waiter};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The sending end.
#[derive(Debug)]
pub(crate) struct VerdictSender {
    sender: oneshot::Sender<Verdict>,
    since: Instant,
}

/// The receiving end.
pub(crate) type VerdictReceiver = oneshot::Receiver<Verdict>;

impl VerdictSender {
    pub(crate) fn new() -> (Self, VerdictReceiver) {
        let (sender, receiver) = oneshot::channel();
        (Self { sender, since: Instant::now() }, receiver)
    }

    /// When the request began to wait.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }
}

impl Waiter for VerdictSender {
    fn deliver(self, verdict: Verdict) -> bool {
        self.sender.send(verdict).is_ok()
    }
}
