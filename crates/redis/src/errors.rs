//! Error replies of the store: each is counted by its kind, and each reason is logged as an ERROR, at most once in ten
//! seconds for each shard. A decision that needs the failed call is degraded.
//!
//! Most errors have a code, which the client library reads. Where a server only sends a text (errors inside scripts,
//! and some of the login), it is compared with the functions at the end of this file, and nowhere else.

use super::connection::{Failure, PermissionError};
use parking_lot::Mutex;
use redis::RedisError;
use std::collections::HashMap;
use tollgate_core::time::TimerTime;

/// Between two lines about the same.
const QUIET_US: u64 = 10_000_000;
/// Reasons that are remembered; a store that finds more in ten seconds is heard often enough.
const MOST_REASONS: usize = 256;

/// What an error of the store is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreErrorKind {
    /// `NOPERM`, or a login that is not accepted: permission denied.
    Permission,
    /// `OOM`: `maxmemory` is reached.
    Memory,
    /// `NOREPLICAS`: fewer replicas than `min-replicas-to-write`.
    Replicas,
    /// `MISCONF`: the server cannot save its data and takes no writes.
    Persistence,
    /// `READONLY`: the server is a replica.
    ReadOnly,
    /// `CLUSTERDOWN`: the Cluster, or a slot of it, is not served.
    Cluster,
    /// `LOADING`, `MASTERDOWN` or `BUSY`: the server does not serve for now.
    Busy,
    /// The script failed, or the server does not know a command.
    Script,
    /// The server's clock has stepped.
    ClockStep,
    /// The reply cannot be read, or cannot be true.
    InvalidAnswer,
}

impl StoreErrorKind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::Permission,
        Self::Memory,
        Self::Replicas,
        Self::Persistence,
        Self::ReadOnly,
        Self::Cluster,
        Self::Busy,
        Self::Script,
        Self::ClockStep,
        Self::InvalidAnswer,
    ];

    /// Its name, for a label: the server's own code in lower case where it has one.
    pub fn name(self) -> &'static str {
        match self {
            Self::Permission => "noperm",
            Self::Memory => "oom",
            Self::Replicas => "noreplicas",
            Self::Persistence => "misconf",
            Self::ReadOnly => "readonly",
            Self::Cluster => "clusterdown",
            Self::Busy => "busy",
            Self::Script => "script",
            Self::ClockStep => "clock_step",
            Self::InvalidAnswer => "invalid_answer",
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct StoreErrors {
    /// By shard.
    counts: Mutex<HashMap<u32, [u64; StoreErrorKind::ALL.len()]>>,
    /// By shard and reason: when it was logged, and how often it was met since.
    logged: Mutex<HashMap<(u32, String), (TimerTime, u64)>>,
}

impl StoreErrors {
    /// How many errors of this kind there were.
    pub(crate) fn count(&self, kind: StoreErrorKind) -> u64 {
        self.counts.lock().values().map(|counts| counts[kind as usize]).sum()
    }

    /// How many errors of this kind `shard` answered with.
    pub(crate) fn count_of(&self, shard: u32, kind: StoreErrorKind) -> u64 {
        self.counts.lock().get(&shard).map_or(0, |counts| counts[kind as usize])
    }

    /// Counts an error. If it is to be logged: how many of the same there were since the last line, this one included.
    pub(crate) fn note(&self, shard: u32, kind: StoreErrorKind, reason: &str, now: TimerTime) -> Option<u64> {
        self.counts.lock().entry(shard).or_default()[kind as usize] += 1;
        let mut logged = self.logged.lock();
        let key = (shard, reason.to_owned());
        if let Some((last_line, since)) = logged.get_mut(&key) {
            *since += 1;
            if now < *last_line + QUIET_US {
                return None;
            }
            *last_line = now;
            return Some(std::mem::take(since));
        }
        if logged.len() >= MOST_REASONS {
            logged.retain(|_, (last_line, _)| now < *last_line + QUIET_US);
        }
        if logged.len() >= MOST_REASONS {
            return None;
        }
        logged.insert(key, (now, 0));
        Some(1)
    }
}

impl Failure {
    /// What kind of error it is, if it is one that the server answered and that no other server can make up for.
    pub(crate) fn kind(&self) -> Option<StoreErrorKind> {
        match self {
            Self::Unavailable | Self::Lost | Self::NoScript => None,
            Self::Moved { .. } | Self::Ask { .. } | Self::TryAgain => None,
            Self::NoPermission(..) => Some(StoreErrorKind::Permission),
            Self::OutOfMemory(_) => Some(StoreErrorKind::Memory),
            Self::NoReplicas(_) => Some(StoreErrorKind::Replicas),
            Self::NotSaving(_) => Some(StoreErrorKind::Persistence),
            Self::ReadOnly => Some(StoreErrorKind::ReadOnly),
            Self::SlotNotServed | Self::ClusterDown => Some(StoreErrorKind::Cluster),
            Self::Loading | Self::Busy => Some(StoreErrorKind::Busy),
            Self::ClockStepped => Some(StoreErrorKind::ClockStep),
            Self::InvalidAnswer(_) => Some(StoreErrorKind::InvalidAnswer),
            Self::Other(_) => Some(StoreErrorKind::Script),
        }
    }
}

impl Failure {
    /// Classifies an error that was raised inside a script. Servers before 7.0 put the script's name and line before
    /// it, later ones behind it; and a missing permission has no code there.
    pub(crate) fn of_text(text: &str) -> Self {
        let whole = text.trim_end();
        // The same reason is one reason, wherever in a script it was raised.
        let line = whole.rfind(" script: ").filter(|at| whole[*at..].contains("on @"));
        let text = &whole[..line.unwrap_or(whole.len())];
        let coded = [
            ("OOM", Self::OutOfMemory as fn(String) -> Self),
            ("NOREPLICAS", Self::NoReplicas),
            ("MISCONF", Self::NotSaving),
        ];
        for (code, failure) in coded {
            if let Some(found) = from_code(text, code) {
                return failure(found.to_owned());
            }
        }
        if let Some((error, found)) = permission_error(text) {
            return Self::NoPermission(error, found.to_owned());
        }
        for phrase in ["ACL failure in script", "The user executing the script can't"] {
            if let Some(at) = text.find(phrase) {
                return Self::NoPermission(PermissionError::Denied, format!("NOPERM {}", &text[at..]));
            }
        }
        match from_code(text, "READONLY") {
            Some(_) => Self::ReadOnly,
            None => Self::Other(whole.to_owned()),
        }
    }
}

/// The permission error in `text`, and the text from its code on.
fn permission_error(text: &str) -> Option<(PermissionError, &str)> {
    let codes = ["NOPERM", "NOAUTH", "WRONGPASS"];
    codes.into_iter().find_map(|code| Some((PermissionError::of_code(code)?, from_code(text, code)?)))
}

impl PermissionError {
    /// The permission error with this code.
    fn of_code(code: &str) -> Option<Self> {
        match code {
            "NOPERM" => Some(Self::Denied),
            "NOAUTH" => Some(Self::LoginRequired),
            "WRONGPASS" => Some(Self::LoginWrong),
            _ => None,
        }
    }
}

/// The permission error for which the client library could not log in.
pub(crate) fn failed_login(error: &RedisError) -> Option<Failure> {
    let code = error.code()?;
    let detail = format!("{code} {}", error.detail().unwrap_or_default());
    Some(Failure::NoPermission(PermissionError::of_code(code)?, detail))
}

/// `text` from `code` on, if that is one of its words.
fn from_code<'t>(text: &'t str, code: &str) -> Option<&'t str> {
    text.match_indices(code).map(|(at, _)| &text[at..]).find(|rest| {
        let before = text[..text.len() - rest.len()].chars().last();
        let after = rest[code.len()..].chars().next();
        before.is_none_or(|before| !before.is_alphanumeric()) && after.is_none_or(|after| after == ' ')
    })
}

/// Whether a login was sent to a server that has no password: it has no code.
pub(crate) fn is_login_unexpected(text: &str) -> bool {
    text.contains("AUTH")
}

/// Whether SELECT names a database that the server does not have.
pub(crate) fn is_database_missing(text: &str) -> bool {
    text.contains("DB index") || text.contains("SELECT")
}

/// Whether a single slot, and not the whole Cluster, is not served: both have the code `CLUSTERDOWN`.
pub(crate) fn is_slot_not_served(detail: &str) -> bool {
    detail.contains("not served")
}

/// Whether a script has accessed a key whose slot has moved away.
pub(crate) fn is_key_moved(text: &str) -> bool {
    text.contains("non local key") || text.contains("MOVED")
}

/// Whether a Sentinel knows no primary by the given name.
pub(crate) fn is_primary_unknown(text: &str) -> bool {
    text.contains("No such master")
}

/// Whether a permission to access keys is missing, and not one to run a command: both have the code `NOPERM`.
pub(crate) fn is_key_denied(text: &str) -> bool {
    text.contains("key") && !text.contains("to run the '")
}

#[cfg(test)]
mod tests {
    use super::*;
    use StoreErrorKind::{Memory, Permission};

    #[test]
    fn a_reason_is_logged_once_in_ten_seconds_for_each_shard() {
        let errors = StoreErrors::default();
        let table = [
            (0, 0, Memory, "OOM", Some(1)),
            (1, 0, Memory, "OOM", None),
            (2, 1, Memory, "OOM", Some(1)),
            (3, 0, Permission, "NOPERM a", Some(1)),
            (4, 0, Permission, "NOPERM b", Some(1)),
            (9_999_999, 0, Memory, "OOM", None),
            (10_000_000, 0, Memory, "OOM", Some(3)),
            (10_000_001, 0, Memory, "OOM", None),
            (20_000_000, 0, Memory, "OOM", Some(2)),
        ];
        for (now_us, shard, kind, reason, logged) in table {
            assert_eq!(errors.note(shard, kind, reason, TimerTime::from_us(now_us)), logged, "{now_us}");
        }
        assert_eq!((errors.count(Memory), errors.count(Permission)), (7, 2));
        assert_eq!(errors.count(StoreErrorKind::Script), 0);
    }

    #[test]
    fn reasons_without_end_are_counted_in_bounded_memory() {
        let errors = StoreErrors::default();
        let logged = (0..10_000)
            .filter(|n| errors.note(0, Memory, &n.to_string(), TimerTime::default()).is_some())
            .count();
        assert_eq!((logged, errors.count(Memory)), (MOST_REASONS, 10_000));
        assert!(errors.note(0, Memory, "later", TimerTime::from_us(QUIET_US)).is_some());
        assert_eq!(errors.logged.lock().len(), 1);
    }

    #[test]
    fn kinds_are_told_apart() {
        for (index, kind) in StoreErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index, "{}", kind.name());
        }
    }

    #[test]
    fn errors_inside_scripts_are_classified_on_every_server() {
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

    #[test]
    fn permission_errors_are_told_apart() {
        for (text, error) in [
            ("NOPERM User u has no permissions", PermissionError::Denied),
            ("NOAUTH Authentication required.", PermissionError::LoginRequired),
            ("WRONGPASS invalid username-password pair", PermissionError::LoginWrong),
        ] {
            assert_eq!(Failure::of_text(text), Failure::NoPermission(error, text.to_owned()));
        }
    }
}
