//! Which limits are built and which refused, how rates and durations are read and written, and that the
//! largest numbers accepted never overflow: the tests run with overflow checks on.

use crate::sample::{
    Bucket, DAY_US, Kept, NOW_US, SECOND_US, at, bucket, buckets, counters, window, windows,
};
use tollgate_core::algorithm::{Algorithm, StateKind};
use tollgate_core::limit::{LARGEST_LOG, Limit, LimitError, LimitNumber, LimitSize, LimitState};
use tollgate_core::rate::{LimitShorthand, Rate, duration_text, parse_duration_us};

fn per_window(algorithm: Algorithm, limit: u64, window_us: u64) -> Result<Limit, LimitError> {
    Limit::new(
        "policy",
        algorithm,
        LimitSize { capacity: Some(limit), rate: None, window_us: Some(window_us) },
    )
}

fn per_second(algorithm: Algorithm, capacity: u64, rate: &str) -> Result<Limit, LimitError> {
    let rate = Some(Rate::from_decimal(rate).unwrap());
    Limit::new("policy", algorithm, LimitSize { capacity: Some(capacity), rate, window_us: None })
}

fn is_out_of_range(limit: Result<Limit, LimitError>) -> bool {
    matches!(limit, Err(LimitError::OutOfRange { .. }))
}

#[test]
fn what_is_missing_is_named() {
    let rate = Rate::per(1, SECOND_US);
    for algorithm in buckets() {
        let missing = |size| Limit::new("policy", algorithm, size).unwrap_err();
        assert_eq!(
            missing(LimitSize { rate, ..LimitSize::default() }),
            LimitError::Missing(LimitNumber::Capacity)
        );
        assert_eq!(
            missing(LimitSize { capacity: Some(1), ..LimitSize::default() }),
            LimitError::Missing(LimitNumber::Rate)
        );
    }
    for algorithm in windows() {
        let missing = |size| Limit::new("policy", algorithm, size).unwrap_err();
        assert_eq!(
            missing(LimitSize { window_us: Some(1), ..LimitSize::default() }),
            LimitError::Missing(LimitNumber::Limit)
        );
        // A rate is no substitute for a window.
        assert_eq!(
            missing(LimitSize { capacity: Some(1), rate, window_us: None }),
            LimitError::Missing(LimitNumber::Window)
        );
    }
}

#[test]
fn a_limit_of_nothing_is_refused() {
    for algorithm in Algorithm::scripted() {
        assert_eq!(per_window(algorithm, 0, SECOND_US), Err(LimitError::RejectsAll), "{algorithm:?}");
    }
}

#[test]
fn ranges() {
    for algorithm in Algorithm::scripted() {
        assert!(is_out_of_range(per_window(algorithm, 1, 0)), "{algorithm:?}");
        assert!(per_window(algorithm, 1, 1).is_ok(), "{algorithm:?}");
        assert!(per_window(algorithm, 1, 366 * DAY_US).is_ok(), "{algorithm:?}");
        assert!(is_out_of_range(per_window(algorithm, 1, 366 * DAY_US + 1)), "{algorithm:?}");
        assert!(is_out_of_range(per_window(algorithm, 1 << 32, SECOND_US)), "{algorithm:?}");
        assert!(is_out_of_range(per_window(algorithm, u64::MAX, SECOND_US)), "{algorithm:?}");
        if algorithm.state_kind() != StateKind::Log {
            assert!(per_window(algorithm, (1 << 32) - 1, SECOND_US).is_ok(), "{algorithm:?}");
        }
    }
}

#[test]
fn a_log_remembers_at_most_a_thousand() {
    assert!(per_window(Algorithm::SlidingWindowLog, LARGEST_LOG, DAY_US).is_ok());
    assert!(is_out_of_range(per_window(Algorithm::SlidingWindowLog, LARGEST_LOG + 1, DAY_US)));
    assert!(per_window(Algorithm::SlidingWindowCounter, LARGEST_LOG + 1, DAY_US).is_ok());
}

#[test]
fn a_bucket_fills_within_a_year() {
    for algorithm in buckets() {
        let filled_in = |seconds| {
            let rate = Rate::per(1, seconds * SECOND_US);
            Limit::new("policy", algorithm, LimitSize { capacity: Some(3), rate, window_us: None })
        };
        assert!(filled_in(122 * 86_400).is_ok(), "{algorithm:?}");
        assert!(is_out_of_range(filled_in(122 * 86_400 + 1)), "{algorithm:?}");
    }
}

#[test]
fn what_cannot_be_counted_exactly_is_refused() {
    for algorithm in buckets() {
        assert!(per_second(algorithm, 10, "1.000001").is_ok(), "{algorithm:?}");
        for rate in ["1.0000000001", "0.333333333333", "123456789.123456789", "3.14159265358979"] {
            assert!(is_out_of_range(per_second(algorithm, 10, rate)), "{algorithm:?} at {rate}");
        }
    }
    // A year has too many microseconds for a large limit, and an odd one has nothing coarser.
    for algorithm in counters() {
        assert!(per_window(algorithm, 1_000, 365 * DAY_US).is_ok(), "{algorithm:?}");
        assert!(is_out_of_range(per_window(algorithm, 1_000, 365 * DAY_US + 1)), "{algorithm:?}");
    }
    assert!(per_window(Algorithm::SlidingWindowLog, 1_000, 365 * DAY_US + 1).is_ok());
}

#[test]
fn headers_show_the_window_or_the_time_to_full() {
    let seconds = |size| Limit::new("policy", Algorithm::TokenBucket, size).unwrap().window_seconds;
    let rate = Rate::from_decimal("1.67");
    assert_eq!(seconds(LimitSize { capacity: Some(100), rate, window_us: None }), 60);
    assert_eq!(seconds(LimitSize { capacity: Some(100), rate, window_us: Some(90 * SECOND_US) }), 90);
    assert_eq!(seconds(LimitSize { capacity: Some(100), rate: None, window_us: Some(1_500_000) }), 2);
    assert_eq!(seconds(LimitSize { capacity: Some(1), rate: Rate::per(1, 1), window_us: None }), 1);
}

#[test]
fn a_bucket_with_a_window_and_no_rate_refills_in_that_window() {
    let windowed = per_window(Algorithm::TokenBucket, 100, 60 * SECOND_US).unwrap();
    let mut kept = Kept::new(windowed);
    assert_eq!(kept.step(NOW_US, 100).reset_after_us, 60 * SECOND_US);
    assert_eq!(kept.step(NOW_US, 1).retry_after_us, 600_000);
}

/// YAML, metrics and the constants of the script use one name, and no two algorithms share one.
#[test]
fn algorithms_have_unique_names() {
    let mut names = std::collections::BTreeSet::new();
    for algorithm in Algorithm::ALL {
        assert_eq!(serde_json::to_value(algorithm).unwrap(), algorithm.name());
        assert!(names.insert(algorithm.name()), "{algorithm:?}");
    }
}

/// A state has to be found again after an edit of the numbers, and must not be after another algorithm.
#[test]
fn an_identity_depends_on_names_alone() {
    let named = |policy, limit, algorithm| {
        let size = LimitSize { capacity: Some(limit), rate: None, window_us: Some(SECOND_US) };
        Limit::new(policy, algorithm, size).unwrap().state_id
    };
    let identity = named("login", 5, Algorithm::FixedWindow);
    assert_eq!(identity, named("login", 6, Algorithm::FixedWindow));
    assert_ne!(identity, named("login", 5, Algorithm::SlidingWindowCounter));
    assert_ne!(identity, named("logins", 5, Algorithm::FixedWindow));
}

/// The tick shows in the wait: a coarser one rounds it up to its own grid. 4·B·P has to stay below 2^53, so
/// at 1.67 per second (P = 10^8 µs) the last capacity that is counted in microseconds is 22,517,998.
#[test]
fn each_limit_counts_in_the_finest_tick_that_fits() {
    let at_us = NOW_US - NOW_US % SECOND_US;
    for algorithm in buckets() {
        let waits = |rule: Bucket| {
            let mut kept = Kept::new(rule.limit(algorithm));
            assert!(kept.step(at_us, rule.capacity).admitted);
            kept.step(at_us, 1).retry_after_us
        };
        assert_eq!(waits(bucket(22_517_998, 167, 100, 1)), 598_803, "{algorithm:?}");
        assert_eq!(waits(bucket(22_517_999, 167, 100, 1_000)), 599_000, "{algorithm:?}");
        assert_eq!(waits(bucket(3, 7, 30_000, 1_000)), 4_285_715_000, "{algorithm:?}");
        assert_eq!(waits(bucket(2_345_677, 2_345_677, 2_592_000, 1_000_000)), 2_000_000, "{algorithm:?}");
    }
}

/// Halfway through a tick, what is left of it is part of the wait: promises are exact on a coarse clock too.
#[test]
fn a_wait_ends_where_a_tick_starts() {
    let at_us = NOW_US - NOW_US % SECOND_US;
    let mut kept = Kept::new(bucket(6, 1, 60 * 86_400, 1_000_000).limit(Algorithm::TokenBucket));
    assert!(kept.step(at_us + 999_999, 6).admitted);
    assert_eq!(kept.step(at_us + 999_999, 1).retry_after_us, 60 * DAY_US - 999_999);
    assert_eq!(kept.step(at_us + 60 * DAY_US - 1, 1).retry_after_us, 1);
    assert!(kept.step(at_us + 60 * DAY_US, 1).admitted);
}

/// The numbers closest to every bound, at instants up to the year 9999, through jumps both ways.
#[test]
fn the_largest_numbers_do_not_overflow() {
    let most = u32::MAX;
    let buckets = [
        bucket(most, 137, 1, 1),
        bucket(most, most.into(), 1, 1),
        bucket(most, 4_294_967_295_000_000, 1, 1),
        bucket(1, 4_294_967_295_000_000, 1, 1),
        bucket(22_517_998, 167, 100, 1),
        bucket(22_517_999, 167, 100, 1_000),
        bucket(366, 1, 86_400, 1_000),
        bucket(1, 1, 366 * 86_400, 1_000_000),
    ];
    let windows = [
        window(most, 1, 1),
        window(most, 524_287, 1),
        window(most, 524_288_000, 1_000),
        window(71, 366 * DAY_US, 1),
        window(71_000, 366 * DAY_US, 1_000),
        window(71_000_000, 366 * DAY_US, 1_000_000),
        window(1_000, 366 * DAY_US, 1),
    ];
    for algorithm in Algorithm::scripted() {
        let built: Vec<Limit> = if algorithm.state_kind() == StateKind::Log {
            vec![windows[6].limit(algorithm)]
        } else if algorithm.counts_windows() {
            windows[..6].iter().map(|rule| rule.limit(algorithm)).collect()
        } else {
            buckets.iter().map(|rule| rule.limit(algorithm)).collect()
        };
        shake(&built);
    }
}

/// Steps of the extreme costs at extreme instants, under each of the limits in turn.
fn shake(limits: &[Limit]) {
    const YEAR_9999_US: u64 = 253_402_300_799 * SECOND_US;
    let rng = &mut fastrand::Rng::with_seed(9_999);
    let mut state: Option<LimitState> = None;
    for index in 0..20_000 {
        let limit =
            &limits[if index % 8 == 0 { rng.usize(..limits.len()) } else { index / 256 % limits.len() }];
        let now_us = match rng.u8(0..4) {
            0 => 0,
            1 => YEAR_9999_US,
            _ => NOW_US + rng.u64(0..=2 * limit.lifetime_us),
        };
        let cost = [1, limit.quota / 2, limit.quota, rng.u32(1..=limit.quota)][rng.usize(0..4)].max(1);
        let (step, next) = limit.step_state(state.as_ref(), at(now_us), cost);
        let longest_us = 2 * limit.lifetime_us + SECOND_US;
        assert!(step.remaining <= limit.quota, "step {index}: {limit:?}");
        assert!(step.retry_after_us <= longest_us, "step {index}: {limit:?} says {step:?}");
        assert!(step.reset_after_us <= longest_us, "step {index}: {limit:?} says {step:?}");
        assert_eq!(step.admitted, step.retry_after_us == 0, "step {index}: {limit:?} says {step:?}");
        state = next.or(state);
    }
}

/// Two units may share a mark by chance. A fraction that is then misread must stay a fraction: it may
/// neither fill a bucket nor make it hold more than its capacity.
#[test]
fn a_mark_shared_by_chance_costs_at_most_a_token() {
    let every = |capacity, period_us, algorithm| {
        let rate = Rate::per(1, period_us);
        Limit::new("policy", algorithm, LimitSize { capacity: Some(capacity), rate, window_us: None })
            .unwrap()
    };
    let mark = |limit: &Limit| limit.step(None, at(NOW_US), 1).next.unwrap().grain;
    for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        let fine = every(10, 7, algorithm);
        let coarse = (4_000_000_000..4_294_967_295)
            .map(|period_us| every(10, period_us, algorithm))
            .find(|limit| mark(limit) == mark(&fine))
            .unwrap();
        // Empty but for a fraction of more than half a token, which is billions of the finer ones.
        let mut kept = Kept::new(coarse);
        assert!(kept.step(NOW_US, 10).admitted);
        let later_us = NOW_US + 6_500_000_000;
        assert!(kept.step(later_us, 1).admitted);
        kept.limit = fine;
        let step = kept.peek(later_us, 10);
        assert!(!step.admitted && step.remaining <= 1, "{algorithm:?}: {step:?}");
        assert!(step.retry_after_us <= 70 && step.retry_after_us > 56, "{algorithm:?}: {step:?}");
    }
}

#[test]
fn decimals_are_read_exactly() {
    let rows: [(&str, Option<(u64, u64)>); 22] = [
        ("1.67", Some((167, 100 * SECOND_US))),
        ("10", Some((10, SECOND_US))),
        ("0.5", Some((1, 2 * SECOND_US))),
        ("1.50", Some((3, 2 * SECOND_US))),
        ("007", Some((7, SECOND_US))),
        ("2.", Some((2, SECOND_US))),
        ("1e3", Some((1_000, SECOND_US))),
        ("1.5E1", Some((15, SECOND_US))),
        ("25e-2", Some((1, 4 * SECOND_US))),
        ("0.000001", Some((1, 1_000_000 * SECOND_US))),
        ("0", None),
        ("0.00", None),
        ("-1", None),
        ("+1", None),
        ("", None),
        (".5", None),
        ("1.2.3", None),
        ("1_000", None),
        ("1e", None),
        ("1e19", None),
        ("1234567890123456789", None),
        ("NaN", None),
    ];
    for (text, expected) in rows {
        let expected = expected.map(|(amount, period_us)| Rate::per(amount, period_us).unwrap());
        assert_eq!(Rate::from_decimal(text), expected, "`{text}`");
    }
    for exponent in [i32::MIN, i32::MIN + 1, -19, 19, i32::MAX] {
        assert_eq!(Rate::from_decimal(&format!("1.5e{exponent}")), None, "{exponent}");
    }
}

#[test]
fn rates_keep_lowest_terms() {
    assert_eq!(Rate::per(0, 1), None);
    assert_eq!(Rate::per(1, 0), None);
    assert_eq!(Rate::per(u64::MAX, 1), None);
    assert_eq!(Rate::per(100, 60 * SECOND_US), Rate::per(5, 3 * SECOND_US));
    let rate = Rate::from_decimal("1.67").unwrap();
    assert_eq!(rate.per_ticks(1), (167, 100_000_000));
    assert_eq!(rate.per_ticks(1_000), (167, 100_000));
    assert_eq!(rate.per_ticks(1_000_000), (167, 100));
    assert_eq!(rate.times(100), Rate::from_decimal("167"));
    assert_eq!(rate.times(0), None);
    assert_eq!(rate.time_for_us(1), 598_803);
    assert_eq!(rate.time_for_us(167), 100 * SECOND_US);
    assert_eq!(rate.time_for_us(0), 0);
}

#[test]
fn rates_are_shown_per_a_unit_that_suits_them() {
    let rows = [
        (1, SECOND_US, "1/s"),
        (167, 100 * SECOND_US, "1.67/s"),
        (1_000, SECOND_US, "1000/s"),
        (1, 60 * SECOND_US, "60/h"),
        (5, 86_400 * SECOND_US, "5/day"),
    ];
    for (amount, period_us, expected) in rows {
        assert_eq!(Rate::per(amount, period_us).unwrap().to_string(), expected);
    }
}

#[test]
fn quotas() {
    let minute = 60 * SECOND_US;
    let rows = [
        ("100/min", 100, minute),
        ("10/s", 10, SECOND_US),
        ("5/15min", 5, 15 * minute),
        ("1_000/h", 1_000, 60 * minute),
        (" 250 / day ", 250, DAY_US),
        ("3/1.5s", 3, 1_500_000),
        ("3/90", 3, 90 * SECOND_US),
        ("1/250ms", 1, 250_000),
    ];
    for (text, amount, period_us) in rows {
        assert_eq!(LimitShorthand::parse(text), Ok(LimitShorthand { amount, period_us }), "`{text}`");
    }
    for text in ["", "100", "100/", "/", "/min", "x/min", "1.5/s", "-1/s", "100/fortnight", "100/.5", "1/2/3"]
    {
        assert!(
            LimitShorthand::parse(text).is_err(),
            "`{text}` is read as {:?}",
            LimitShorthand::parse(text)
        );
    }
}

#[test]
fn durations() {
    let rows = [
        ("60", 60 * SECOND_US),
        ("0", 0),
        ("90s", 90 * SECOND_US),
        (" 90 s ", 90 * SECOND_US),
        ("1.5s", 1_500_000),
        ("0.000001", 1),
        ("2min", 120 * SECOND_US),
        ("5m", 300 * SECOND_US),
        ("1h 30m", 5_400 * SECOND_US),
        ("1day", DAY_US),
        ("250ms", 250_000),
        ("7us", 7),
        ("18446744073709.551615", u64::MAX),
    ];
    for (text, us) in rows {
        assert_eq!(parse_duration_us(text), Ok(us), "`{text}`");
    }
    let unreadable = [
        "",
        "s",
        ".",
        ".5",
        "1.2.3",
        "1.0000001",
        "-1s",
        "soon",
        "1 2",
        "18446744073709.551616",
        "99999999999999999999",
    ];
    for text in unreadable {
        assert!(parse_duration_us(text).is_err(), "`{text}` is read as {:?}", parse_duration_us(text));
    }
}

#[test]
fn durations_are_shown_as_they_are_written() {
    let rows = [
        (0, "0s"),
        (1, "1us"),
        (598_803, "598.803ms"),
        (250_000, "250ms"),
        (SECOND_US, "1s"),
        (1_500_000, "1.5s"),
        (90 * SECOND_US, "90s"),
        (60 * SECOND_US, "1min"),
        (120 * SECOND_US, "2min"),
        (3_600 * SECOND_US, "1h"),
        (5_400 * SECOND_US, "90min"),
        (DAY_US, "1day"),
        (7 * DAY_US, "7day"),
        (86_400_000_001, "86400.000001s"),
        (60_000_100, "60.0001s"),
        (999_999, "999.999ms"),
        (1_001, "1.001ms"),
        (999, "999us"),
    ];
    for (us, shown) in rows {
        assert_eq!(duration_text(us), shown);
        assert_eq!(parse_duration_us(shown), Ok(us), "`{shown}` does not read back");
    }
}
