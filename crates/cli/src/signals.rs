//! What the process is told by signals.

use crate::Failure;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that are heard, from now on.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    user1: Signal,
}

/// What a signal says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalMeaning {
    /// SIGINT or SIGTERM, by its number: stop.
    Stop(u8),
    /// SIGHUP: take up rules, certificates and keys again, and open the logs again.
    Reload,
    /// SIGUSR1: open the logs again.
    Reopen,
}

impl Signals {
    /// From now on none of them ends the process by itself.
    pub fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::plain(format!("signals cannot be handled: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
            user1: listen(SignalKind::user_defined1())?,
        })
    }

    /// The next one. May be dropped and called again without missing any.
    pub async fn next(&mut self) -> SignalMeaning {
        let stop = |kind: SignalKind| SignalMeaning::Stop(kind.as_raw_value() as u8);
        tokio::select! {
            _ = self.interrupt.recv() => stop(SignalKind::interrupt()),
            _ = self.terminate.recv() => stop(SignalKind::terminate()),
            _ = self.hangup.recv() => SignalMeaning::Reload,
            _ = self.user1.recv() => SignalMeaning::Reopen,
        }
    }

    /// The next one that says stop.
    pub async fn stop(&mut self) {
        while !matches!(self.next().await, SignalMeaning::Stop(_)) {}
    }
}
