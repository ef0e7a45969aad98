//! A take that waits for servers: one verdict for each client that a call was made for.

use crate::lease::{ReservedTokens, Verdict};
use crate::{StoreCore, VerdictReceiver};
use smallvec::SmallVec;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tollgate_core::state_address::StateAddress;
use tollgate_limiter::{OwnedCharge, Passed, PendingTake, Steps, TakeAnswers};

/// See the module.
#[derive(Debug)]
pub(crate) struct RedisTake {
    core: Arc<StoreCore>,
    charges: SmallVec<[OwnedCharge; 4]>,
    answers: TakeAnswers,
    /// Tokens that are spent if the request passes, and returned if not.
    reserved: ReservedTokens,
    groups: SmallVec<[TakeGroup; 1]>,
}

/// The charges that one call is about.
#[derive(Debug)]
struct TakeGroup {
    /// Their indices.
    charges: SmallVec<[usize; 2]>,
    /// The addresses of their states; known only if they may have to be undone.
    addresses: Vec<Option<StateAddress>>,
    receiver: Option<VerdictReceiver>,
}

impl RedisTake {
    /// `address` returns the address of the state of a charge, if the take may have to be undone.
    pub(crate) fn new(
        core: &Arc<StoreCore>,
        charges: &[OwnedCharge],
        steps: Steps,
        reserved: ReservedTokens,
        groups: SmallVec<[SmallVec<[usize; 2]>; 1]>,
        receivers: SmallVec<[VerdictReceiver; 1]>,
        address: Option<&dyn Fn(usize) -> Option<StateAddress>>,
    ) -> Self {
        let groups = groups.into_iter().zip(receivers).map(|(charges, receiver)| {
            let addresses = match address {
                Some(address) => charges.iter().map(|index| address(*index)).collect(),
                None => Vec::new(),
            };
            TakeGroup { charges, addresses, receiver: Some(receiver) }
        });
        Self {
            core: Arc::clone(core),
            charges: SmallVec::from_slice(charges),
            answers: TakeAnswers { steps, failed: SmallVec::new() },
            reserved,
            groups: groups.collect(),
        }
    }

    /// A take of which no charge can be decided.
    pub(crate) fn failed(core: &Arc<StoreCore>, charges: &[OwnedCharge]) -> Self {
        let failed = (0..charges.len()).collect();
        Self {
            core: Arc::clone(core),
            charges: SmallVec::new(),
            answers: TakeAnswers { steps: Steps::new(), failed },
            reserved: ReservedTokens::new(),
            groups: SmallVec::new(),
        }
    }

    /// What is answered from now on becomes credit of the lease.
    fn stop_waiting(&mut self) {
        for group in 0..self.groups.len() {
            let Some(mut receiver) = self.groups[group].receiver.take() else { continue };
            receiver.close();
            self.record(group, receiver.try_recv().unwrap_or(Verdict::Failed));
        }
    }

    fn record(&mut self, group: usize, verdict: Verdict) {
        let Self { answers, reserved, groups, .. } = self;
        let charges = &groups[group].charges;
        match verdict {
            Verdict::Served { steps, reserved: held } => {
                answers.steps.extend(charges.iter().copied().zip(steps));
                let held = charges.iter().zip(held);
                reserved.extend(held.filter_map(|(index, reservation)| Some((*index, reservation?))));
            }
            Verdict::Failed => answers.failed.extend(charges.iter().copied()),
        }
    }
}

impl PendingTake for RedisTake {
    fn poll_answered(&mut self, context: &mut Context<'_>) -> Poll<()> {
        for group in 0..self.groups.len() {
            let Some(receiver) = &mut self.groups[group].receiver else { continue };
            let verdict = ready!(Pin::new(receiver).poll(context)).unwrap_or(Verdict::Failed);
            self.groups[group].receiver = None;
            self.record(group, verdict);
        }
        Poll::Ready(())
    }

    fn answers(&mut self) -> TakeAnswers {
        self.stop_waiting();
        std::mem::take(&mut self.answers)
    }

    fn resolve(&mut self, passed: Passed) {
        let reserved = std::mem::take(&mut self.reserved);
        if reserved.is_empty() {
            return;
        }
        let Self { core, charges, groups, .. } = self;
        let address = |index: usize| {
            let group = groups.iter().find(|group| group.charges.contains(&index))?;
            let position = group.charges.iter().position(|charge| *charge == index)?;
            group.addresses.get(position).cloned().flatten()
        };
        let calls = core.leases.resolve(charges, &reserved, passed, core.lease_time(), address);
        calls.into_iter().for_each(|call| core.send(call));
    }
}

impl Drop for RedisTake {
    /// Returns the tokens that are reserved for a request that is not waited for any more.
    fn drop(&mut self) {
        self.stop_waiting();
        self.resolve(Passed::No);
    }
}
