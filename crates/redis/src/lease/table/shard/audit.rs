//! What a page holds, for tests that hold it against what it may.

use super::LeaseShard;

/// Counts of one page.
#[derive(Debug)]
pub(in crate::lease::table) struct LeaseShardAudit {
    pub(in crate::lease::table) leases: usize,
    /// Leases that a tick has to look at, and how many it would.
    pub(in crate::lease::table) busy: (usize, usize),
    pub(in crate::lease::table) groups: usize,
    /// Requests behind calls.
    pub(in crate::lease::table) queued: usize,
    /// By key: tokens that can be spent or are yet to be returned.
    pub(in crate::lease::table) held: Vec<(u64, u64)>,
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
