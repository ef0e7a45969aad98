//! A limiter on a clock that a test moves.

use std::net::IpAddr;
use tollgate_core::rules::{self, Loaded};
use tollgate_limiter::{Clock, Decision, Invalid, Limiter, ManualClock, MemoryStore, Outcome, Request};

/// Midnight UTC on a Monday, 2026-01-05: the boundary of every window up to a week.
pub const START_US: u64 = rules::START_US;
pub const SECOND_US: u64 = 1_000_000;
pub const MINUTE_US: u64 = 60 * SECOND_US;
pub const HOUR_US: u64 = 60 * MINUTE_US;
pub const DAY_US: u64 = 24 * HOUR_US;

/// Room for whatever a test sends.
pub const PLENTY: usize = 64 << 20;

pub struct Setting {
    pub limiter: Limiter,
    pub clock: ManualClock,
}

impl Setting {
    pub fn new(text: &str) -> Self {
        Self::with_memory(text, PLENTY)
    }

    pub fn with_memory(text: &str, most_bytes: usize) -> Self {
        let clock = ManualClock::new(START_US);
        let limiter = Limiter::new(MemoryStore::new(most_bytes), Clock::Manual(clock.clone()));
        let setting = Self { limiter, clock };
        setting.install(text);
        setting
    }

    pub fn install(&self, text: &str) {
        let Loaded { rules, lists, .. } = load(text);
        self.limiter.install(rules, lists);
    }

    pub fn check(&self, request: &Request<'_>) -> Decision {
        decide(&self.limiter, request).unwrap_or_else(|invalid| panic!("{request:?}: {invalid}"))
    }

    /// Sends `count` of them and answers how many pass.
    pub fn send(&self, count: usize, request: &Request<'_>) -> usize {
        (0..count).filter(|_| self.check(request).allowed()).count()
    }

    /// What is left after one more request, which has to pass.
    pub fn remaining(&self, request: &Request<'_>) -> u32 {
        match self.check(request).outcome {
            Outcome::Admitted(standing) => standing.remaining,
            other => panic!("{request:?} does not pass: {other:?}"),
        }
    }

    /// Tidies until every shard was seen.
    pub fn tidy(&self) {
        for _ in 0..100 {
            self.limiter.tidy();
        }
    }
}

pub fn load(text: &str) -> Loaded {
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

/// The decision of a limiter that shares no store: there is nothing to wait for.
pub fn decide(limiter: &Limiter, request: &Request<'_>) -> Result<Decision, Invalid> {
    limiter.check(request).map(|check| check.now().expect("nothing to wait for"))
}
