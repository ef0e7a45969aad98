//! The engine: one snapshot of the rules, the charges that they select, one answer.

use crate::clock::Clock;
use crate::memo::{self, Found, Memo};
use crate::memory::{CROWDS, MemoryStore, Placed};
use arc_swap::{ArcSwap, Guard};
use smallvec::SmallVec;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tollgate_core::decision::{Fold, Invalid, Outcome, Standing, validate};
use tollgate_core::key::{Hashes, Seed};
use tollgate_core::limit::Limit;
use tollgate_core::request::Request;
use tollgate_core::rules::lists::{Listed, Lists, Standing as ListStanding};
use tollgate_core::rules::{Charge, Charges, ClientMatch, ClientTraits, LimitId, PathMatch, Rule, RuleSet};

/// The rules and lists that a decision was made under.
pub type Snapshot = Guard<Arc<Policy>>;

/// Decides. Cheap to share: all methods take `&self`.
#[derive(Debug)]
pub struct Limiter {
    policy: ArcSwap<Policy>,
    store: MemoryStore,
    clock: Clock,
    seed: Seed,
}

/// What is enforced at one time. Swapped whole, never edited.
#[derive(Debug)]
pub struct Policy {
    rules: Arc<Numbered<RuleSet>>,
    lists: Arc<Numbered<Lists>>,
}

/// A value and a number that no other has, by which caches know it.
#[derive(Debug)]
struct Numbered<T> {
    number: u32,
    value: T,
}

impl<T> Numbered<T> {
    fn new(value: T) -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Arc::new(Self { number: NEXT.fetch_add(1, Ordering::Relaxed), value })
    }
}

/// The answer to one request.
pub struct Decision {
    /// What becomes of it.
    pub outcome: Outcome,
    /// When it was decided, in microseconds since the epoch.
    pub now_us: u64,
    /// A rule that only counts would have refused it.
    pub shadowed: Option<LimitId>,
    /// It was decided without the store.
    pub degraded: bool,
    snapshot: Snapshot,
}

impl Decision {
    /// Whether the request may pass.
    pub fn allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Unlimited | Outcome::Admitted(_))
    }

    /// The limit that decided and how things stand with it; none if no limit did.
    pub fn standing(&self) -> Option<(&Limit, Standing)> {
        match self.outcome {
            Outcome::Admitted(standing) | Outcome::Limited(standing) => {
                Some((self.snapshot.rules.value.limit(standing.limit), standing))
            }
            Outcome::Unlimited | Outcome::Denied => None,
        }
    }

    /// The rule that decided.
    pub fn rule(&self) -> Option<&Rule> {
        match self.outcome {
            Outcome::Admitted(standing) | Outcome::Limited(standing) => {
                Some(self.snapshot.rules.value.rule_of(standing.limit))
            }
            Outcome::Unlimited | Outcome::Denied => None,
        }
    }
}

impl std::fmt::Debug for Decision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decision")
            .field("outcome", &self.outcome)
            .field("rule", &self.rule().map(|rule| &rule.id))
            .finish_non_exhaustive()
    }
}

impl Limiter {
    /// A limiter with no rules yet.
    pub fn new(store: MemoryStore, clock: Clock) -> Self {
        let random = RandomState::new();
        let policy =
            Policy { rules: Numbered::new(RuleSet::empty()), lists: Numbered::new(Lists::default()) };
        Self {
            policy: ArcSwap::from_pointee(policy),
            store,
            clock,
            seed: Seed([random.hash_one(1), random.hash_one(2)]),
        }
    }

    /// Puts new rules and lists in force. States are kept: they belong to rule ids, not to rule sets.
    pub fn install(&self, rules: RuleSet, lists: Lists) {
        self.policy.store(Arc::new(Policy { rules: Numbered::new(rules), lists: Numbered::new(lists) }));
    }

    /// Puts new lists in force and leaves the rules, and what is remembered of them, alone.
    pub fn set_lists(&self, lists: Lists) {
        let lists = Numbered::new(lists);
        self.policy.rcu(|policy| Policy { rules: Arc::clone(&policy.rules), lists: Arc::clone(&lists) });
    }

    /// Decides whether `request` may pass now.
    #[inline]
    pub fn check(&self, request: &Request<'_>) -> Result<Decision, Invalid> {
        validate(request)?;
        let now_us = self.clock.now_us();
        let snapshot = self.policy.load();
        let (outcome, shadowed) = memo::with(|memo| self.decide(&snapshot, memo, request, now_us))?;
        Ok(Decision { outcome, now_us, shadowed, degraded: false, snapshot })
    }

    /// Lists first, then the charges of the rules that apply.
    #[inline]
    fn decide(
        &self,
        policy: &Policy,
        memo: &mut Memo,
        request: &Request<'_>,
        now_us: u64,
    ) -> Result<(Outcome, Option<LimitId>), Invalid> {
        let hashes = self.seed.hashes(request);
        match listed(policy, &mut memo.listed, &hashes, request, now_us) {
            Some(Listed::Denied) => return Ok((Outcome::Denied, None)),
            Some(Listed::Allowed) => return Ok((Outcome::Unlimited, None)),
            None => {}
        }
        let mut path_scratch = None;
        let client = match_client(policy, &mut memo.clients, &hashes, request);
        let path = match_path(policy, &mut memo.paths, &mut path_scratch, request);
        let rules = &policy.rules.value;
        let mut charges = Charges::new();
        rules.select(client, path, request, &hashes, &mut charges);
        let fold = match charges.as_slice() {
            [] => return Ok((Outcome::Unlimited, None)),
            charges => self.take(rules, charges, request, now_us)?,
        };
        Ok((fold.outcome(), fold.shadowed))
    }

    /// Spends on all charges or on none.
    #[inline]
    fn take(
        &self,
        rules: &RuleSet,
        charges: &[Charge<'_>],
        request: &Request<'_>,
        now_us: u64,
    ) -> Result<Fold, Invalid> {
        let cost = u32::try_from(request.cost).unwrap_or(u32::MAX);
        if let [only] = charges
            && cost <= only.limit.quota
        {
            let placed = Placed { charge: *only, cost, crowd: false };
            if let Ok(fold) = self.store.take_one(&placed, now_us) {
                return Ok(fold);
            }
        }
        let mut placed: SmallVec<[Placed<'_>; 4]> = SmallVec::new();
        for charge in charges {
            if cost <= charge.limit.quota {
                placed.push(Placed { charge: *charge, cost, crowd: false });
            } else if charge.enforced {
                let rule = rules.rule_of(charge.id).id.clone();
                return Err(Invalid::CostAboveLimit { rule, limit: charge.limit.quota, cost: request.cost });
            }
        }
        loop {
            match self.store.take(&placed, now_us) {
                Ok(fold) => return Ok(fold),
                Err(full) => self.join_crowd(&mut placed[full.charge], request),
            }
        }
    }

    /// There is no room for the state of this charge: it counts with its neighbours.
    #[cold]
    fn join_crowd(&self, placed: &mut Placed<'_>, request: &Request<'_>) {
        self.store.count_crowded();
        placed.crowd = true;
        placed.charge.key = self.seed.crowd(request.ip, CROWDS) ^ placed.charge.limit.identity;
    }

    /// Housekeeping; to be called about ten times a second.
    pub fn tidy(&self) {
        self.store.tidy(self.clock.now_us());
    }

    /// The store.
    pub fn store(&self) -> &MemoryStore {
        &self.store
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }
}

/// Which list the request is on. What the names say is remembered if a pattern had to be asked.
#[inline]
fn listed(
    policy: &Policy,
    memo: &mut memo::Cache<Option<ListStanding>>,
    hashes: &Hashes<'_>,
    request: &Request<'_>,
    now_us: u64,
) -> Option<Listed> {
    let (lists, number) = (&policy.lists.value, policy.lists.number);
    let by_address = lists.standing_of_address(request.ip, now_us).listed;
    if !lists.mention_names() {
        return by_address;
    }
    let by_name = || lists.standing_of_names(request, now_us);
    let hash = hashes.of_traits(NAMES, request);
    let standing = match memo.find(hash, number) {
        Found::Hit(Some(known)) if now_us < known.until_us => *known,
        Found::Hit(outdated) => *outdated.insert(by_name()),
        Found::Admit(place) => *place.keep(None).insert(by_name()),
        Found::Pass => by_name(),
    };
    Listed::stricter(standing.listed, by_address)
}

/// What lists of names look at.
const NAMES: ClientTraits =
    ClientTraits { api_key: true, user: true, tenant: true, ip: false, tier: false, ids: false };

/// The client half of the selection, from memory if possible.
#[inline]
fn match_client<'m>(
    policy: &'m Policy,
    clients: &'m mut memo::Clients,
    hashes: &Hashes<'_>,
    request: &Request<'_>,
) -> &'m ClientMatch {
    let rules = &policy.rules.value;
    let traits = rules.traits();
    if !traits.any() {
        return rules.any_client();
    }
    let hash = hashes.of_traits(traits, request);
    clients.class(hash, policy.rules.number, |matched| rules.match_client_into(request, matched))
}

/// The path half of the selection, from memory if possible.
#[inline]
fn match_path<'m>(
    policy: &'m Policy,
    paths: &'m mut memo::Cache<memo::Path>,
    scratch: &'m mut Option<PathMatch>,
    request: &Request<'_>,
) -> &'m PathMatch {
    let rules = &policy.rules.value;
    if let Some(any) = rules.any_path() {
        return any;
    }
    let path = request.path();
    let number = policy.rules.number;
    match paths.find(memo::path_hash(path), number) {
        Found::Hit(entry) if entry.is(path) => &entry.matched,
        Found::Admit(place) => &place.keep(memo::Path::new(path, rules.match_path(path))).matched,
        Found::Hit(_) | Found::Pass => scratch.insert(rules.match_path(path)),
    }
}
