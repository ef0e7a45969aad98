//! Why a call failed, and whether it may have been executed.

use crate::errors::is_slot_not_served;
use redis::{RedisError, ServerError, ServerErrorKind};

/// Of what a server says about an error.
const LONGEST_DETAIL: usize = 500;

/// Why a call failed. All but [`Lost`](Self::Lost) and [`InvalidAnswer`](Self::InvalidAnswer) were certainly not executed, or
/// refused as a whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// It was not sent: there is no connection, or the breaker is open.
    #[error("the server cannot be reached")]
    Unavailable,
    /// It was sent, and then nothing came: it may have been executed. A debit is not sent again.
    #[error("the answer is lost")]
    Lost,
    /// The slot belongs to the server at this address.
    #[error("slot {slot} belongs to {address}")]
    Moved {
        /// The slot.
        slot: u16,
        /// `host:port`; without a host, the one that was asked.
        address: String,
    },
    /// The slot is on its way to the server at this address, which must be asked just this once.
    #[error("slot {slot} is on its way to {address}")]
    Ask {
        /// The slot.
        slot: u16,
        /// `host:port`; without a host, the one that was asked.
        address: String,
    },
    /// The slot is on its way, and its keys are on both sides.
    #[error("the slot is on its way; try again")]
    TryAgain,
    /// No server serves this slot.
    #[error("CLUSTERDOWN the hash slot is not served")]
    SlotNotServed,
    /// The whole Cluster is down.
    #[error("CLUSTERDOWN the cluster is down")]
    ClusterDown,
    /// The server is still reading its data, or waits for its primary's.
    #[error("LOADING the server is loading its data")]
    Loading,
    /// The server is a replica.
    #[error("READONLY the server is a replica")]
    ReadOnly,
    /// A script runs for too long.
    #[error("BUSY the server is busy with a script")]
    Busy,
    /// The script must be sent again.
    #[error("the script is not loaded")]
    NoScript,
    /// The server's memory is full, and it takes no writes.
    #[error("{0}")]
    OutOfMemory(String),
    /// The server has too few replicas, and takes no writes.
    #[error("{0}")]
    NoReplicas(String),
    /// The server cannot save its data, and takes no writes.
    #[error("{0}")]
    NotSaving(String),
    /// The user lacks a permission, or is not logged in.
    #[error("{1}")]
    NoPermission(PermissionError, String),
    /// A reply came that cannot be read, or cannot be true: the call may have been executed.
    #[error("invalid answer: {0}")]
    InvalidAnswer(&'static str),
    /// The server's clock is not where it is expected: nothing was charged.
    #[error("clock step: the server's clock is not where it was expected")]
    ClockStepped,
    /// Anything else that the server said: most often an error in a script.
    #[error("{0}")]
    Other(String),
}

/// Why a server denies a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PermissionError {
    /// `NOPERM`: the user lacks a permission.
    Denied,
    /// `NOAUTH`: a login is required, and none was given.
    LoginRequired,
    /// `WRONGPASS`: the user name or the password is wrong.
    LoginWrong,
}

impl Failure {
    /// Whether the server is at fault as a whole, so that the next call would fare no better.
    pub(crate) fn is_outage(&self) -> bool {
        matches!(self, Self::Lost | Self::ClusterDown | Self::Loading | Self::ReadOnly | Self::Busy)
    }

    /// Classifies an error reply of the server.
    pub(super) fn of_answer(error: &ServerError) -> Self {
        let detail = shortened(error.details().unwrap_or_default());
        match error.kind() {
            Some(ServerErrorKind::Moved) => redirection(detail).map_or_else(
                || Self::Other(format!("MOVED {detail}")),
                |(slot, address)| Self::Moved { slot, address },
            ),
            Some(ServerErrorKind::Ask) => redirection(detail).map_or_else(
                || Self::Other(format!("ASK {detail}")),
                |(slot, address)| Self::Ask { slot, address },
            ),
            Some(ServerErrorKind::TryAgain) => Self::TryAgain,
            Some(ServerErrorKind::ClusterDown) if is_slot_not_served(detail) => Self::SlotNotServed,
            Some(ServerErrorKind::ClusterDown) => Self::ClusterDown,
            Some(ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown) => Self::Loading,
            Some(ServerErrorKind::ReadOnly) => Self::ReadOnly,
            Some(ServerErrorKind::NoScript) => Self::NoScript,
            _ if error.code() == "BUSY" => Self::Busy,
            _ => Self::of_text(&format!("{} {detail}", shortened(error.code()))),
        }
    }

    /// Classifies an error of the client library. One with a code is the server's.
    pub(super) fn of_call(error: &RedisError) -> Self {
        match ServerError::try_from(error.clone()) {
            Ok(error) => Self::of_answer(&error),
            Err(_) => Self::Lost,
        }
    }
}

/// Errors are logged and remembered; a server may say a lot.
fn shortened(text: &str) -> &str {
    text.char_indices().nth(LONGEST_DETAIL).map_or(text, |(end, _)| &text[..end])
}

/// Reads `3999 127.0.0.1:6381`.
fn redirection(detail: &str) -> Option<(u16, String)> {
    let (slot, address) = detail.split_once(' ')?;
    Some((slot.parse().ok()?, address.to_owned()))
}
