//! How conduct becomes cooldowns, as rows of (time, told wait, answer), and as laws.

use fastrand::Rng;
use tollgate_core::decision::Outcome;
use tollgate_core::penalty::{Penalty, PenaltyRecord};
use tollgate_core::request::Request;
use tollgate_core::rules::{self, START_US, VirtualNode};

const MS: u64 = 1_000;
const SECOND_US: u64 = 1_000 * MS;

const PENALTY: Penalty = Penalty {
    after: 3,
    first_us: 10 * SECOND_US,
    longest_us: 60 * SECOND_US,
    forget_us: 600 * SECOND_US,
    identity: 0,
};

/// Refusals, as (when, what is told), and which cooldown each becomes.
#[track_caller]
fn rows(rows: &[(u64, u64, Option<u64>)]) {
    let mut conduct: Option<PenaltyRecord> = None;
    for (at_us, told_us, expected) in rows {
        let (next, cooldown_us) = PENALTY.refused(conduct, START_US + at_us, *told_us);
        assert_eq!(cooldown_us, *expected, "at {} ms after {conduct:?}", at_us / MS);
        conduct = Some(next);
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
        // After the cooldown it begins anew, and the next is twice as long.
        (14_000 * MS, 12_000 * MS, None),
        (15_000 * MS, 11_000 * MS, None),
        (16_000 * MS, 10_000 * MS, None),
        (17_000 * MS, 9_000 * MS, Some(20 * SECOND_US)),
    ]);
}

#[test]
fn no_cooldown_is_shorter_than_the_limits_own_wait() {
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
fn short_waits_are_told_in_whole_seconds() {
    let told = 100 * MS;
    rows(&[
        (0, told, None),
        (400 * MS, told, None),
        (500 * MS, told, None),
        (600 * MS, told, None),
        (700 * MS, told, Some(10 * SECOND_US)),
    ]);
}

#[test]
fn what_was_on_its_way_and_what_is_a_little_early_is_no_strike() {
    let told = 60 * SECOND_US;
    rows(&[(0, told, None), (999 * MS, told, None), (54_000 * MS, told, None), (54_500 * MS, told, None)]);
    let burst: Vec<_> = (0..1_000).map(|at| (at * MS, told, None)).collect();
    rows(&burst);
}

#[test]
fn cooldowns_double_up_to_the_longest_and_are_forgotten() {
    let mut conduct = None;
    let mut now_us = START_US;
    let mut lengths = Vec::new();
    for _ in 0..5 {
        let cooldown_us = loop {
            let (next, cooldown_us) = PENALTY.refused(conduct, now_us, SECOND_US);
            conduct = Some(next);
            match cooldown_us {
                Some(cooldown_us) => break cooldown_us,
                None => now_us += 100 * MS,
            }
        };
        lengths.push(cooldown_us / SECOND_US);
        now_us += cooldown_us;
    }
    assert_eq!(lengths, [10, 20, 40, 60, 60]);
    let known = conduct.unwrap();
    let (next, _) = PENALTY.refused(conduct, known.until_us + PENALTY.forget_us - 1, SECOND_US);
    assert_eq!(next.level, 5);
    let (next, _) = PENALTY.refused(conduct, known.until_us + PENALTY.forget_us, SECOND_US);
    assert_eq!((next.level, next.strikes), (0, 0));
}

#[test]
fn a_shift_far_beyond_the_width_of_a_number_is_the_longest() {
    for level in [0, 1, 2, 3, 63, 64, 65, u32::MAX] {
        assert!((PENALTY.first_us..=PENALTY.longest_us).contains(&PENALTY.cooldown_us(level)));
    }
}

#[test]
fn a_clock_that_goes_back_begins_a_new_wait() {
    let (conduct, _) = PENALTY.refused(None, START_US + 3_600 * SECOND_US, 60 * SECOND_US);
    let (conduct, cooldown_us) = PENALTY.refused(Some(conduct), START_US, 60 * SECOND_US);
    assert_eq!((conduct.since_us, cooldown_us), (START_US, None));
}

/// Whoever comes back when he was told, give or take the error of a clock, is never struck; also not if he has
/// several requests under way at once.
#[test]
fn who_waits_as_told_is_never_penalised() {
    let mut rng = Rng::with_seed(7);
    for _ in 0..200 {
        let mut conduct = None;
        let mut now_us = START_US;
        for _ in 0..100 {
            let retry_us = rng.u64(1..100 * SECOND_US);
            let told_us = retry_us.div_ceil(SECOND_US) * SECOND_US;
            // The others that were on their way.
            let spread_us = 500 * MS;
            for late_us in (0..rng.u64(0..20)).map(|number| number * spread_us / 20) {
                let left_us = retry_us.saturating_sub(late_us).max(1);
                let (next, cooldown_us) = PENALTY.refused(conduct, now_us + late_us, left_us);
                assert_eq!((cooldown_us, next.strikes), (None, 0));
                conduct = Some(next);
            }
            let early_us = told_us / 100;
            now_us += told_us - early_us + rng.u64(0..2 * early_us + SECOND_US);
        }
    }
}

const RULES: &str = "
rules:
  - { id: api, limit: 5/min, penalty: { after: 2, first: 30s, longest: 1m } }
  - { id: wide, limit: 1000/min }
";

#[test]
fn a_virtual_node_penalises_as_the_engine_does() {
    let loaded = rules::load("test.yaml", RULES).unwrap();
    let request = Request { api_key: Some("k"), endpoint: "/", ..Request::default() };
    let mut node = VirtualNode::default();
    let mut wait_ms = |at_ms: u64| match node.check(&loaded, &request, START_US + at_ms * MS).unwrap() {
        Outcome::Limited(standing) => standing.wait_us().map(|wait_us| wait_us / MS),
        _ => None,
    };
    let passes: Vec<_> = (0..5).map(|_| wait_ms(0)).collect();
    assert_eq!(passes, [None; 5]);
    assert_eq!(wait_ms(0), Some(12_000));
    assert_eq!(wait_ms(2_000), Some(10_000));
    assert_eq!(wait_ms(3_000), Some(30_000), "the second strike");
    assert_eq!(wait_ms(13_000), Some(20_000), "a token is there, but the cooldown lasts");
    assert_eq!(wait_ms(33_000), None, "and ends when it was said");
}

/// A cooldown of 30 s, and another limit that refuses for a minute: the minute is told, and nothing is spent.
#[test]
fn in_a_cooldown_the_longest_wait_is_told() {
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
        // Another key of the user takes the last.
        (3, "b", None),
        (3, "b", Some((57, "shared"))),
        (4, "a", Some((56, "shared"))),
        (40, "a", Some((20, "shared"))),
        (60, "a", None),
    ] {
        let outcome = node.check(&loaded, &of(key), START_US + at_s * SECOND_US).unwrap();
        let found = match &outcome {
            Outcome::Limited(standing) => {
                let wait_s = standing.wait_us().map(|wait_us| wait_us / SECOND_US);
                wait_s.map(|wait_s| (wait_s, loaded.rules.rule_of(standing.limit).id.as_str()))
            }
            _ => None,
        };
        assert_eq!(found, expected, "{key} at {at_s} s: {outcome:?}");
    }
}
