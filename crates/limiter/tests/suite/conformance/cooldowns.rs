//! Cooldowns grow, hold and expire.

use super::setting::{MINUTE_US, SECOND_US, Setting, key, rule};
use tollgate_limiter::{Decision, Outcome, Request};

pub const RULES: &str = "
rules:
  - id: api
    limit: 5/min
    penalty: { after: 3, first: 10s, longest: 1m, forget: 10m }
  - { id: wide, key: ip, limit: 100000/min }
";

pub const MS: u64 = 1_000;

/// The wait of a refusal; none if the request is admitted.
pub fn wait_us(decision: &Decision) -> Option<u64> {
    match decision.outcome {
        Outcome::Limited(standing) => standing.wait_us(),
        Outcome::Admitted(_) => None,
        other => panic!("{other:?}"),
    }
}

/// Sends a request every 100 ms until there is a cooldown, and returns its length.
pub fn hammer(setting: &Setting, request: &Request<'_>) -> u64 {
    let before = setting.limiter.abuse_counts().cooldowns;
    for _ in 0..600 {
        let decision = setting.check(request);
        if setting.limiter.abuse_counts().cooldowns > before {
            return wait_us(&decision).unwrap();
        }
        setting.clock.advance_us(100 * MS);
    }
    panic!("no cooldown came")
}

pub fn cooldowns_grow_hold_and_are_forgotten(setting: &Setting) {
    let request = key("a");
    let mut lengths = Vec::new();
    for _ in 0..4 {
        let length_us = hammer(setting, &request);
        lengths.push(length_us / SECOND_US);
        let end_us = setting.clock.now().as_us() + length_us;
        // Held to the last microsecond, with the exact wait, and not longer.
        for early_us in [length_us - 1, length_us / 2, 1] {
            setting.clock.set_us(end_us - early_us);
            let decision = setting.check(&request);
            assert_eq!((wait_us(&decision), rule(&decision)), (Some(early_us), Some("api")));
        }
        assert_eq!(wait_us(&setting.check(&key("b"))), None, "other keys are not held");
        setting.clock.set_us(end_us);
        assert_eq!(wait_us(&setting.check(&request)), None, "the bucket has refilled");
    }
    assert_eq!(lengths, [10, 20, 40, 60]);
    setting.clock.advance_us(9 * MINUTE_US);
    assert_eq!(hammer(setting, &request), 60 * SECOND_US, "the record has not expired");
    setting.clock.advance_us(12 * MINUTE_US);
    assert_eq!(hammer(setting, &request), 10 * SECOND_US, "forgotten");
}
