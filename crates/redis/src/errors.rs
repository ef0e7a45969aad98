//! Errors that the store answers with: each is counted by its kind, and each reason is logged as an ERROR, at most
//! once in ten seconds for each shard. A decision that meets one is degraded.

use super::connection::Failure;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
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
    /// The answer cannot be read, or cannot be true.
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
    counts: [AtomicU64; StoreErrorKind::ALL.len()],
    /// By shard and reason: when it was logged, and how often it was met since.
    logged: Mutex<HashMap<(u32, String), (TimerTime, u64)>>,
}

impl StoreErrors {
    /// How many errors of this kind there were.
    pub(crate) fn count(&self, kind: StoreErrorKind) -> u64 {
        self.counts[kind as usize].load(Ordering::Relaxed)
    }

    /// Counts an error. If it is to be logged: how many of the same there were since the last line, this one included.
    pub(crate) fn note(&self, shard: u32, kind: StoreErrorKind, reason: &str, now: TimerTime) -> Option<u64> {
        self.counts[kind as usize].fetch_add(1, Ordering::Relaxed);
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
            Self::NoPermission(_) => Some(StoreErrorKind::Permission),
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
}
