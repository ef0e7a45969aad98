//! The store as the engine uses it.

use crate::in_flight_slots::InFlightSlot;
use crate::lease::{LeaseCheck, PendingLeaseCheck};
use crate::take::RedisTake;
use crate::{StoreCore, VerdictReceiver, VerdictSender};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;
use tollgate_core::algorithm::LimitStep;
use tollgate_core::limit::Limit;
use tollgate_core::request::Request;
use tollgate_core::rules::{Rule, RuleSet};
use tollgate_core::state_address::StateAddress;
use tollgate_limiter::{
    BalanceFuture, ClientIdentities, DrawFuture, OwnedCharge, PeekFuture, PendingTake, PoolDraw, ResetFuture,
    SharedSlot, SharedStore, SharedTake, StateQuestion, Steps, StoreUnavailable,
};

/// Implements the engine's seam on the core of a store.
#[derive(Debug)]
pub(crate) struct StoreHandle(pub(crate) Arc<StoreCore>);

impl SharedStore for StoreHandle {
    fn install(&self, rules: &RuleSet) {
        self.0.apply_rules(rules);
    }

    fn node_count(&self) -> u32 {
        self.0.leases.nodes()
    }

    fn is_unavailable(&self) -> bool {
        self.0.is_unavailable()
    }

    fn locate(&self, rule: &Rule, limit: &Limit, request: &Request<'_>, route: u64) -> Option<StateAddress> {
        let addresses = self.0.addresses();
        Some(addresses.as_ref()?.locate(rule, limit, request, route))
    }

    fn take(
        &self,
        charges: &[OwnedCharge],
        cost: u32,
        rules: u32,
        address: &dyn Fn(usize) -> Option<StateAddress>,
        steps: &mut Steps,
    ) -> SharedTake {
        let Self(core) = self;
        if core.addresses().is_none() {
            // The store has never been reached: nothing is leased and nothing is known.
            return SharedTake::Pending(Box::new(RedisTake::failed(core, charges)));
        }
        let mut receivers: SmallVec<[VerdictReceiver; 1]> = SmallVec::new();
        let waiter = || {
            let (sender, receiver) = VerdictSender::new();
            receivers.push(receiver);
            sender
        };
        match core.leases.check(charges, cost, rules, core.lease_time(), address, waiter, steps) {
            LeaseCheck::Decided => SharedTake::Decided,
            LeaseCheck::Pending(asked) => {
                let PendingLeaseCheck { steps, reserved, groups, calls } = *asked;
                // One of several groups may have to be undone.
                let undone = (groups.len() > 1).then_some(address);
                let take = RedisTake::new(core, charges, steps, reserved, groups, receivers, undone);
                calls.into_iter().for_each(|call| core.send(call));
                SharedTake::Pending(Box::new(take))
            }
        }
    }

    fn reserve(
        &self,
        charges: &[OwnedCharge],
        cost: u32,
        rules: u32,
        address: &dyn Fn(usize) -> Option<StateAddress>,
    ) -> Box<dyn PendingTake> {
        let Self(core) = self;
        if core.addresses().is_none() {
            return Box::new(RedisTake::failed(core, charges));
        }
        let mut receivers: SmallVec<[VerdictReceiver; 1]> = SmallVec::new();
        let waiter = || {
            let (sender, receiver) = VerdictSender::new();
            receivers.push(receiver);
            sender
        };
        let asked = core.leases.reserve(charges, cost, rules, core.lease_time(), address, waiter);
        let PendingLeaseCheck { steps, reserved, groups, calls } = asked;
        let take = RedisTake::new(core, charges, steps, reserved, groups, receivers, Some(address));
        calls.into_iter().for_each(|call| core.send(call));
        Box::new(take)
    }

    fn known_refusal(&self, charges: &[OwnedCharge], cost: u32, rules: u32) -> Option<Steps> {
        self.0.leases.refuse(charges, cost, rules, self.0.lease_time())
    }

    fn last_refusal(&self, charge: &OwnedCharge, cost: u32) -> Option<LimitStep> {
        self.0.leases.recall_refusal(charge, cost, self.0.lease_time())
    }

    fn slot(&self, address: &StateAddress, number: u64, longest_us: u64) -> Box<dyn SharedSlot> {
        Box::new(InFlightSlot::new(&self.0, InFlightSlot::key(address).into(), number, longest_us))
    }

    fn peek(&self, states: Vec<StateQuestion>) -> PeekFuture<'_> {
        Box::pin(async move { self.0.peek(&states).await })
    }

    fn refund(&self, states: Vec<StateQuestion>) -> PeekFuture<'_> {
        Box::pin(async move { self.0.refund(&states).await })
    }

    fn reset<'s>(&'s self, states: Vec<StateQuestion>, client: &ClientIdentities) -> ResetFuture<'s> {
        Box::pin(self.0.reset(states, client.clone()))
    }

    fn take_resets(&self) -> Vec<ClientIdentities> {
        self.0.markers.take()
    }

    fn forget(&self, charges: &[OwnedCharge]) {
        self.0.leases.forget(charges);
    }

    fn timeout(&self) -> Duration {
        self.0.settings.timeout
    }

    fn draw(&self, pools: Vec<PoolDraw>, amount: i64) -> DrawFuture<'_> {
        let core = Arc::clone(&self.0);
        let drawn = tokio::spawn(async move { core.draw(&pools, amount).await });
        Box::pin(async move { drawn.await.ok().and_then(Result::ok).ok_or(StoreUnavailable) })
    }

    fn drawn<'s>(&'s self, id: &'s str) -> BalanceFuture<'s> {
        Box::pin(async move { self.0.drawn(id).await.map_err(|_| StoreUnavailable) })
    }
}
