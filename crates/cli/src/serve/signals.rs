//! The signals of the process.

use crate::command_error::CommandError;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receives the signals of the process.
pub struct ProcessSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    user1: Signal,
}

/// What a signal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalRequest {
    /// SIGINT or SIGTERM, by its number: stop.
    Stop(u8),
    /// SIGHUP: reload rules, certificates and keys, and reopen the logs.
    Reload,
    /// SIGUSR1: reopen the logs.
    ReopenLogs,
}

impl ProcessSignals {
    /// Starts to receive. From now on none of these signals ends the process by itself.
    pub fn listen() -> Result<Self, CommandError> {
        let listen = |kind| signal(kind).map_err(CommandError::Signals);
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
            user1: listen(SignalKind::user_defined1())?,
        })
    }

    /// Waits for the next signal. Cancel safe: no signal is lost if the future is dropped.
    pub async fn next(&mut self) -> SignalRequest {
        let stop = |kind: SignalKind| SignalRequest::Stop(kind.as_raw_value() as u8);
        tokio::select! {
            _ = self.interrupt.recv() => stop(SignalKind::interrupt()),
            _ = self.terminate.recv() => stop(SignalKind::terminate()),
            _ = self.hangup.recv() => SignalRequest::Reload,
            _ = self.user1.recv() => SignalRequest::ReopenLogs,
        }
    }

    /// Waits for the next SIGINT or SIGTERM.
    pub async fn wait_for_stop(&mut self) {
        while !matches!(self.next().await, SignalRequest::Stop(_)) {}
    }
}
