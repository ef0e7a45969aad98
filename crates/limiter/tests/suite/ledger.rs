//! A ledger of 200,000 requests: the counters have exactly what the callers saw, by rule, door and outcome.

use crate::admission::of;
use crate::setting::{PLENTY, load};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tollgate_core::algorithm::LimitStep;
use tollgate_core::grant::PoolDraw;
use tollgate_core::limit::Limit;
use tollgate_core::rules::{LoadedRules, Rule, RuleSet};
use tollgate_core::state_address::StateAddress;
use tollgate_limiter::metrics::{DecisionOutcome, MetricSamples, MetricSource, catalog};
use tollgate_limiter::{
    Admission, BalanceFuture, ClientIdentities, Clock, Decision, Door, DrawFuture, FailureSettings, Limiter,
    MemoryStore, Outcome, OwnedCharge, Passed, PeekFuture, PendingTake, Request, ResetFuture, SharedSlot,
    SharedStore, SharedTake, StateQuestion, Steps, StoreUnavailable, TakeAnswers,
};

const THREADS: usize = 2;
const REQUESTS: usize = 200_000;
/// One in so many requests is for a rule that may let it wait, which takes real time.
const SLOW_EVERY: usize = 200;

const RULES: &str = "
deny: [bad]
allow: [good]
rules:
  - { id: plain, match: { api_key_pattern: plain* }, limit: 1000/h }
  - { id: window, match: { api_key_pattern: window* }, algorithm: sliding_window_counter, limit: 700/h }
  - { id: tried, match: { api_key_pattern: tried* }, limit: 500/h, on_exceed: shadow }
  - { id: flag, match: { api_key_pattern: flag* }, limit: 500/h, on_exceed: flag }
  - { id: shed, match: { api_key_pattern: shed* }, limit: 500/h, on_exceed: { shed: { in_flight: 1 } } }
  - id: slow
    match: { api_key_pattern: slow* }
    params: { capacity: 5, refill_rate: 10 }
    on_exceed: { tarpit: { delay: 1ms, most: 1 } }
  - id: line
    match: { api_key_pattern: line* }
    params: { capacity: 5, refill_rate: 200 }
    on_exceed: { queue: { max_wait: 1s, length: 1 } }
";
const SHARED_RULES: &str = "
rules:
  - { id: admits, match: { api_key_pattern: admits* }, limit: 1000/h, on_store_failure: allow }
  - { id: refuses, match: { api_key_pattern: refuses* }, limit: 1000/h, on_store_failure: deny }
  - { id: local, match: { api_key_pattern: local* }, limit: 1000/h, on_store_failure: local }
";

/// Decisions by rule, door and outcome.
type Ledger = BTreeMap<(String, &'static str, &'static str), u64>;

/// A shared store that never answers in time.
#[derive(Debug)]
pub struct FailingStore;

#[derive(Debug)]
struct FailedTake(usize);

impl SharedStore for FailingStore {
    fn install(&self, _: &RuleSet) {}

    fn node_count(&self) -> u32 {
        1
    }

    fn is_unavailable(&self) -> bool {
        true
    }

    fn locate(&self, _: &Rule, _: &Limit, _: &Request<'_>, _: u64) -> Option<StateAddress> {
        None
    }

    fn take(
        &self,
        charges: &[OwnedCharge],
        _: u32,
        _: u32,
        _: &dyn Fn(usize) -> Option<StateAddress>,
        _: &mut Steps,
    ) -> SharedTake {
        SharedTake::Pending(Box::new(FailedTake(charges.len())))
    }

    fn reserve(
        &self,
        charges: &[OwnedCharge],
        _: u32,
        _: u32,
        _: &dyn Fn(usize) -> Option<StateAddress>,
    ) -> Box<dyn PendingTake> {
        Box::new(FailedTake(charges.len()))
    }

    fn known_refusal(&self, _: &[OwnedCharge], _: u32, _: u32) -> Option<Steps> {
        None
    }

    fn last_refusal(&self, _: &OwnedCharge, _: u32) -> Option<LimitStep> {
        None
    }

    fn slot(&self, _: &StateAddress, _: u64, _: u64) -> Box<dyn SharedSlot> {
        panic!("no rule counts requests in flight")
    }

    fn peek(&self, states: Vec<StateQuestion>) -> PeekFuture<'_> {
        Box::pin(async move { states.iter().map(|_| None).collect() })
    }

    fn refund(&self, states: Vec<StateQuestion>) -> PeekFuture<'_> {
        self.peek(states)
    }

    fn reset(&self, _: Vec<StateQuestion>, _: &ClientIdentities) -> ResetFuture<'_> {
        Box::pin(async { Err(StoreUnavailable) })
    }

    fn take_resets(&self) -> Vec<ClientIdentities> {
        Vec::new()
    }

    fn forget(&self, _: &[OwnedCharge]) {}

    fn timeout(&self) -> Duration {
        Duration::ZERO
    }

    fn draw(&self, _: Vec<PoolDraw>, _: i64) -> DrawFuture<'_> {
        Box::pin(async { Err(StoreUnavailable) })
    }

    fn drawn<'s>(&'s self, _: &'s str) -> BalanceFuture<'s> {
        Box::pin(async { Err(StoreUnavailable) })
    }
}

impl PendingTake for FailedTake {
    fn poll_answered(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    fn answers(&mut self) -> TakeAnswers {
        TakeAnswers { failed: (0..self.0).collect(), ..TakeAnswers::default() }
    }

    fn resolve(&mut self, _: Passed) {}
}

fn counted(limiters: &[Arc<Limiter>]) -> Ledger {
    let mut ledger = Ledger::new();
    for limiter in limiters {
        let samples = MetricSamples::of([limiter.as_ref() as &dyn MetricSource]);
        for sample in samples.of_metric(&catalog::DECISIONS) {
            let [rule, _, _, _, door, outcome] = &sample.labels[..] else { panic!("six labels") };
            let door = Door::ALL.into_iter().map(Door::name).find(|name| **door == **name).unwrap();
            let outcomes = DecisionOutcome::ALL.into_iter().map(DecisionOutcome::name);
            let outcome = outcomes.into_iter().find(|name| **outcome == **name).unwrap();
            let count = sample.as_count().unwrap();
            if count > 0 {
                *ledger.entry((rule.to_string(), door, outcome)).or_default() += count;
            }
        }
    }
    ledger
}

/// How long a caller waited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waited {
    NotAtAll,
    ForSomeTime,
}

/// One caller of the limiters.
struct Caller {
    embedded: Arc<Limiter>,
    shared: Arc<Limiter>,
    runtime: Runtime,
    seen: Ledger,
}

impl Caller {
    fn send(&mut self, number: usize, rng: &mut Rng) {
        let fast = [
            "plain", "window", "tried", "flag", "shed", "bad", "good", "other", "admits", "refuses", "local",
        ];
        let kind = if number.is_multiple_of(SLOW_EVERY) {
            *rng.choice(&["slow", "line"]).unwrap()
        } else {
            *rng.choice(&fast).unwrap()
        };
        let key = match kind {
            "bad" | "good" => kind.to_owned(),
            // Several clients, some of which are over their limit.
            _ => format!("{kind}{}", rng.u32(..4)),
        };
        let door = *rng.choice(&Door::ALL).unwrap();
        let request = Request { door, ..of(&key) };
        let is_shared = matches!(kind, "admits" | "refuses" | "local");
        let limiter = Arc::clone(if is_shared { &self.shared } else { &self.embedded });
        if door == Door::Gateway
            && let Some(refusal) = limiter.refuse(&request)
        {
            // The fast path of the gateway does not ask again.
            return self.note(kind, door, outcome_of(kind, &refusal, Waited::NotAtAll));
        }
        let (decision, waited) = match kind {
            "slow" | "line" => self.admit(&limiter, &request),
            _ if rng.bool() => self.admit(&limiter, &request),
            _ => {
                let check = limiter.check(&request).unwrap();
                (self.runtime.block_on(check.decision()), Waited::NotAtAll)
            }
        };
        self.note(kind, door, outcome_of(kind, &decision, waited));
    }

    fn admit(&self, limiter: &Arc<Limiter>, request: &Request<'_>) -> (Decision, Waited) {
        let _context = self.runtime.enter();
        let mut admission = pin!(limiter.admit(request).unwrap().admission());
        let first = admission.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let (Admission { decision, .. }, waited) = match first {
            Poll::Ready(admission) => (admission, Waited::NotAtAll),
            Poll::Pending => {
                let admission = self.runtime.block_on(poll_fn(|context| admission.as_mut().poll(context)));
                (admission, Waited::ForSomeTime)
            }
        };
        (decision, waited)
    }

    /// Sends requests of one client until some were queued and delayed at every door: on a slow machine, limits may refill
    /// between two requests of the others.
    fn wait_at_every_door(&mut self) {
        for (door, (kind, outcome)) in Door::ALL
            .into_iter()
            .flat_map(|door| [("line", "queued"), ("slow", "tarpitted")].map(|row| (door, row)))
        {
            while !self.seen.contains_key(&(kind.to_owned(), door.name(), outcome)) {
                let (limiter, request) = (Arc::clone(&self.embedded), Request { door, ..of(kind) });
                let (decision, waited) = self.admit(&limiter, &request);
                self.note(kind, door, outcome_of(kind, &decision, waited));
            }
        }
    }

    fn note(&mut self, kind: &str, door: Door, outcome: &'static str) {
        let rule = if matches!(kind, "bad" | "good" | "other") { "" } else { kind };
        *self.seen.entry((rule.to_owned(), door.name(), outcome)).or_default() += 1;
    }
}

/// What the caller saw.
fn outcome_of(kind: &str, decision: &Decision, waited: Waited) -> &'static str {
    let allowed = if decision.allowed() { "allowed" } else { "limited" };
    let has_waited = waited == Waited::ForSomeTime;
    match kind {
        "admits" | "refuses" | "local" => {
            assert!(decision.degraded);
            "degraded"
        }
        "bad" => {
            assert_eq!(decision.outcome, Outcome::Denied);
            "denied"
        }
        "tried" if decision.shadowed_by.is_some() => "shadow_limited",
        "flag" if decision.flags().next().is_some() => "flagged",
        "shed" if !decision.allowed() => "shed",
        "slow" if has_waited => "tarpitted",
        "line" if has_waited && decision.allowed() => "queued",
        _ => allowed,
    }
}

#[test]
fn the_counters_have_exactly_what_callers_saw() {
    let limiter = |rules: &str| {
        let limiter = Limiter::new(MemoryStore::new(PLENTY), Clock::system());
        (limiter, load(rules))
    };
    let (embedded, LoadedRules { rules, lists, .. }) = limiter(RULES);
    embedded.install(rules, lists).unwrap();
    let (shared, LoadedRules { rules, lists, .. }) = limiter(SHARED_RULES);
    let shared = shared.sharing(Arc::new(FailingStore), FailureSettings::default());
    shared.install(rules, lists).unwrap();
    let limiters = [Arc::new(embedded), Arc::new(shared)];

    let start = Barrier::new(THREADS);
    let ledgers: Vec<Ledger> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (limiters, start) = (&limiters, &start);
                scope.spawn(move || {
                    let [embedded, shared] = limiters.clone();
                    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                    let mut caller = Caller { embedded, shared, runtime, seen: Ledger::new() };
                    let mut rng = Rng::with_seed(thread as u64);
                    start.wait();
                    (0..REQUESTS / THREADS).for_each(|number| caller.send(number, &mut rng));
                    caller.wait_at_every_door();
                    caller.seen
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut seen = Ledger::new();
    for (labels, count) in ledgers.into_iter().flatten() {
        *seen.entry(labels).or_default() += count;
    }
    assert_eq!(counted(&limiters), seen);
    assert!(seen.values().sum::<u64>() >= REQUESTS as u64);
    for outcome in DecisionOutcome::ALL.map(DecisionOutcome::name) {
        let doors = Door::ALL
            .into_iter()
            .filter(|door| seen.keys().any(|(_, known, found)| *known == door.name() && *found == outcome));
        assert_eq!(doors.count(), Door::ALL.len(), "{outcome} is met at every door: {seen:?}");
    }
}
