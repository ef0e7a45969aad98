//! Who waits for an answer of the store.

use crate::lease::{Verdict, Waiter};
use tokio::sync::oneshot;

/// The end at which a verdict is handed over.
#[derive(Debug)]
pub(crate) struct Ticket(oneshot::Sender<Verdict>);

/// The end at which it is waited for.
pub(crate) type Hearing = oneshot::Receiver<Verdict>;

impl Ticket {
    pub(crate) fn new() -> (Self, Hearing) {
        let (sender, hearing) = oneshot::channel();
        (Self(sender), hearing)
    }
}

impl Waiter for Ticket {
    fn hear(self, verdict: Verdict) -> bool {
        self.0.send(verdict).is_ok()
    }
}
