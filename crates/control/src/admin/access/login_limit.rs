//! Limits login attempts from one address, with Tollgate's own limiter.

use crate::admin::problem::Problem;
use std::net::IpAddr;
use tollgate_core::rules;
use tollgate_limiter::{Clock, Limiter, MemoryStore, Outcome, Request};

/// Attempts, successful or not, of each address.
const RULES: &str = "rules: [{ id: login, key: ip, limit: 20/m }]";
const MEMORY: usize = 1 << 20;

/// Counts login attempts.
#[derive(Debug)]
pub(crate) struct LoginLimit(Limiter);

impl LoginLimit {
    pub(crate) fn new(clock: Clock) -> Self {
        let limiter = Limiter::new(MemoryStore::new(MEMORY), clock);
        let loaded = rules::load("login", RULES).expect("the rule is valid");
        limiter.install(loaded.rules, loaded.lists).expect("one name fits");
        Self(limiter)
    }

    /// Counts an attempt; too many are refused.
    pub(crate) fn attempt(&self, from: IpAddr) -> Result<(), Problem> {
        self.0.tidy();
        let request =
            Request { ip: Some(from.to_canonical()), endpoint: "/v1/session", ..Request::default() };
        let decision = self.0.check(&request).ok().and_then(|check| check.now());
        match decision.map(|decision| decision.outcome) {
            Some(Outcome::Limited(status)) => {
                let seconds = status.wait_us().unwrap_or(0).div_ceil(1_000_000).max(1);
                Err(Problem::too_many_attempts(seconds))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limiter::ManualClock;

    #[test]
    fn twenty_attempts_a_minute_from_one_address() {
        let time = ManualClock::new(1_000_000_000);
        let limit = LoginLimit::new(Clock::Manual(time.clone()));
        let (one, other) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        assert_eq!((0..30).filter(|_| limit.attempt(one).is_ok()).count(), 20);
        assert!(limit.attempt(other).is_ok());
        time.advance_us(3_000_000);
        assert!(limit.attempt(one).is_ok(), "one every 3 s");
        assert!(limit.attempt(one).is_err());
    }
}
