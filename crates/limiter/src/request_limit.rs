//! Limits that requests state themselves, instead of a rule.
//!
//! Such a limit is enforced like that of a rule: by a rule set of its own with one rule and one limit
//! ([`RuleSet::of_request_limit`]), in the embedded store or in the shared one. It is never leased. The numbers of a key
//! may change with every request: its tokens are kept, and the new capacity and rate apply at once. Its failure policy is
//! that of `defaults` in the rules in force, and its decisions are counted under the rule [`REQUEST_LIMIT`].
//!
//! Rules, penalties and grants do not apply. The lists do, to the identities that the request has besides the key.

use crate::charge::OwnedCharge;
use crate::decision::{Check, Decision};
use crate::limit_names::LimitNames;
use crate::limiter::Limiter;
use crate::memo::Caches;
use crate::prepare::cost_above_limit;
use crate::snapshot::Snapshot;
use rapidhash::fast::RapidHasher;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};
use tollgate_core::algorithm::Algorithm;
use tollgate_core::decision::{InvalidRequest, Outcome, validate};
use tollgate_core::limit::LimitSize;
use tollgate_core::request::Request;
use tollgate_core::rules::lists::ListVerdict;
use tollgate_core::rules::{REQUEST_KEY, REQUEST_LIMIT, RuleSet};

pub(crate) static NAMES: LazyLock<LimitNames> = LazyLock::new(|| LimitNames::of_own(REQUEST_LIMIT));

/// The limits that a thread keeps compiled. Services state a handful.
const KEPT: usize = 256;
/// The numbers of their rule sets have this bit, and those of others never.
const NUMBERS: u32 = 1 << 31;

/// Whether a rule set with this number is that of a limit that a request states: then requests with other numbers for the
/// same key may follow at once.
#[inline]
pub fn is_request_limit(rules: u32) -> bool {
    rules & NUMBERS != 0
}

/// A limit that a request states, and the key that it is charged by.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimit<'a> {
    /// The key. All requests that state it share one state for each algorithm.
    pub key: &'a str,
    /// The algorithm; not one that counts requests in flight.
    pub algorithm: Algorithm,
    /// The numbers. They are validated like those of a rule.
    pub size: LimitSize,
}

/// The compiled limits of a thread, each in the only place that it can have.
#[derive(Default)]
pub(crate) struct KeptRequestLimits(Vec<Option<KeptRequestLimit>>);

struct KeptRequestLimit {
    /// The rules in force, whose failure policy it has.
    rules: u32,
    algorithm: Algorithm,
    size: LimitSize,
    snapshot: Arc<Snapshot>,
}

impl KeptRequestLimits {
    /// The snapshot that enforces `limit` while `rules` are in force.
    pub(crate) fn find(
        &mut self,
        limit: &RequestLimit<'_>,
        rules: &Snapshot,
    ) -> Result<&Arc<Snapshot>, InvalidRequest> {
        let RequestLimit { algorithm, size, .. } = *limit;
        let number = rules.rules.number;
        let mut hasher = RapidHasher::default_const();
        (algorithm, size).hash(&mut hasher);
        self.0.resize_with(KEPT, || None);
        let place = &mut self.0[hasher.finish() as usize % KEPT];
        let is_known = |kept: &KeptRequestLimit| {
            kept.rules == number && kept.algorithm == algorithm && kept.size == size
        };
        if !place.as_ref().is_some_and(is_known) {
            let policy = rules.rules.set.default_on_store_failure();
            let set =
                RuleSet::of_request_limit(algorithm, size, policy).map_err(InvalidRequest::InvalidLimit)?;
            // The same for equal numbers, on all threads. A client cannot choose numbers with equal hashes.
            static NUMBERING: LazyLock<RandomState> = LazyLock::new(RandomState::new);
            let own = NUMBERS | NUMBERING.hash_one((number, algorithm, size)) as u32;
            let snapshot = Arc::new(Snapshot::of_request_limit(set, own, &NAMES));
            *place = Some(KeptRequestLimit { rules: number, algorithm, size, snapshot });
        }
        Ok(&place.as_ref().expect("it was found or placed").snapshot)
    }
}

impl Limiter {
    /// Decides whether `request` is admitted by `limit`, and by nothing else. Of the request, the cost, the door and the
    /// identities count: a client on the deny list is refused, one on the allow list admitted. It need not have any.
    pub fn check_limit(
        &self,
        request: &Request<'_>,
        limit: &RequestLimit<'_>,
    ) -> Result<Check<'_>, InvalidRequest> {
        let ids = [(REQUEST_KEY, limit.key)];
        let keyed = keyed(request, &ids);
        if let Err(error) = validate(&keyed) {
            return Err(self.count_invalid(request.door, error));
        }
        self.with_snapshot(|snapshot, caches| {
            let due = caches.next_due(self.clock());
            let start_ns = due.weight.map(|_| self.clock().counter_ns());
            let check = self.decide_limit(snapshot, caches, request, &keyed, limit);
            let mut check = check.map_err(|error| self.count_invalid(request.door, error))?;
            if due.is_sampled {
                self.note_sample(&keyed, &mut check);
            }
            if let Some((weight, start_ns)) = due.weight.zip(start_ns).filter(|_| self.is_counting()) {
                let elapsed_ns = self.clock().counter_ns().saturating_sub(start_ns);
                let kept = Arc::clone(caches.request_limits.find(limit, snapshot)?);
                self.observe_unsampled(&kept.rules, caches, &keyed, &mut check, weight, elapsed_ns);
            }
            Ok(check)
        })
    }

    fn decide_limit(
        &self,
        snapshot: &Arc<Snapshot>,
        caches: &mut Caches,
        request: &Request<'_>,
        keyed: &Request<'_>,
        limit: &RequestLimit<'_>,
    ) -> Result<Check<'_>, InvalidRequest> {
        caches.select_nothing();
        let own = Arc::clone(caches.request_limits.find(limit, snapshot)?);
        let rules = &own.rules;
        let mut decided = self.decide_before_limit(snapshot, caches, request, keyed);
        let mut guarded = None;
        if decided.is_none()
            && self.abuse.is_holding()
            && let Some(address) = self.guarded_address(request.ip)
        {
            decided = self.take_guard(address).err();
            guarded = Some(address);
        }
        if let Some(decision) = decided {
            self.count(rules, caches, keyed, &decision);
            return Ok(decision.into());
        }
        let charge = rules.set.charge_key(limit.key, self.seed());
        if request.cost > u64::from(charge.limit.quota) {
            self.give_back_guard(guarded);
            return Err(cost_above_limit(rules, charge.id, request.cost));
        }
        let cost = request.cost as u32;
        let mut check = match self.shared() {
            Some(sharing) => {
                let owned = [OwnedCharge::new(&rules.set, &charge)];
                let rule = rules.set.rule_of(charge.id);
                let address = |_: usize| sharing.store.locate(rule, charge.limit, keyed, 0);
                let now = self.clock().now();
                self.take_shared(sharing, &own, &owned, cost, request.ip, now, &address, &|| None)
            }
            None => match self.take_one(&charge, cost) {
                Some((step, now)) => Decision::of_one(rules, charge.id, &step, now).into(),
                None => {
                    let now = self.clock().now();
                    self.take_all(rules, &[charge], cost, request.ip, now, &|| None).into()
                }
            },
        };
        match &mut check {
            Check::Decided(decision) if !decision.allowed() => self.give_back_guard(guarded),
            Check::Decided(_) => {}
            Check::Pending(pending) => {
                if let Some(address) = guarded {
                    pending.guard(address);
                }
            }
        }
        self.count_check(&own, caches, keyed, &mut check);
        Ok(check)
    }

    /// The decision on a request that the lists decide, or that is denied as a hot key.
    #[inline]
    pub(crate) fn decide_before_limit(
        &self,
        snapshot: &Snapshot,
        caches: &mut Caches,
        request: &Request<'_>,
        keyed: &Request<'_>,
    ) -> Option<Decision> {
        if snapshot.has_lists {
            let now = self.clock().now();
            match caches.listed(snapshot, request, &self.hashes(request), now) {
                Some(ListVerdict::Denied) => return Some(Decision::without_limit(Outcome::Denied, now)),
                Some(ListVerdict::Allowed) => return Some(Decision::without_limit(Outcome::Unlimited, now)),
                None => {}
            }
        }
        if self.abuse.is_holding() { self.refuse_denied(keyed) } else { None }
    }
}

/// What a request that states a limit is counted, located and observed by: the key alone.
pub(crate) fn keyed<'a>(request: &Request<'_>, ids: &'a [(&'a str, &'a str)]) -> Request<'a> {
    Request { ids, cost: request.cost, door: request.door, ..Request::default() }
}
