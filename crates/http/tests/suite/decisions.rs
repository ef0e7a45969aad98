//! Decisions of a real limiter, for the tests of headers and bodies.

use tollgate_core::rules::load;
use tollgate_limiter::{Clock, Decision, Limiter, ManualClock, MemoryStore, Request};

/// 2027-01-15T08:00:00Z
pub const START_US: u64 = 1_800_000_000_000_000;

pub struct TestLimiter {
    pub limiter: Limiter,
    pub clock: ManualClock,
}

impl TestLimiter {
    pub fn new(yaml: &str) -> Self {
        let clock = ManualClock::new(START_US);
        let limiter = Limiter::new(MemoryStore::new(1 << 24), Clock::Manual(clock.clone()));
        let loaded = load("test.yaml", yaml).unwrap_or_else(|report| panic!("{report}"));
        limiter.install(loaded.rules, loaded.lists).unwrap();
        Self { limiter, clock }
    }

    /// With one rule `orders`: 100, at 1.67 per second, shown as per 60 seconds.
    pub fn orders() -> Self {
        Self::new(
            "rules:
  - id: orders
    algorithm: token_bucket
    params: { capacity: 100, refill_rate: 1.67, window: 60 }
allow: [sk_internal_*]
deny: [sk_bad]
",
        )
    }

    pub fn check(&self, key: &str, cost: u64) -> Decision {
        self.limiter
            .check(&Request { api_key: Some(key), cost, ..Request::default() })
            .unwrap()
            .now()
            .unwrap()
    }
}
