//! The signals of the process.

use crate::command_error::CommandError;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// Receives the signals of the process.
pub struct ProcessSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    user1: Signal,
    /// When to stop without a signal.
    stop_at: Option<Instant>,
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
    /// Starts to receive. From now on none of these signals ends the process by itself. After `stop_after`, it is as if
    /// SIGTERM had come.
    pub fn listen(stop_after: Option<Duration>) -> Result<Self, CommandError> {
        let listen = |kind| signal(kind).map_err(CommandError::Signals);
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
            user1: listen(SignalKind::user_defined1())?,
            stop_at: stop_after.map(|after| Instant::now() + after),
        })
    }

    /// Waits for the next signal. Cancel safe: no signal is lost if the future is dropped.
    pub async fn next(&mut self) -> SignalRequest {
        let stop = |kind: SignalKind| SignalRequest::Stop(kind.as_raw_value() as u8);
        let stop_at = self.stop_at;
        let time_is_over = async {
            match stop_at {
                Some(time) => tokio::time::sleep_until(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => stop(SignalKind::interrupt()),
            _ = self.terminate.recv() => stop(SignalKind::terminate()),
            _ = self.hangup.recv() => SignalRequest::Reload,
            _ = self.user1.recv() => SignalRequest::ReopenLogs,
            () = time_is_over => {
                self.stop_at = None;
                stop(SignalKind::terminate())
            }
        }
    }

    /// Waits for the next SIGINT or SIGTERM.
    pub async fn wait_for_stop(&mut self) {
        while !matches!(self.next().await, SignalRequest::Stop(_)) {}
    }
}
