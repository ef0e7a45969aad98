//! What a page holds, for tests that hold it against what it may.

use super::Page;

/// Counts of one page.
#[derive(Debug)]
pub(in crate::lease::book) struct Audit {
    pub(in crate::lease::book) leases: usize,
    /// Leases that a tick has to look at, and how many it would.
    pub(in crate::lease::book) busy: (usize, usize),
    pub(in crate::lease::book) flights: usize,
    /// Requests behind calls.
    pub(in crate::lease::book) queued: usize,
    /// By key: tokens that can be spent or are yet to be returned.
    pub(in crate::lease::book) held: Vec<(u64, u64)>,
}

impl<W> Page<W> {
    pub(in crate::lease::book) fn audit(&self) -> Audit {
        Audit {
            leases: self.leases.len(),
            busy: (self.leases.values().filter(|lease| lease.is_busy).count(), self.busy.keys()),
            flights: self.flights.len(),
            queued: self.flights.values().map(|flight| flight.queue.len()).sum(),
            held: self.leases.iter().map(|(key, lease)| (*key, lease.credit.held())).collect(),
        }
    }
}
