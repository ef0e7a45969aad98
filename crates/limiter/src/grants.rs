//! Grants: extra tokens for a client until a time, without a change of its limits.
//!
//! A grant is a pool of tokens for one identity: an API key, a user, a tenant. It is looked at only when a limit refuses a
//! request of that identity. Then the cost is drawn from the pool, and the request is admitted although it is over the
//! limit; its other limits are charged as usual. A pool is never refilled, and nothing is drawn at or after its expiry.
//!
//! - A grant may name a rule; otherwise it is for all rules. A request is admitted if each limit that refuses it is covered
//!   by a pool with enough tokens. Each of these pools is drawn from once, all or none: a request that stays refused draws
//!   nothing.
//! - With a shared store the pools are there, and all nodes draw from the same. A draw that is not confirmed admits nothing.
//! - Requests in flight, holds and lists have nothing to do with tokens, and grants do not change them.

use crate::charge::OwnedCharge;
use crate::decision::Decision;
use crate::limiter::Limiter;
use crate::pending::Sharing;
use crate::shared_store::{Passed, PendingTake, Steps, StoreUnavailable, TakeAnswers};
use crate::snapshot::{RulesInForce, Snapshot};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tollgate_core::decision::{LimitStatus, Outcome};
use tollgate_core::grant::{DrawOutcome, PoolDraw};
use tollgate_core::key::{Ipv6Prefix, ip_bits};
use tollgate_core::request::{NamedIdentity, Request};
use tollgate_core::rules::{Charge, Charges, LimitId, OverLimitEffect};
use tollgate_core::state_address::StateAddress;
use tollgate_core::time::{StoreTime, UnixTime};

/// More grants than this are not used: those that expire first are.
pub const MOST_GRANTS: usize = 10_000;
/// A pool that had too few tokens is not asked again for this time: another request may return some.
const EMPTY_FOR_US: u64 = 250_000;

/// A grant in force.
#[derive(Clone, PartialEq, Eq)]
pub struct ActiveGrant {
    /// Names its pool. A grant with another id has another pool.
    pub id: String,
    /// The kind of the identity: `api_key`, `user`, `tenant`, `ip`, or a custom identity.
    pub kind: String,
    /// The identity. An IPv6 address stands for its /64.
    pub value: String,
    /// The rule whose limits it is for; all rules if none.
    pub rule: Option<String>,
    /// The tokens of the pool.
    pub tokens: u64,
    /// When it ends.
    pub expires: UnixTime,
}

/// Without the identity, which may be an API key.
impl std::fmt::Debug for ActiveGrant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, kind, rule, tokens, expires, .. } = self;
        f.debug_struct("ActiveGrant")
            .field("id", id)
            .field("kind", kind)
            .field("rule", rule)
            .field("tokens", tokens)
            .field("expires", expires)
            .finish()
    }
}

/// What is left of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantBalance {
    /// The grant.
    pub grant: ActiveGrant,
    /// The tokens that can still be drawn; none if the store did not answer.
    pub left: Option<u64>,
}

/// The pool of a grant.
#[derive(Debug)]
pub(crate) struct GrantPool {
    grant: ActiveGrant,
    /// With the embedded store, the tokens drawn so far. A pool that replaces this one has the same counter.
    drawn: Arc<AtomicU64>,
    /// Not asked before this time, in microseconds, for this cost or more.
    empty_until_us: AtomicU64,
    empty_cost: AtomicU64,
}

/// All grants, by kind and value of their identity.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    any: AtomicBool,
    pools: ArcSwap<GrantTable>,
    /// Held while the embedded store draws from one pool or several.
    drawing: Mutex<()>,
}

type GrantTable = HashMap<String, HashMap<String, Vec<Arc<GrantPool>>>>;

/// The pools that a request may draw from, those that expire first in front.
pub(crate) type GrantCandidates = SmallVec<[Arc<GrantPool>; 2]>;

/// The pools that a request has drawn from.
type DrawnPools = SmallVec<[Arc<GrantPool>; 2]>;

/// What a request at the shared store needs to draw from grants.
#[derive(Debug)]
pub(crate) struct GrantRequest {
    pub(crate) candidates: GrantCandidates,
    /// The addresses of the states of its charges.
    pub(crate) addresses: Vec<Option<StateAddress>>,
    pub(crate) ip: Option<IpAddr>,
}

impl GrantPool {
    fn covers(&self, rule: &str) -> bool {
        self.grant.rule.as_deref().is_none_or(|own| own == rule)
    }

    fn draw(&self) -> PoolDraw {
        let ActiveGrant { id, tokens, expires, .. } = &self.grant;
        PoolDraw { id: id.clone(), tokens: *tokens, expires_us: expires.as_us() }
    }

    /// The shared store has too few tokens for `cost`.
    fn mark_empty(&self, cost: u64, now: UnixTime) {
        self.empty_cost.store(cost, Ordering::Relaxed);
        self.empty_until_us.store(now.as_us() + EMPTY_FOR_US, Ordering::Relaxed);
    }

    fn is_empty(&self, cost: u64, now: UnixTime) -> bool {
        self.empty_until_us.load(Ordering::Relaxed) > now.as_us()
            && cost >= self.empty_cost.load(Ordering::Relaxed)
    }
}

impl Grants {
    /// Whether there is any grant. If not, nothing else is looked at.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    fn set(&self, mut grants: Vec<ActiveGrant>) {
        grants.sort_by(|one, other| (one.expires, &one.id).cmp(&(other.expires, &other.id)));
        if grants.len() > MOST_GRANTS {
            tracing::warn!(
                grants = grants.len(),
                most = MOST_GRANTS,
                "too many grants; the latest are not used"
            );
            grants.truncate(MOST_GRANTS);
        }
        let known = self.pools.load();
        let known: HashMap<&str, &Arc<GrantPool>> =
            known.values().flat_map(HashMap::values).flatten().map(|pool| (&*pool.grant.id, pool)).collect();
        let mut table = GrantTable::new();
        for grant in grants {
            let drawn = known.get(&*grant.id).map(|pool| Arc::clone(&pool.drawn)).unwrap_or_default();
            let value = if grant.kind == "ip" { network_of_text(&grant.value) } else { grant.value.clone() };
            let (empty_until_us, empty_cost) = (AtomicU64::new(0), AtomicU64::new(0));
            let pool = GrantPool { drawn, empty_until_us, empty_cost, grant };
            table.entry(pool.grant.kind.clone()).or_default().entry(value).or_default().push(Arc::new(pool));
        }
        let is_any = !table.is_empty();
        self.pools.store(Arc::new(table));
        self.any.store(is_any, Ordering::Relaxed);
    }

    fn of(&self, request: &Request<'_>) -> GrantCandidates {
        let table = self.pools.load();
        let mut found = GrantCandidates::new();
        let mut add = |kind: &str, value: &str| {
            let pools = table.get(kind).and_then(|values| values.get(value));
            found.extend(pools.into_iter().flatten().cloned());
        };
        for kind in NamedIdentity::ALL {
            if let Some(value) = request.named(kind) {
                add(kind.name(), value);
            }
        }
        for (name, value) in request.ids {
            add(name, value);
        }
        if let Some(ip) = request.ip.filter(|_| table.contains_key("ip")) {
            add("ip", &network(ip));
        }
        found.sort_by_key(|pool| pool.grant.expires);
        found
    }

    /// Draws `cost` from all of `pools`, in memory, or from none.
    fn draw_here(&self, pools: &[Arc<GrantPool>], cost: u64, now: UnixTime) -> DrawOutcome {
        let _drawing = self.drawing.lock();
        let lacks = |pool: &Arc<GrantPool>| {
            let left = pool.grant.tokens.saturating_sub(pool.drawn.load(Ordering::Relaxed));
            left < cost || now >= pool.grant.expires
        };
        if let Some(index) = pools.iter().position(lacks) {
            return DrawOutcome::Empty(index);
        }
        for pool in pools {
            pool.drawn.fetch_add(cost, Ordering::Relaxed);
        }
        DrawOutcome::Drawn
    }

    fn return_here(&self, pools: &[Arc<GrantPool>], cost: u64) {
        let _drawing = self.drawing.lock();
        for pool in pools {
            let drawn = pool.drawn.load(Ordering::Relaxed);
            pool.drawn.store(drawn.saturating_sub(cost), Ordering::Relaxed);
        }
    }
}

fn network_of_text(address: &str) -> String {
    address.parse().map_or_else(|_| address.to_owned(), network)
}

/// The network by which an address is counted.
fn network(ip: IpAddr) -> String {
    IpAddr::from(ip_bits(ip, Ipv6Prefix::default()).to_be_bytes()).to_canonical().to_string()
}

/// The pools to draw from for `rules`: the first of `candidates` that covers all of them, else the first for each; none if
/// a rule has none. Pools in `drawn` need not be drawn from again.
fn choose(candidates: &[Arc<GrantPool>], drawn: &[Arc<GrantPool>], rules: &[&str]) -> Option<DrawnPools> {
    let is_due = |rule: &&str| !drawn.iter().any(|pool| pool.covers(rule));
    let due: SmallVec<[&str; 4]> = rules.iter().copied().filter(is_due).collect();
    if due.is_empty() {
        return Some(DrawnPools::new());
    }
    if let Some(pool) = candidates.iter().find(|pool| due.iter().all(|rule| pool.covers(rule))) {
        return Some(DrawnPools::from_iter([Arc::clone(pool)]));
    }
    let mut chosen = DrawnPools::new();
    for rule in due {
        if !chosen.iter().any(|pool| pool.covers(rule)) {
            chosen.push(Arc::clone(candidates.iter().find(|pool| pool.covers(rule))?));
        }
    }
    Some(chosen)
}

fn remove(candidates: &mut GrantCandidates, pool: &Arc<GrantPool>) {
    candidates.retain(|known| !Arc::ptr_eq(known, pool));
}

/// The decision on a request that was refused as `refused` says, and is admitted by a grant.
fn granted(refused: &Decision, admitted: Decision) -> Decision {
    let Outcome::Limited(status) = refused.outcome else { return admitted };
    let outcome = Outcome::Admitted(LimitStatus { retry_after_us: None, ..status });
    Decision { outcome, terms: refused.terms, granted: true, ..admitted }
}

impl Limiter {
    /// Replaces the grants in force. The pool of a grant that was in force before keeps what was drawn from it.
    pub fn set_grants(&self, grants: Vec<ActiveGrant>) {
        self.grants.set(grants);
    }

    /// The grants for the identities of `request`, and what is left of each.
    pub fn grant_balances<'l>(
        &'l self,
        request: &Request<'_>,
    ) -> impl Future<Output = Vec<GrantBalance>> + Send + use<'l> {
        let pools = self.grants.of(request);
        async move {
            let mut balances = Vec::new();
            for pool in pools {
                let drawn = match self.shared() {
                    None => Ok(pool.drawn.load(Ordering::Relaxed)),
                    Some(sharing) => sharing.store.drawn(&pool.grant.id).await,
                };
                let left = drawn.map(|drawn| pool.grant.tokens.saturating_sub(drawn)).ok();
                balances.push(GrantBalance { grant: pool.grant.clone(), left });
            }
            balances
        }
    }

    /// Whether there is a grant for an identity of `request`.
    #[cold]
    #[inline(never)]
    pub(crate) fn has_grant(&self, request: &Request<'_>) -> bool {
        !self.grants.of(request).is_empty()
    }

    /// The pools that `request` may draw from; none if there are none.
    #[cold]
    #[inline(never)]
    pub(crate) fn grant_candidates(&self, request: &Request<'_>) -> Option<GrantCandidates> {
        let found = self.grants.of(request);
        (!found.is_empty()).then_some(found)
    }

    /// Draws `cost` for `rules` from pools in memory. Returns the pools.
    fn draw_here(
        &self,
        candidates: &GrantCandidates,
        rules: &[&str],
        cost: u64,
        now: UnixTime,
    ) -> Option<DrawnPools> {
        let mut candidates = candidates.clone();
        loop {
            let chosen = choose(&candidates, &[], rules)?;
            match self.grants.draw_here(&chosen, cost, now) {
                DrawOutcome::Drawn => return Some(chosen),
                DrawOutcome::Empty(index) => remove(&mut candidates, chosen.get(index)?),
            }
        }
    }

    /// Admits a request that its only limit has `refused`, if a grant covers it. With the embedded store.
    #[cold]
    #[inline(never)]
    pub(crate) fn grant_single(&self, request: &Request<'_>, refused: &Decision) -> Option<Decision> {
        let candidates = self.grant_candidates(request)?;
        let rule = refused.terms?.names.rule.as_str();
        self.draw_here(&candidates, &[rule], request.cost, refused.now)?;
        Some(granted(refused, Decision { soft: None, ..*refused }))
    }

    /// The same for a request that some of `charges` have `refused`: the others are charged.
    #[cold]
    #[inline(never)]
    pub(crate) fn grant_several(
        &self,
        rules: &RulesInForce,
        charges: &[Charge<'_>],
        cost: u32,
        candidates: Option<GrantCandidates>,
        refused: &Decision,
    ) -> Option<Decision> {
        let candidates = candidates?;
        let now = StoreTime::of_embedded_store(refused.now);
        let mut relaxed = Charges::from_slice(charges);
        let mut names: SmallVec<[&str; 4]> = SmallVec::new();
        for charge in relaxed.iter_mut().filter(|charge| charge.enforced) {
            if self.store().status(charge, cost, now).retry_after_us > 0 {
                (charge.enforced, charge.over) = (false, OverLimitEffect::Tolerated);
                names.push(&rules.set.rule_of(charge.id).id);
            }
        }
        let pools = self.draw_here(&candidates, &names, cost.into(), refused.now)?;
        match self.store().take_all(&relaxed, cost, now) {
            Ok(fold) if fold.admits() => Some(granted(refused, Decision::of(rules, &fold, refused.now))),
            // Another request was faster, or there is no memory.
            Ok(_) | Err(_) => {
                self.grants.return_here(&pools, cost.into());
                None
            }
        }
    }

    /// The same with the shared store. `refusing` are the limits that are known to refuse it.
    ///
    /// A boxed future of a stated type, because it charges the other limits, whose decision contains it.
    #[expect(clippy::too_many_arguments, reason = "a request, its limits, and how it was refused")]
    pub(crate) fn grant_shared<'a>(
        &'a self,
        sharing: &'a Sharing,
        snapshot: &'a Arc<Snapshot>,
        charges: &'a [OwnedCharge],
        refusing: &'a [LimitId],
        cost: u32,
        request: &'a GrantRequest,
        refused: &'a Decision,
    ) -> Pin<Box<dyn Future<Output = Option<Decision>> + Send + 'a>> {
        Box::pin(async move {
            let mut drawn = DrawnPools::new();
            let attempt =
                self.charge_granted(sharing, snapshot, charges, refusing, cost, request, refused, &mut drawn);
            // No decision waits longer than the store's timeout; what is drawn by then stays drawn.
            let waited_us = self.clock().now().since(refused.now);
            let longest = sharing.store.timeout().saturating_sub(Duration::from_micros(waited_us));
            let deadline = Instant::now() + longest;
            let found = timeout_at(deadline, attempt).await.ok()?;
            if found.is_none() && !drawn.is_empty() {
                let draws = drawn.iter().map(|pool| pool.draw()).collect();
                // If it fails, the tokens stay drawn.
                let _ = timeout_at(deadline, sharing.store.draw(draws, -i64::from(cost))).await;
            }
            found
        })
    }

    #[expect(clippy::too_many_arguments, reason = "a request, its limits, and what was drawn for it")]
    async fn charge_granted(
        &self,
        sharing: &Sharing,
        snapshot: &Arc<Snapshot>,
        charges: &[OwnedCharge],
        refusing: &[LimitId],
        cost: u32,
        request: &GrantRequest,
        refused: &Decision,
        drawn: &mut DrawnPools,
    ) -> Option<Decision> {
        let rules = &snapshot.rules;
        let mut relaxed: SmallVec<[OwnedCharge; 4]> = SmallVec::from_slice(charges);
        let mut refusing: SmallVec<[LimitId; 4]> = SmallVec::from_slice(refusing);
        // Each round admits at least one limit more.
        for _ in 0..=charges.len() {
            let names: SmallVec<[&str; 4]> =
                refusing.iter().map(|limit| rules.set.rule_of(*limit).id.as_str()).collect();
            self.draw_shared(sharing, request, &names, cost, refused.now, drawn).await.ok()??;
            for charge in relaxed.iter_mut().filter(|charge| refusing.contains(&charge.id)) {
                (charge.enforced, charge.over) = (false, OverLimitEffect::Tolerated);
            }
            if relaxed.iter().all(|charge| charge.over == OverLimitEffect::Tolerated && !charge.enforced) {
                return Some(granted(refused, Decision::without_limit(Outcome::Unlimited, refused.now)));
            }
            let address = |index: usize| request.addresses.get(index).cloned().flatten();
            let check = self.take_shared(
                sharing,
                snapshot,
                &relaxed,
                cost,
                request.ip,
                refused.now,
                &address,
                &|| None,
            );
            let decision = check.decision().await;
            match decision.outcome {
                Outcome::Limited(status) if !decision.degraded && status.limit != LimitId::NONE => {
                    refusing = SmallVec::from_slice(&[status.limit]);
                }
                Outcome::Limited(_) | Outcome::Denied => return None,
                Outcome::Unlimited | Outcome::Admitted(_) => return Some(granted(refused, decision)),
            }
        }
        None
    }

    async fn draw_shared(
        &self,
        sharing: &Sharing,
        request: &GrantRequest,
        rules: &[&str],
        cost: u32,
        now: UnixTime,
        drawn: &mut DrawnPools,
    ) -> Result<Option<()>, StoreUnavailable> {
        let mut candidates = request.candidates.clone();
        candidates.retain(|pool| !pool.is_empty(cost.into(), now));
        loop {
            let Some(chosen) = choose(&candidates, drawn, rules) else { return Ok(None) };
            if chosen.is_empty() {
                return Ok(Some(()));
            }
            let draws = chosen.iter().map(|pool| pool.draw()).collect();
            match sharing.store.draw(draws, cost.into()).await? {
                DrawOutcome::Drawn => {
                    drawn.extend(chosen);
                    return Ok(Some(()));
                }
                DrawOutcome::Empty(index) => {
                    let Some(pool) = chosen.get(index) else { return Ok(None) };
                    pool.mark_empty(cost.into(), now);
                    remove(&mut candidates, pool);
                }
            }
        }
    }
}

/// A take that is answered already.
#[derive(Debug)]
pub(crate) struct AnsweredTake(pub(crate) Steps);

impl PendingTake for AnsweredTake {
    fn poll_answered(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    fn answers(&mut self) -> TakeAnswers {
        TakeAnswers { steps: std::mem::take(&mut self.0), failed: SmallVec::new() }
    }

    fn resolve(&mut self, _: Passed) {}
}
