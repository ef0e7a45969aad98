//! Cooldowns, as rows of (time, retry time, cooldown), and as laws.

use fastrand::Rng;
use tollgate_core::decision::Outcome;
use tollgate_core::penalty::{Penalty, PenaltyRecord};
use tollgate_core::request::Request;
use tollgate_core::rules::{self, RULE_TEST_START, VirtualNode};

const MS: u64 = 1_000;
const SECOND_US: u64 = 1_000 * MS;

const PENALTY: Penalty = Penalty {
    after: 3,
    first_us: 10 * SECOND_US,
    longest_us: 60 * SECOND_US,
    forget_us: 600 * SECOND_US,
    record_id: 0,
};

/// Refusals as (time, retry time), and the cooldown that each starts.
#[track_caller]
fn rows(rows: &[(u64, u64, Option<u64>)]) {
    let mut record: Option<PenaltyRecord> = None;
    for &(at_us, wait_us, expected) in rows {
        let (next, cooldown_us) = PENALTY.record_refusal(record, RULE_TEST_START + at_us, wait_us);
        assert_eq!(cooldown_us, expected, "at {} ms after {record:?}", at_us / MS);
        record = Some(next);
    }
}

#[test]
fn the_worked_example() {
    rows(&[
        (0, 12_000 * MS, None),
        (200 * MS, 11_800 * MS, None),
        (2_000 * MS, 10_000 * MS, None),
        (3_000 * MS, 9_000 * MS, None),
        (4_000 * MS, 8_000 * MS, Some(10 * SECOND_US)),
        // After the cooldown a new wait starts, and the next cooldown is twice as long.
        (14_000 * MS, 12_000 * MS, None),
        (15_000 * MS, 11_000 * MS, None),
        (16_000 * MS, 10_000 * MS, None),
        (17_000 * MS, 9_000 * MS, Some(20 * SECOND_US)),
    ]);
}

#[test]
fn no_cooldown_is_shorter_than_the_retry_time() {
    rows(&[
        (0, 30_000 * MS, None),
        (5_000 * MS, 25_000 * MS, None),
        (6_000 * MS, 24_000 * MS, None),
        (7_000 * MS, 23_000 * MS, None),
        (8_000 * MS, 22_000 * MS, None),
        (20_000 * MS, 10_000 * MS, None),
        (20_001 * MS, 9_999 * MS, Some(10 * SECOND_US)),
    ]);
}

#[test]
fn short_waits_are_rounded_up_to_seconds() {
    let wait_us = 100 * MS;
    rows(&[
        (0, wait_us, None),
        (400 * MS, wait_us, None),
        (500 * MS, wait_us, None),
        (600 * MS, wait_us, None),
        (700 * MS, wait_us, Some(10 * SECOND_US)),
    ]);
}

#[test]
fn requests_in_transit_and_slightly_early_ones_are_no_strikes() {
    let wait_us = 60 * SECOND_US;
    rows(&[
        (0, wait_us, None),
        (999 * MS, wait_us, None),
        (54_000 * MS, wait_us, None),
        (54_500 * MS, wait_us, None),
    ]);
    let burst: Vec<_> = (0..1_000).map(|at| (at * MS, wait_us, None)).collect();
    rows(&burst);
}

#[test]
fn cooldowns_double_up_to_the_longest_and_expire() {
    let mut record = None;
    let mut now = RULE_TEST_START;
    let mut lengths = Vec::new();
    for _ in 0..5 {
        let cooldown_us = loop {
            let (next, cooldown_us) = PENALTY.record_refusal(record, now, SECOND_US);
            record = Some(next);
            match cooldown_us {
                Some(cooldown_us) => break cooldown_us,
                None => now += 100 * MS,
            }
        };
        lengths.push(cooldown_us / SECOND_US);
        now += cooldown_us;
    }
    assert_eq!(lengths, [10, 20, 40, 60, 60]);
    let known = record.unwrap();
    let (next, _) = PENALTY.record_refusal(record, known.until + (PENALTY.forget_us - 1), SECOND_US);
    assert_eq!(next.level, 5);
    let (next, _) = PENALTY.record_refusal(record, known.until + PENALTY.forget_us, SECOND_US);
    assert_eq!((next.level, next.strikes), (0, 0));
}

#[test]
fn a_cooldown_of_any_level_is_within_bounds() {
    for level in [0, 1, 2, 3, 63, 64, 65, u32::MAX] {
        assert!((PENALTY.first_us..=PENALTY.longest_us).contains(&PENALTY.cooldown_us(level)));
    }
}

#[test]
fn a_clock_that_steps_back_starts_a_new_wait() {
    let (record, _) = PENALTY.record_refusal(None, RULE_TEST_START + 3_600 * SECOND_US, 60 * SECOND_US);
    let (record, cooldown_us) = PENALTY.record_refusal(Some(record), RULE_TEST_START, 60 * SECOND_US);
    assert_eq!((record.since, cooldown_us), (RULE_TEST_START, None));
}

/// A client that retries when wait_us, within the error of a clock, gets no strike, also with several requests in transit.
#[test]
fn a_client_that_waits_as_told_is_never_penalised() {
    let mut rng = Rng::with_seed(7);
    for _ in 0..200 {
        let mut record = None;
        let mut now = RULE_TEST_START;
        for _ in 0..100 {
            let retry_us = rng.u64(1..100 * SECOND_US);
            let wait_us = retry_us.div_ceil(SECOND_US) * SECOND_US;
            // Other requests in transit.
            let spread_us = 500 * MS;
            for late_us in (0..rng.u64(0..20)).map(|number| number * spread_us / 20) {
                let left_us = retry_us.saturating_sub(late_us).max(1);
                let (next, cooldown_us) = PENALTY.record_refusal(record, now + late_us, left_us);
                assert_eq!((cooldown_us, next.strikes), (None, 0));
                record = Some(next);
            }
            let early_us = wait_us / 100;
            now += wait_us - early_us + rng.u64(0..2 * early_us + SECOND_US);
        }
    }
}

const RULES: &str = "
rules:
  - { id: api, limit: 5/min, penalty: { after: 2, first: 30s, longest: 1m } }
  - { id: wide, limit: 1000/min }
";

#[test]
fn a_virtual_node_penalises_as_the_limiter_does() {
    let loaded = rules::load("test.yaml", RULES).unwrap();
    let request = Request { api_key: Some("k"), endpoint: "/", ..Request::default() };
    let mut node = VirtualNode::default();
    let mut wait_ms = |at_ms: u64| match node.check(&loaded, &request, RULE_TEST_START + at_ms * MS).unwrap()
    {
        Outcome::Limited(status) => status.wait_us().map(|wait_us| wait_us / MS),
        _ => None,
    };
    let passes: Vec<_> = (0..5).map(|_| wait_ms(0)).collect();
    assert_eq!(passes, [None; 5]);
    assert_eq!(wait_ms(0), Some(12_000));
    assert_eq!(wait_ms(2_000), Some(10_000));
    assert_eq!(wait_ms(3_000), Some(30_000), "the second strike");
    assert_eq!(wait_ms(13_000), Some(20_000), "a token is available, but the cooldown continues");
    assert_eq!(wait_ms(33_000), None, "the cooldown ends as told");
}

/// A cooldown of 30 s, and another limit that refuses for a minute: the retry time is a minute, and no token is spent.
#[test]
fn in_a_cooldown_the_longest_wait_decides() {
    let rules = "
rules:
  - { id: api, limit: 5/min, penalty: { after: 1, first: 30s, longest: 1m } }
  - { id: shared, key: user, algorithm: fixed_window, limit: 6/min }
";
    let loaded = rules::load("test.yaml", rules).unwrap();
    let of = |key| Request { api_key: Some(key), user: Some("ann"), endpoint: "/", ..Request::default() };
    let mut node = VirtualNode::default();
    for (at_s, key, expected) in [
        (0, "a", None),
        (0, "a", None),
        (0, "a", None),
        (0, "a", None),
        (0, "a", None),
        (0, "a", Some((12, "api"))),
        (2, "a", Some((30, "api"))),
        (3, "a", Some((29, "api"))),
        // Another key of the user takes the last token.
        (3, "b", None),
        (3, "b", Some((57, "shared"))),
        (4, "a", Some((56, "shared"))),
        (40, "a", Some((20, "shared"))),
        (60, "a", None),
    ] {
        let outcome = node.check(&loaded, &of(key), RULE_TEST_START + at_s * SECOND_US).unwrap();
        let found = match &outcome {
            Outcome::Limited(status) => {
                let wait_s = status.wait_us().map(|wait_us| wait_us / SECOND_US);
                wait_s.map(|wait_s| (wait_s, loaded.rules.rule_of(status.limit).id.as_str()))
            }
            _ => None,
        };
        assert_eq!(found, expected, "{key} at {at_s} s: {outcome:?}");
    }
}
