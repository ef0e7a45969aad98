//! The states of a client, for operators: reading them, and letting them start fresh.
//!
//! Both select limits by [`EndpointScope`]. Reading spends nothing and changes nothing, and computes with the steps of
//! the algorithms, so that it says what the next check would: with the shared store, what the next check on this node
//! would. A reset removes states, ends the holds of the client and, with a shared store, tells the other nodes.

use crate::charge::OwnedCharge;
use crate::client_identities::ClientIdentities;
use crate::limiter::Limiter;
use crate::shared_store::{StateAnswer, StateQuestion, StoreUnavailable};
use std::future::Future;
use tollgate_core::algorithm::Algorithm;
use tollgate_core::request::Request;
use tollgate_core::rules::{Charge, ClientLimit, EndpointScope};
use tollgate_core::script::RequestStatus;
use tollgate_core::time::{StoreTime, UnixTime};

/// One limit of a client and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitReading {
    /// The rule.
    pub rule: String,
    /// The name of the limit, as in `RateLimit-Policy`.
    pub limit: String,
    /// Its algorithm.
    pub algorithm: Algorithm,
    /// The identities by which it counts this client.
    pub counted_by: Vec<String>,
    /// The route whose state this is, if the rule counts by route and a template matches.
    pub route: Option<String>,
    /// The limit.
    pub quota: u32,
    /// The seconds of its window; 0 if it counts requests in flight.
    pub window_seconds: u32,
    /// Whether requests over it are refused.
    pub enforced: bool,
    /// Where the state was read.
    pub source: StateSource,
    /// The state; none if the store did not answer.
    pub state: Option<StateAnswer>,
}

/// Where a state was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSource {
    /// In the shared store.
    Store,
    /// In the memory of this node.
    Memory,
    /// The shared store did not answer.
    Unknown,
}

impl StateSource {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Memory => "memory",
            Self::Unknown => "unknown",
        }
    }
}

impl LimitReading {
    /// How many requests are in flight, if that is what the limit counts and the store answered.
    pub fn in_flight(&self) -> Option<u32> {
        let state = self.state.filter(|_| self.window_seconds == 0)?;
        Some(self.quota.saturating_sub(state.status.remaining))
    }

    fn new(found: &ClientLimit<'_>) -> Self {
        let limit = found.charge.limit;
        Self {
            rule: found.rule.id.clone(),
            limit: limit.policy.clone(),
            algorithm: limit.algorithm(),
            counted_by: found.counted_by.clone(),
            route: found.template.map(str::to_owned),
            quota: limit.shown_quota,
            window_seconds: limit.window_seconds,
            enforced: found.charge.enforced,
            source: StateSource::Unknown,
            state: None,
        }
    }
}

impl Limiter {
    /// The states of all limits of the client of `request` in `scope`. A wait is that of a request of its cost. Spends
    /// nothing.
    pub fn peek<'l>(
        &'l self,
        request: &Request<'_>,
        scope: EndpointScope,
    ) -> impl Future<Output = Vec<LimitReading>> + Send + use<'l> {
        let now = self.clock().now();
        let cost = u32::try_from(request.cost).unwrap_or(u32::MAX);
        let mut readings = Vec::new();
        let mut questions = Vec::new();
        self.with_client_limits(request, scope, |found| {
            let mut reading = LimitReading::new(found);
            if self.shared().is_some() {
                questions.push(self.question(found, request, cost));
            } else {
                reading.source = StateSource::Memory;
                reading.state = Some(self.look(&found.charge, cost, now));
            }
            readings.push(reading);
        });
        async move {
            if let Some(sharing) = self.shared() {
                let answers = sharing.store.peek(questions).await;
                for (reading, answer) in readings.iter_mut().zip(answers) {
                    reading.source = if answer.is_some() { StateSource::Store } else { StateSource::Unknown };
                    reading.state = answer;
                }
            }
            readings
        }
    }

    /// Lets the states of the client of `request` in `scope` start fresh, and ends all holds of the client, on all
    /// nodes. Requests in flight stay counted, and so do states that the client shares with others. Returns the number of
    /// states that existed.
    pub fn reset<'l>(
        &'l self,
        request: &Request<'_>,
        scope: EndpointScope,
    ) -> impl Future<Output = Result<usize, StoreUnavailable>> + Send + use<'l> {
        let now = self.clock().now();
        let mut count = 0;
        let mut questions = Vec::new();
        self.with_client_limits(request, scope, |found| {
            if !found.is_own() || found.charge.limit.longest_in_flight_us().is_some() {
                return;
            }
            if self.shared().is_some() {
                let mut question = self.question(found, request, 1);
                question.is_by_route = found.is_by_route();
                questions.push(question);
            } else {
                count += usize::from(self.store().forget(&found.charge, StoreTime::of_embedded_store(now)));
            }
        });
        self.pardon(request);
        let identities = ClientIdentities::of(request);
        async move {
            if let Some(sharing) = self.shared() {
                count = sharing.store.reset(questions, &identities).await?;
                // Only now: a reply that was on its way may have brought the old state back.
                self.forget_client(&identities);
            }
            Ok(count)
        }
    }

    /// Ends what other nodes have reset: holds, credit and last replies of their clients on this node.
    pub(crate) fn follow_resets(&self) {
        let Some(sharing) = self.shared() else { return };
        for identities in sharing.store.take_resets() {
            identities.with_request(|request| self.pardon(request));
            self.forget_client(&identities);
        }
    }

    /// Removes what this node keeps of the states of a client: leases, and states of decisions without the store.
    fn forget_client(&self, identities: &ClientIdentities) {
        let Some(sharing) = self.shared() else { return };
        let now = StoreTime::of_embedded_store(self.clock().now());
        let mut charges: Vec<OwnedCharge> = Vec::new();
        identities.with_request(|request| {
            self.with_snapshot(|snapshot, _| {
                let rules = &snapshot.rules;
                let limits = rules.set.client_limits(request, EndpointScope::Any, &self.hashes(request));
                for found in limits.iter().filter(|found| found.is_own()) {
                    charges.push(OwnedCharge::new(&rules.set, &found.charge));
                    sharing.fallback.forget(self.store(), rules, &found.charge, now);
                }
            });
        });
        sharing.store.forget(&charges);
    }

    fn with_client_limits(
        &self,
        request: &Request<'_>,
        scope: EndpointScope,
        mut each: impl FnMut(&ClientLimit<'_>),
    ) {
        self.with_snapshot(|snapshot, _| {
            let limits = snapshot.rules.set.client_limits(request, scope, &self.hashes(request));
            limits.iter().for_each(&mut each);
        });
    }

    fn question(&self, found: &ClientLimit<'_>, request: &Request<'_>, cost: u32) -> StateQuestion {
        let charge = found.charge;
        let store = self.shared().map(|sharing| &sharing.store);
        StateQuestion {
            key: charge.key,
            client: charge.client,
            meter: *charge.limit.meter(),
            address: store.and_then(|store| store.locate(found.rule, charge.limit, request, found.route)),
            cost: cost.clamp(1, charge.limit.quota),
            is_by_route: false,
        }
    }

    /// The state of `charge` on this node.
    fn look(&self, charge: &Charge<'_>, cost: u32, now: UnixTime) -> StateAnswer {
        let limit = charge.limit;
        let status = match limit.longest_in_flight_us() {
            Some(_) => {
                let held = self.admissions.in_flight.held(charge.key, now);
                RequestStatus { remaining: limit.quota.saturating_sub(held), ..RequestStatus::default() }
            }
            None => {
                let cost = cost.clamp(1, limit.quota);
                self.store().status(charge, cost, StoreTime::of_embedded_store(now))
            }
        };
        StateAnswer { status, lent: 0 }
    }
}
