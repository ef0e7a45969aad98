//! Why a call has no answer that can be used, and whether it may have been executed.

use redis::{RedisError, ServerError};

/// Why a call failed. All but [`Lost`](Self::Lost) were certainly not executed, or refused as a whole.
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
    /// Nobody serves this slot.
    #[error("nobody serves this slot")]
    SlotNotServed,
    /// The whole Cluster serves nobody.
    #[error("the cluster is down")]
    ClusterDown,
    /// The server is still reading its data, or waits for its primary's.
    #[error("the server is loading")]
    Loading,
    /// The server is a replica.
    #[error("the server is a replica")]
    ReadOnly,
    /// A script runs for too long.
    #[error("the server is busy with a script")]
    Busy,
    /// The script must be sent again.
    #[error("the script is not loaded")]
    NoScript,
    /// The server's memory is full.
    #[error("the server is out of memory")]
    OutOfMemory,
    /// The server takes no writes for now: it cannot save, or has too few replicas.
    #[error("the server takes no writes: {0}")]
    NoWrites(String),
    /// Our user must not do this.
    #[error("no permission: {0}")]
    NoPermission(String),
    /// Anything else that the server said.
    #[error("{0}")]
    Other(String),
}

impl Failure {
    /// Whether the server is at fault as a whole, so that the next call would fare no better.
    pub(crate) fn is_outage(&self) -> bool {
        matches!(self, Self::Lost | Self::ClusterDown | Self::Loading | Self::ReadOnly | Self::Busy)
    }

    /// What an error means that the server answered.
    pub(super) fn of_answer(error: &ServerError) -> Self {
        let detail = error.details().unwrap_or_default();
        match error.code() {
            "MOVED" => redirection(detail).map_or_else(
                || Self::Other(format!("MOVED {detail}")),
                |(slot, address)| Self::Moved { slot, address },
            ),
            "ASK" => redirection(detail).map_or_else(
                || Self::Other(format!("ASK {detail}")),
                |(slot, address)| Self::Ask { slot, address },
            ),
            "TRYAGAIN" => Self::TryAgain,
            "CLUSTERDOWN" if detail.contains("not served") => Self::SlotNotServed,
            "CLUSTERDOWN" => Self::ClusterDown,
            "LOADING" | "MASTERDOWN" => Self::Loading,
            "READONLY" => Self::ReadOnly,
            "BUSY" => Self::Busy,
            "NOSCRIPT" => Self::NoScript,
            "OOM" => Self::OutOfMemory,
            code @ ("MISCONF" | "NOREPLICAS") => Self::NoWrites(format!("{code} {detail}")),
            code @ ("NOPERM" | "NOAUTH" | "WRONGPASS") => Self::NoPermission(format!("{code} {detail}")),
            code => Self::Other(format!("{code} {detail}")),
        }
    }

    /// What an error means that is ours or the library's. One with a code is the server's.
    pub(super) fn of_call(error: &RedisError) -> Self {
        match ServerError::try_from(error.clone()) {
            Ok(error) => Self::of_answer(&error),
            Err(_) => Self::Lost,
        }
    }
}

/// Reads `3999 127.0.0.1:6381`.
fn redirection(detail: &str) -> Option<(u16, String)> {
    let (slot, address) = detail.split_once(' ')?;
    Some((slot.parse().ok()?, address.to_owned()))
}
