//! Reports to the store of tokens that were spent or returned.

use super::StoreCall;
use super::lease::Lease;
use super::shard::HashedMap;
use smallvec::SmallVec;
use std::sync::Arc;
use tollgate_core::key::StateKey;
use tollgate_core::lending::{LeaseReport, Prefetch};
use tollgate_core::limit::Meter;
use tollgate_core::rules::{LeaseTiming, LimitId, OverLimitEffect};
use tollgate_core::script::{ChargeCall, ScriptCall};
use tollgate_core::state_address::{StateAddress, StateField};
use tollgate_core::time::BootTime;
use tollgate_limiter::OwnedCharge;

/// Limits in one call: more would delay other commands of the server.
const LIMITS_AT_ONCE: usize = 32;

/// The key of a client, and the reports on its limits.
type ClientReports = (Arc<str>, Vec<(OwnedCharge, ChargeCall)>);

/// Reports, grouped by client.
#[derive(Default)]
pub(super) struct ReportBatch {
    by_client: HashedMap<u64, ClientReports>,
}

impl ReportBatch {
    pub(super) fn add(&mut self, key: StateKey, lease: &mut Lease, now: BootTime) {
        let reports = needed_reports(lease.credit.reports(now), &lease.meter);
        let (false, Some((client_key, client, field))) = (reports.is_empty(), &lease.address) else { return };
        let charge = OwnedCharge {
            id: LimitId::NONE,
            key,
            client: *client,
            meter: lease.meter,
            enforced: true,
            over: OverLimitEffect::default(),
            leased: true,
            leasing: LeaseTiming::default(),
            denies_on_failure: false,
        };
        let (_, charges) =
            self.by_client.entry(*client).or_insert_with(|| (Arc::clone(client_key), Vec::new()));
        charges.push((charge, report_call(lease.meter, *field, reports)));
    }

    pub(super) fn into_calls<W>(self, addresses: u32, now: BootTime) -> Vec<StoreCall<W>> {
        let calls = self.by_client.into_iter().flat_map(|(client, (key, charges))| {
            let chunks: Vec<StoreCall<W>> = charges
                .chunks(LIMITS_AT_ONCE)
                .map(|charges| StoreCall {
                    key: Arc::clone(&key),
                    ask: ScriptCall {
                        runs: SmallVec::new(),
                        charges: charges.iter().map(|(_, ask)| ask.clone()).collect(),
                    },
                    sent: now,
                    client,
                    group: 0,
                    addresses,
                    charges: charges.iter().map(|(charge, _)| *charge).collect(),
                    waiters: Vec::new(),
                })
                .collect();
            chunks
        });
        calls.collect()
    }
}

impl<W> StoreCall<W> {
    /// A call that only reports on one limit, if there is anything to report.
    pub(super) fn report(
        charge: &OwnedCharge,
        address: StateAddress,
        reports: SmallVec<[LeaseReport; 2]>,
        addresses: u32,
        now: BootTime,
    ) -> Option<Self> {
        let reports = needed_reports(reports, &charge.meter);
        if reports.is_empty() {
            return None;
        }
        let ask = report_call(charge.meter, address.field, reports);
        Some(Self {
            key: Arc::from(address.key),
            ask: ScriptCall { runs: SmallVec::new(), charges: SmallVec::from_iter([ask]) },
            sent: now,
            client: charge.client,
            group: 0,
            addresses,
            charges: Arc::from([*charge]),
            waiters: Vec::new(),
        })
    }
}

fn report_call(meter: Meter, field: StateField, reports: SmallVec<[LeaseReport; 2]>) -> ChargeCall {
    ChargeCall { meter, field, enforced: true, as_lent: false, prefetch: Prefetch::NONE, reports }
}

/// The reports that change a state: tokens spent in a window were counted when they were taken.
pub(super) fn needed_reports(
    mut reports: SmallVec<[LeaseReport; 2]>,
    meter: &Meter,
) -> SmallVec<[LeaseReport; 2]> {
    if meter.window().is_some() {
        reports.retain(|report| report.returned > 0);
    }
    reports
}
