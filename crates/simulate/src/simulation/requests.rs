//! The requests of a run: their arrival, their verdicts, and their decisions.

use super::{ScheduledEvent, Simulation};
use crate::clients::ClientCharge;
use crate::findings::Tally;
use crate::ledger::LedgerEntry;
use crate::shard;
use crate::traffic::Arrival;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::rc::Rc;
use tollgate_core::rules::written::OnStoreFailure;
use tollgate_limiter::{OwnedCharge, Passed, Steps};
use tollgate_redis::lease::{LeaseCheck, ReservedTokens, Verdict, Waiter};

pub(super) type VerdictInbox = Rc<RefCell<Vec<(u64, usize, Verdict)>>>;
type Charges = SmallVec<[OwnedCharge; 4]>;

/// Waits for the verdict on one group of a request's limits.
#[derive(Debug)]
pub(super) struct SimulatedWaiter {
    request: u64,
    group: usize,
    inbox: VerdictInbox,
    is_waiting: bool,
}

impl Waiter for SimulatedWaiter {
    fn deliver(self, verdict: Verdict) -> bool {
        if self.is_waiting {
            self.inbox.borrow_mut().push((self.request, self.group, verdict));
        }
        self.is_waiting
    }
}

/// A request that the store has been asked about.
pub(super) struct PendingRequest {
    pub(super) arrival: Arrival,
    pub(super) life: u32,
    client_charges: Rc<[ClientCharge]>,
    reserved: ReservedTokens,
    groups: SmallVec<[SmallVec<[usize; 2]>; 1]>,
    undecided: usize,
    is_refused: bool,
    failed: SmallVec<[usize; 2]>,
}

impl Simulation<'_> {
    pub(super) fn arrive(&mut self, arrival: Arrival) {
        let client_charges = self.clients.charges_of(arrival.node, arrival.client);
        self.found.tally.arrivals += 1;
        let store_time = shard::true_time(self.now_us);
        if self.oracle.admits(arrival.client, &client_charges, arrival.cost, store_time) {
            self.found.tally.oracle_admitted += 1;
        }
        match self.paused_until(arrival.node) {
            Some(until_us) => {
                self.delayed.push(arrival);
                self.push(until_us, ScheduledEvent::RequestResumes(self.delayed.len() - 1));
            }
            None => self.take_up(arrival),
        }
    }

    /// The request is taken up by its node.
    pub(super) fn take_up(&mut self, arrival: Arrival) {
        let client_charges = self.clients.charges_of(arrival.node, arrival.client);
        if client_charges.is_empty() {
            self.found.tally.admitted += 1;
            self.found.tally.admitted_locally += 1;
            return;
        }
        self.numbers += 1;
        let request = self.numbers;
        let gives_up = self.random.u32(0..1_000) < self.fleet.give_up_permille;
        let node = &self.nodes[usize::from(arrival.node)];
        let now = node.clock(self.now_us);
        let charged: Charges = client_charges.iter().map(|client_charge| client_charge.charge).collect();
        let mut waiter_groups = 0..;
        let waiter = || SimulatedWaiter {
            request,
            group: waiter_groups.next().unwrap_or_default(),
            inbox: Rc::clone(&self.inbox),
            is_waiting: !gives_up,
        };
        let address = |index: usize| Some(client_charges[index].address.clone());
        let (_, version) = self.clients.rules_at(arrival.node);
        let mut steps = Steps::new();
        let check = node.leases.check(&charged, arrival.cost, version, now, address, waiter, &mut steps);
        let asked = match check {
            LeaseCheck::Decided => {
                let admitted = steps
                    .iter()
                    .all(|(index, step)| step.admitted || !client_charges[*index].charge.enforced);
                let tally = &mut self.found.tally;
                *(if admitted { &mut tally.admitted_locally } else { &mut tally.refused_locally }) += 1;
                return self.decide(&arrival, &client_charges, admitted);
            }
            LeaseCheck::Pending(asked) => *asked,
        };
        if gives_up {
            self.found.tally.given_up += 1;
            let address = |index: usize| Some(client_charges[index].address.clone());
            let calls = node.leases.resolve(&charged, &asked.reserved, Passed::No, now, address);
            calls.into_iter().for_each(|call| self.send(arrival.node, call));
        } else {
            let waiting = PendingRequest {
                arrival,
                life: node.lives,
                client_charges: Rc::clone(&client_charges),
                reserved: asked.reserved,
                undecided: asked.groups.len(),
                groups: asked.groups,
                is_refused: false,
                failed: SmallVec::new(),
            };
            self.waiting.insert(request, waiting);
        }
        for call in asked.calls {
            self.send(arrival.node, call);
        }
        self.deliver_verdicts();
    }

    fn decide(&mut self, arrival: &Arrival, client_charges: &[ClientCharge], admitted: bool) {
        let tally = &mut self.found.tally;
        if admitted {
            tally.admitted += 1;
        } else {
            tally.refused += 1;
            self.refused_by_client[arrival.client as usize] += 1;
        }
        for client_charge in client_charges {
            self.note_in_ledger(arrival, client_charge, admitted);
        }
    }

    fn note_in_ledger(&mut self, arrival: &Arrival, client_charge: &ClientCharge, admitted: bool) {
        if client_charge.charge.enforced {
            self.found.ledger.note(LedgerEntry {
                key: client_charge.state,
                node: arrival.node,
                admitted,
                cost: arrival.cost,
                sent_us: arrival.at_us,
                received_us: self.now_us,
            });
        }
    }

    /// Applies the verdicts in the inbox to their requests.
    pub(super) fn deliver_verdicts(&mut self) {
        loop {
            let inbox = std::mem::take(&mut *self.inbox.borrow_mut());
            if inbox.is_empty() {
                return;
            }
            for (request, group, verdict) in inbox {
                self.note_verdict(request, group, verdict);
            }
        }
    }

    fn note_verdict(&mut self, request: u64, group: usize, verdict: Verdict) {
        let Some(waiting) = self.waiting.get_mut(&request) else { return };
        waiting.undecided -= 1;
        match verdict {
            Verdict::Served { steps, reserved } => {
                let charges = waiting.groups[group].iter().zip(&steps);
                let refused = |(index, step): (&usize, &tollgate_core::algorithm::LimitStep)| {
                    waiting.client_charges[*index].charge.enforced && !step.admitted
                };
                waiting.is_refused |= { charges }.any(refused);
                let reserved = waiting.groups[group].iter().zip(reserved);
                waiting.reserved.extend(reserved.filter_map(|(index, part)| Some((*index, part?))));
            }
            Verdict::Failed => waiting.failed.push(group),
        }
        if waiting.undecided == 0
            && let Some(waiting) = self.waiting.remove(&request)
        {
            self.resolve(waiting);
        }
    }

    /// All verdicts are in.
    fn resolve(&mut self, waiting: PendingRequest) {
        let client_charges = Rc::clone(&waiting.client_charges);
        let failed: SmallVec<[usize; 4]> =
            waiting.failed.iter().flat_map(|group| &waiting.groups[*group]).copied().collect();
        // A node's share of the limit is not simulated: `local` refuses.
        let mut enforced =
            failed.iter().map(|index| &client_charges[*index]).filter(|charge| charge.charge.enforced);
        let is_denied = enforced.any(|charge| charge.on_failure != OnStoreFailure::Allow);
        let admitted = !waiting.is_refused && !is_denied;
        let node = &self.nodes[usize::from(waiting.arrival.node)];
        let charged: Charges = client_charges.iter().map(|client_charge| client_charge.charge).collect();
        let passed = if admitted { Passed::Yes } else { Passed::No };
        let address = |index: usize| Some(client_charges[index].address.clone());
        let now = node.clock(self.now_us);
        let calls = node.leases.resolve(&charged, &waiting.reserved, passed, now, address);
        calls.into_iter().for_each(|call| self.send(waiting.arrival.node, call));
        if waiting.failed.is_empty() || waiting.is_refused {
            self.decide(&waiting.arrival, &client_charges, admitted);
        } else {
            let Tally { degraded, partly_degraded, admitted: passed, refused, .. } = &mut self.found.tally;
            *degraded += 1;
            *(if admitted { passed } else { refused }) += 1;
            if admitted && failed.len() < client_charges.len() {
                *partly_degraded += 1;
                // The limits that have admitted it are charged for it, as for any request that has passed.
                for index in (0..client_charges.len()).filter(|index| !failed.contains(index)) {
                    self.note_in_ledger(&waiting.arrival, &client_charges[index], admitted);
                }
            }
        }
    }
}
