//! The tick: spent tokens are reported, idle credit is returned, unused leases are evicted.

use super::LeaseShard;
use crate::lease::credit::Credit;
use crate::lease::table::StoreCall;
use crate::lease::table::reports::ReportBatch;
use tollgate_core::time::BootTime;

/// A key without requests is evicted after this time; sooner if the table is nearly full.
const IDLE_US: u64 = 16_000_000;
const IDLE_WHEN_FULL_US: u64 = 2_000_000;
const SWEEP_EVERY_US: u64 = 2_000_000;
const SWEEP_WHEN_FULL_EVERY_US: u64 = 500_000;

impl<W> LeaseShard<W> {
    /// See [`super::LeaseTable::tick`].
    pub(in crate::lease::table) fn tick(
        &mut self,
        now: BootTime,
        tick_us: u64,
        nodes: u32,
    ) -> Vec<StoreCall<W>> {
        let mut reports = ReportBatch::default();
        let leases = &mut self.leases;
        self.busy.walk(now, tick_us, |key| {
            let Some(lease) = leases.get_mut(&key) else { return false };
            lease.return_unused(nodes, now);
            if lease.must_report(nodes, now) {
                reports.add(key, lease, now);
            }
            lease.is_busy = lease.is_due(nodes, now);
            lease.is_busy
        });
        if self.next_sweep <= now {
            let is_nearly_full = self.leases.len() > self.most_leases / 4 * 3;
            let (idle_us, every_us) = match is_nearly_full {
                true => (IDLE_WHEN_FULL_US, SWEEP_WHEN_FULL_EVERY_US),
                false => (IDLE_US, SWEEP_EVERY_US),
            };
            self.next_sweep = now + every_us;
            self.leases.retain(|_, lease| {
                // A refusal is needed until its retry time if the store becomes unavailable.
                let is_refused = !is_nearly_full && lease.refused_until > now;
                lease.is_busy || is_refused || lease.last_used + idle_us > now
            });
        }
        reports.into_calls(self.addresses, now)
    }

    /// See [`super::LeaseTable::drop_credit`].
    pub(in crate::lease::table) fn drop_credit(&mut self, is_doubtful: impl Fn(&str) -> bool) {
        for lease in self.leases.values_mut() {
            if lease.address.as_ref().is_none_or(|(key, ..)| is_doubtful(key)) {
                lease.credit = Credit::default();
            }
        }
    }

    /// See [`super::LeaseTable::return_all`].
    pub(in crate::lease::table) fn return_all(&mut self, now: BootTime) -> Vec<StoreCall<W>> {
        let mut reports = ReportBatch::default();
        for (key, lease) in &mut self.leases {
            lease.credit.give_back(BootTime::MAX);
            lease.last_reply = None;
            reports.add(*key, lease, now);
        }
        reports.into_calls(self.addresses, now)
    }
}
