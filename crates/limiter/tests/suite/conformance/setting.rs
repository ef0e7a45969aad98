//! A limiter on a manual clock.

use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};
use tollgate_core::rules::{self, LoadedRules};
use tollgate_limiter::{
    Clock, Decision, EndpointScope, InvalidRequest, LimitReading, Limiter, ManualClock, MemoryStore, Outcome,
    Request,
};

/// Midnight UTC on a Monday, 2026-01-05: the boundary of every window up to a week.
pub const START_US: u64 = rules::RULE_TEST_START.as_us();
pub const SECOND_US: u64 = 1_000_000;
pub const MINUTE_US: u64 = 60 * SECOND_US;
pub const HOUR_US: u64 = 60 * MINUTE_US;
pub const DAY_US: u64 = 24 * HOUR_US;

/// Memory for all states of a test.
pub const PLENTY: usize = 64 << 20;

pub struct Setting {
    pub limiter: Limiter,
    pub clock: ManualClock,
    store: Option<Box<dyn StoreUnderTest>>,
    /// Every request is first passed to [`Limiter::refuse`].
    refuses_first: bool,
}

/// A shared store under test.
pub trait StoreUnderTest: Send + Sync {
    /// The decision of the store itself, without leases and cached refusals.
    fn decide(&self, limiter: &Limiter, request: &Request<'_>) -> Result<Decision, InvalidRequest>;

    /// Waits for what an operator asks for.
    fn wait(&self, operation: Pin<&mut (dyn Future<Output = ()> + Send)>);
}

impl Setting {
    pub fn new(text: &str) -> Self {
        Self::with_memory(text, PLENTY)
    }

    pub fn with_memory(text: &str, most_bytes: usize) -> Self {
        let clock = ManualClock::new(START_US);
        let limiter = Limiter::new(MemoryStore::new(most_bytes), Clock::Manual(clock.clone()));
        let setting = Self { limiter, clock, store: None, refuses_first: false };
        setting.install(text);
        setting
    }

    /// As a door with a fast path for repeated refusals: all refusals are made by [`Limiter::refuse`].
    pub fn refusing_first(text: &str) -> Self {
        Self { refuses_first: true, ..Self::new(text) }
    }

    /// On a shared store with the time of `clock`; every rule is strict.
    pub fn on_store(
        limiter: Limiter,
        clock: ManualClock,
        store: Box<dyn StoreUnderTest>,
        text: &str,
    ) -> Self {
        let setting = Self { limiter, clock, store: Some(store), refuses_first: false };
        setting.install(text);
        setting
    }

    pub fn install(&self, text: &str) {
        let LoadedRules { rules, lists, .. } =
            if self.store.is_some() { load(&strict(text)) } else { load(text) };
        self.limiter.install(rules, lists).unwrap();
    }

    pub fn decide(&self, request: &Request<'_>) -> Result<Decision, InvalidRequest> {
        if self.refuses_first {
            if let Some(refusal) = self.limiter.refuse(request) {
                return Ok(refusal);
            }
            let decided = decide(&self.limiter, request);
            let is_limited = |decision: &Decision| matches!(decision.outcome, Outcome::Limited(_));
            assert!(
                !decided.as_ref().is_ok_and(is_limited),
                "{request:?} was not refused at first: {decided:?}"
            );
            return decided;
        }
        match &self.store {
            Some(store) => store.decide(&self.limiter, request),
            None => decide(&self.limiter, request),
        }
    }

    pub fn check(&self, request: &Request<'_>) -> Decision {
        self.decide(request).unwrap_or_else(|invalid| panic!("{request:?}: {invalid}"))
    }

    /// Sends `count` requests and returns how many are admitted.
    pub fn send(&self, count: usize, request: &Request<'_>) -> usize {
        (0..count).filter(|_| self.check(request).allowed()).count()
    }

    /// The remaining tokens after one more request, which must be admitted.
    pub fn remaining(&self, request: &Request<'_>) -> u32 {
        match self.check(request).outcome {
            Outcome::Admitted(standing) => standing.remaining,
            other => panic!("{request:?} does not pass: {other:?}"),
        }
    }

    /// The result of an operation of an operator.
    pub fn wait<T: Send>(&self, operation: impl Future<Output = T> + Send) -> T {
        let mut result = None;
        {
            let mut operation = pin!(async { result = Some(operation.await) });
            match &self.store {
                Some(store) => store.wait(operation.as_mut()),
                None => {
                    let polled = operation.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    assert!(polled.is_ready(), "nothing to wait for");
                }
            }
        }
        result.unwrap()
    }

    pub fn peek(&self, request: &Request<'_>, scope: EndpointScope) -> Vec<LimitReading> {
        self.wait(self.limiter.peek(request, scope))
    }

    pub fn reset(&self, request: &Request<'_>, scope: EndpointScope) -> usize {
        self.wait(self.limiter.reset(request, scope)).unwrap()
    }

    /// Tidies all shards.
    pub fn tidy(&self) {
        for _ in 0..100 {
            self.limiter.tidy();
        }
    }
}

/// The same rules without leases.
fn strict(text: &str) -> String {
    if text.contains("\ndefaults: { ") {
        text.replacen("\ndefaults: { ", "\ndefaults: { consistency: strict, ", 1)
    } else if text.contains("\ndefaults:\n") {
        text.replacen("\ndefaults:\n", "\ndefaults:\n  consistency: strict\n", 1)
    } else {
        format!("defaults: {{ consistency: strict }}\n{text}")
    }
}

pub fn load(text: &str) -> LoadedRules {
    rules::load("test.yaml", text).unwrap_or_else(|report| panic!("{report}"))
}

pub fn key(api_key: &str) -> Request<'_> {
    Request { api_key: Some(api_key), endpoint: "/", ..Request::default() }
}

pub fn from(ip: &str) -> Option<IpAddr> {
    Some(ip.parse().unwrap())
}

/// The rule that decided.
pub fn rule(decision: &Decision) -> Option<&str> {
    decision.terms.as_ref().map(|terms| terms.names.rule.as_str())
}

/// The wait of a refusal, and its rule.
pub fn told(decision: &Decision) -> Option<(u64, String)> {
    let Outcome::Limited(standing) = decision.outcome else { return None };
    Some((standing.wait_us()?, rule(decision).unwrap_or_default().to_owned()))
}

/// The decision of a limiter with the embedded store, which never waits.
pub fn decide(limiter: &Limiter, request: &Request<'_>) -> Result<Decision, InvalidRequest> {
    limiter.check(request).map(|check| check.now().expect("nothing to wait for"))
}
