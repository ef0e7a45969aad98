//! Cooldowns of clients that ignore `Retry-After`, on a manual clock.

use crate::conformance::cooldowns::{MS, RULES, cooldowns_grow_hold_and_are_forgotten, hammer, wait_us};
use crate::setting::{HOUR_US, MINUTE_US, SECOND_US, START_US, Setting, from, key};
use fastrand::Rng;
use tollgate_limiter::{InvalidRequest, Request};

#[test]
fn in_the_embedded_store() {
    cooldowns_grow_hold_and_are_forgotten(&Setting::new(RULES));
    cooldowns_grow_hold_and_are_forgotten(&Setting::new(
        &RULES.replace("  - { id: wide", "  # - { id: wide"),
    ));
    cooldowns_grow_hold_and_are_forgotten(&Setting::refusing_first(RULES));
    // With an address, two limits are charged together.
    let setting = Setting::new(RULES);
    let request = Request { ip: from("203.0.113.9"), ..key("a") };
    assert_eq!(hammer(&setting, &request), 10 * SECOND_US);
    assert_eq!(wait_us(&setting.check(&request)), Some(10 * SECOND_US));
}

#[test]
fn rules_without_a_penalty_cause_no_cooldown() {
    let setting = Setting::new("rules:\n  - { id: api, limit: 5/min }");
    for _ in 0..1_000 {
        let decision = setting.check(&key("a"));
        assert!(wait_us(&decision).is_none_or(|wait_us| wait_us <= 12 * SECOND_US));
        setting.clock.advance_us(50 * MS);
    }
    assert_eq!(setting.limiter.abuse_counts().cooldowns, 0);
}

/// A refusal spends nothing, so after a cooldown the bucket has refilled as usual.
#[test]
fn a_cooldown_spends_nothing() {
    let setting = Setting::new(RULES);
    let request = key("a");
    let length_us = hammer(&setting, &request);
    for _ in 0..1_000 {
        setting.check(&request);
    }
    // After a minute there are five tokens, whatever was spent before.
    setting.clock.advance_us(length_us + MINUTE_US);
    assert_eq!(setting.send(6, &request), 5);
}

/// The client waits as told, in whole seconds as in `Retry-After`, with a clock error of up to 1% and up to ten requests
/// at once.
#[test]
fn a_client_that_waits_as_told_gets_no_penalty() {
    for (seed, limit) in [(1, "5/min"), (2, "10/s"), (3, "1/s"), (4, "100/h")] {
        let text = format!("rules:\n  - {{ id: api, limit: {limit}, penalty: {{ after: 1, first: 10s }} }}");
        let setting = Setting::new(&text);
        let mut rng = Rng::with_seed(seed);
        let start_us = setting.clock.now().as_us();
        while setting.clock.now().as_us() < start_us + 10 * HOUR_US {
            let mut told_us = 0;
            for _ in 0..rng.usize(1..10) {
                // Sent before the first response arrived.
                setting.clock.advance_us(rng.u64(0..40 * MS));
                if let Some(wait_us) = wait_us(&setting.check(&key("a"))) {
                    told_us = told_us.max(wait_us.div_ceil(SECOND_US) * SECOND_US);
                }
            }
            let off_us = told_us / 100;
            setting.clock.advance_us(told_us + off_us - rng.u64(0..=2 * off_us));
        }
        assert_eq!(setting.limiter.abuse_counts().cooldowns, 0, "{limit}");
    }
}

#[test]
fn a_flood_of_keys_evicts_no_cooldown_and_causes_none() {
    let setting =
        Setting::new("rules:\n  - { id: api, limit: 1/min, penalty: { after: 2, first: 1h, longest: 2h } }");
    let offender = key("offender");
    assert_eq!(hammer(&setting, &offender), HOUR_US);
    // Each of very many keys is refused once.
    for number in 0..100_000 {
        let name = format!("key-{number}");
        assert_eq!(setting.send(2, &key(&name)), 1);
    }
    let counts = setting.limiter.abuse_counts();
    assert_eq!((counts.cooldowns, counts.held), (1, 1));
    assert_eq!(wait_us(&setting.check(&offender)), Some(HOUR_US));
    // Very many keys with cooldowns: the table is bounded, and other keys have none.
    for _ in 0..6 {
        setting.clock.advance_us(700 * MS);
        for number in 0..30_000 {
            setting.check(&key(&format!("key-{number}")));
        }
    }
    let held = setting.limiter.abuse_counts().held;
    assert!((1_000..=8_192).contains(&held), "{held}");
    let bystanders =
        (0..1_000).filter(|number| setting.check(&key(&format!("new-{number}"))).allowed()).count();
    assert_eq!(bystanders, 1_000);
}

#[test]
fn cooldowns_end_after_the_clock_goes_back() {
    let setting = Setting::new(RULES);
    setting.clock.advance_us(24 * HOUR_US);
    hammer(&setting, &key("a"));
    setting.clock.set_us(START_US);
    let wait_us = wait_us(&setting.check(&key("a")));
    assert!(wait_us.is_none_or(|wait_us| wait_us <= 12 * SECOND_US), "{wait_us:?}");
}

#[test]
fn a_pardon_ends_a_cooldown_and_removes_the_record() {
    let setting = Setting::new(RULES);
    let request = key("a");
    hammer(&setting, &request);
    setting.clock.advance_us(5 * SECOND_US);
    assert!(setting.limiter.pardon(&request));
    assert!(!setting.limiter.pardon(&request), "once");
    assert!(wait_us(&setting.check(&request)).is_none_or(|wait_us| wait_us <= 12 * SECOND_US));
    assert_eq!(hammer(&setting, &request), 10 * SECOND_US, "the first cooldown again");
}

#[test]
fn a_penalty_that_is_removed_from_the_rules_ends_its_cooldowns() {
    let setting = Setting::new(RULES);
    hammer(&setting, &key("a"));
    setting.install("rules:\n  - { id: api, limit: 5/min }");
    assert!(wait_us(&setting.check(&key("a"))).is_none_or(|wait_us| wait_us <= 12 * SECOND_US));
}

#[test]
fn a_cost_above_the_limit_is_invalid_during_a_cooldown() {
    let setting = Setting::new(RULES);
    hammer(&setting, &key("a"));
    let decided = setting.decide(&Request { cost: 6, ..key("a") });
    assert!(matches!(decided, Err(InvalidRequest::CostAboveLimit { .. })), "{decided:?}");
}

#[test]
fn cooldowns_allocate_nothing() {
    let setting = Setting::new(RULES);
    let request = key("a");
    setting.send(10, &request);
    let measured = allocation_counter::measure(|| {
        for _ in 0..1_000 {
            setting.clock.advance_us(100 * MS);
            setting.check(&request);
        }
    });
    assert!(setting.limiter.abuse_counts().cooldowns > 1);
    assert_eq!(measured.count_total, 0);
}
