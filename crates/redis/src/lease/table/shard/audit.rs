//! Counts of a lease shard, for tests that compare them with what is allowed.

use super::LeaseShard;
use tollgate_core::key::StateKey;

/// Counts of one lease shard.
#[derive(Debug)]
pub(in crate::lease::table) struct LeaseShardAudit {
    pub(in crate::lease::table) leases: usize,
    /// Leases marked for the tick, and keys in its schedule.
    pub(in crate::lease::table) busy: (usize, usize),
    pub(in crate::lease::table) groups: usize,
    /// Requests behind calls.
    pub(in crate::lease::table) queued: usize,
    /// By key: tokens that can be spent or are yet to be returned.
    pub(in crate::lease::table) held: Vec<(StateKey, u64)>,
}

impl<W> LeaseShard<W> {
    pub(in crate::lease::table) fn audit(&self) -> LeaseShardAudit {
        LeaseShardAudit {
            leases: self.leases.len(),
            busy: (self.leases.values().filter(|lease| lease.is_busy).count(), self.busy.keys()),
            groups: self.pending.len(),
            queued: self.pending.values().map(|pending| pending.queue.len()).sum(),
            held: self.leases.iter().map(|(key, lease)| (*key, lease.credit.held())).collect(),
        }
    }
}
