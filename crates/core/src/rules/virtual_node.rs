//! A node on a virtual clock: the smallest implementation that decides as the limiter does. It runs the tests in rule
//! files, and is the reference in tests of the limiter.

use super::compile::LoadedRules;
use super::lists::{AccessLists, ListVerdict};
use super::ruleset::RuleSet;
use super::selection::{Charge, Charges, Selection};
use crate::decision::{InvalidRequest, LimitStatus, Outcome, OutcomeFold, validate};
use crate::key::{KeySeed, StateKey};
use crate::limit::LimitState;
use crate::penalty::PenaltyRecord;
use crate::request::Request;
use crate::time::{StoreTime, UnixTime};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

/// Fixed: a virtual node needs no secret.
static SEED: LazyLock<KeySeed> = LazyLock::new(|| KeySeed::new([0x746f_6c6c, 0x6761_7465]));

/// The states of all keys under a rule set, and the penalty records.
#[derive(Debug, Default)]
pub struct VirtualNode {
    in_flight: InFlightLimits,
    states: HashMap<StateKey, LimitState>,
    /// The lists, if they are not those of the rules.
    lists: Option<Arc<AccessLists>>,
    /// The penalty record of each key, and the end of its cooldown.
    penalties: HashMap<u64, (PenaltyRecord, Option<UnixTime>)>,
}

/// What a virtual node does about limits of requests in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum InFlightLimits {
    /// A request takes one slot, and frees it at its timeout.
    #[default]
    UntilTimeout,
    /// They admit everything: it is unknown how long the requests take.
    Ignored,
}

impl VirtualNode {
    pub(super) fn new(in_flight: InFlightLimits) -> Self {
        Self { in_flight, ..Self::default() }
    }

    /// A node with other lists than those of the rules.
    pub(super) fn with_lists(lists: Option<Arc<AccessLists>>) -> Self {
        Self { lists, ..Self::default() }
    }

    /// Decides `request` at `now` as the limiter does.
    pub fn check(
        &mut self,
        loaded: &LoadedRules,
        request: &Request<'_>,
        now: UnixTime,
    ) -> Result<Outcome, InvalidRequest> {
        validate(request)?;
        self.check_charges(loaded, request, &charges(&loaded.rules, request), now)
    }

    /// Decides a valid `request` with these charges.
    pub(super) fn check_charges(
        &mut self,
        loaded: &LoadedRules,
        request: &Request<'_>,
        charges: &Charges<'_>,
        now: UnixTime,
    ) -> Result<Outcome, InvalidRequest> {
        let lists = self.lists.as_deref().unwrap_or(&loaded.lists);
        match lists.look_up(request, now).verdict {
            Some(ListVerdict::Denied) => return Ok(Outcome::Denied),
            Some(ListVerdict::Allowed) => return Ok(Outcome::Unlimited),
            None => {}
        }
        let hold = self.cooldown(&loaded.rules, charges, now);
        let mut fold = OutcomeFold::default();
        let store_now = StoreTime::of_embedded_store(now);
        let mut writes = Vec::new();
        for charge in charges {
            let is_in_flight = charge.limit.longest_in_flight_us().is_some();
            if is_in_flight && self.in_flight == InFlightLimits::Ignored {
                continue;
            }
            let cost = if is_in_flight { 1 } else { request.cost };
            let Some(cost) = u32::try_from(cost).ok().filter(|cost| *cost <= charge.limit.quota) else {
                if charge.enforced {
                    let rule = loaded.rules.rule_of(charge.id).id.clone();
                    return Err(InvalidRequest::CostAboveLimit {
                        rule,
                        limit: charge.limit.quota,
                        cost: request.cost,
                    });
                }
                continue;
            };
            let (mut step, next) = charge.limit.step_state(self.states.get(&charge.key), store_now, cost);
            if is_in_flight {
                step.retry_after_us = 0;
            }
            fold.add(charge, &step);
            writes.extend(next.map(|state| (charge.key, step.admitted, state)));
        }
        for (key, spends, state) in writes {
            if hold.is_none() && fold.admits() || !spends {
                self.states.insert(key, state);
            }
        }
        let mut outcome = fold.outcome();
        if let Some(hold) = hold {
            let limited = match outcome {
                Outcome::Limited(limited) => Some(limited),
                Outcome::Unlimited | Outcome::Denied | Outcome::Admitted(_) => None,
            };
            return Ok(Outcome::Limited(hold.or_longer(limited)));
        }
        if let Outcome::Limited(status) = &mut outcome {
            self.record_refusal(&loaded.rules, charges, status, now);
        }
        Ok(outcome)
    }

    /// The longest current cooldown of the client.
    fn cooldown(&self, rules: &RuleSet, charges: &Charges<'_>, now: UnixTime) -> Option<LimitStatus> {
        let end_of = |charge: &Charge<'_>| {
            let (_, until) = self.penalties.get(&rules.penalty_key(charge)?)?;
            until.filter(|until| now < *until).map(|until| (until, charge.id))
        };
        let (until, limit) = charges.iter().filter_map(end_of).max_by_key(|(until, _)| *until)?;
        Some(LimitStatus::held(limit, until.since(now)))
    }

    /// Updates the penalty record after a refusal.
    fn record_refusal(
        &mut self,
        rules: &RuleSet,
        charges: &Charges<'_>,
        status: &mut LimitStatus,
        now: UnixTime,
    ) {
        let Some(charge) = charges.iter().find(|charge| charge.id == status.limit) else { return };
        let (Some(penalty), Some(key)) = (rules.rule_of(charge.id).penalty, rules.penalty_key(charge)) else {
            return;
        };
        let known = self.penalties.get(&key).map(|(record, _)| *record);
        // A client that was given no retry time cannot ignore it.
        let Some(wait_us) = status.wait_us() else { return };
        let (record, cooldown_us) = penalty.record_refusal(known, now, wait_us);
        self.penalties.insert(key, (record, cooldown_us.map(|cooldown_us| now + cooldown_us)));
        status.extend_wait(cooldown_us.unwrap_or(0));
    }
}

/// The charges of `request`, selected without caches.
pub(super) fn charges<'r>(rules: &'r RuleSet, request: &Request<'_>) -> Charges<'r> {
    let mut charges = Charges::new();
    let (client, path) = (rules.match_client(request), rules.match_path(request.path()));
    let mut selection = Selection::default();
    rules.join_into(&client, &path, &mut selection);
    rules.charge(&selection, request, &SEED.hasher(request), &mut charges);
    charges
}
