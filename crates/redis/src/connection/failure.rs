//! Why a call failed, and whether it may have been executed.

use redis::{RedisError, ServerError};

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
    #[error("{0}")]
    NoPermission(String),
    /// An answer came that cannot be read, or cannot be true: the call may have been executed.
    #[error("invalid answer: {0}")]
    InvalidAnswer(&'static str),
    /// The server's clock is not where it is expected: nothing was charged.
    #[error("clock step: the server's clock is not where it was expected")]
    ClockStepped,
    /// Anything else that the server said: most often an error in a script.
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
        let detail = shortened(error.details().unwrap_or_default());
        match shortened(error.code()) {
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
            code => Self::of_text(&format!("{code} {detail}")),
        }
    }

    /// What an error means that was raised inside a script. Servers before 7.0 put the script's name and line before
    /// it, later ones behind it; and a missing permission has no code there.
    pub(crate) fn of_text(text: &str) -> Self {
        let whole = text.trim_end();
        // The same reason is one reason, wherever in a script it was met.
        let line = whole.rfind(" script: ").filter(|at| whole[*at..].contains("on @"));
        let text = &whole[..line.unwrap_or(whole.len())];
        let from = |code: &str| {
            text.match_indices(code).map(|(at, _)| &text[at..]).find(|rest| {
                let before = text[..text.len() - rest.len()].chars().last();
                let after = rest[code.len()..].chars().next();
                before.is_none_or(|before| !before.is_alphanumeric())
                    && after.is_none_or(|after| after == ' ')
            })
        };
        let coded = [
            ("OOM", Self::OutOfMemory as fn(String) -> Self),
            ("NOREPLICAS", Self::NoReplicas),
            ("MISCONF", Self::NotSaving),
            ("NOPERM", Self::NoPermission),
            ("NOAUTH", Self::NoPermission),
            ("WRONGPASS", Self::NoPermission),
        ];
        for (code, failure) in coded {
            if let Some(found) = from(code) {
                return failure(found.to_owned());
            }
        }
        for phrase in ["ACL failure in script", "The user executing the script can't"] {
            if let Some(at) = text.find(phrase) {
                return Self::NoPermission(format!("NOPERM {}", &text[at..]));
            }
        }
        if from("READONLY").is_some() { Self::ReadOnly } else { Self::Other(whole.to_owned()) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_every_server_are_told_apart() {
        let table = [
            (
                "OOM command not allowed when used memory > 'maxmemory'. script: a0bc, on @user_script:1.",
                "OOM command not allowed when used memory > 'maxmemory'.",
            ),
            (
                "ERR Error running script (call to f_a0): @user_script:1: @user_script: 1: -OOM command",
                "OOM command",
            ),
            ("=[C]: -1: -NOREPLICAS Not enough good replicas to write.\r\n", "NOREPLICAS Not enough good"),
            ("MISCONF Redis is configured to save RDB snapshots", "MISCONF Redis is"),
            (
                "ERR The user executing the script can't run this command or subcommand",
                "NOPERM The user exec",
            ),
            (
                "ERR ACL failure in script: User u has no permissions to run the 'zadd' command script: on @user_script:1.",
                "NOPERM ACL failure in script: User u has no permissions to run the 'zadd' command",
            ),
            ("NOPERM User u has no permissions to run the 'zadd' command", "NOPERM User u has"),
            ("-READONLY You can't write against a read only replica.", "READONLY the server is a replica"),
            ("ERR unknown command 'HRANDFIELD'", "ERR unknown command"),
            ("ERR BOOM in ZOOM", "ERR BOOM"),
        ];
        for (text, expected) in table {
            let failure = Failure::of_text(text);
            assert!(failure.to_string().starts_with(expected), "{text}: {failure}");
            assert!(!failure.to_string().contains("@user_script"), "{failure}");
        }
        assert!(matches!(Failure::of_text("ERR BOOM in ZOOM"), Failure::Other(_)));
    }
}
