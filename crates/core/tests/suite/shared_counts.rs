//! Limits with different numbers on one key (an override, two versions of a rule on two nodes) share its state: in
//! whatever order they are asked, no more passes than the larger numbers allow.

use crate::sample::{HOUR_US, NOW_US, SECOND_US, at, buckets, counters};
use std::collections::BTreeMap;
use tollgate_core::algorithm::Algorithm;
use tollgate_core::limit::{Limit, LimitSize, LimitState};
use tollgate_core::rate::Rate;

const WINDOW_US: u64 = 60 * SECOND_US;

fn bucket(algorithm: Algorithm, capacity: u64, per_second: u64) -> Limit {
    let size =
        LimitSize { capacity: Some(capacity), rate: Rate::per(per_second, SECOND_US), window_us: None };
    Limit::new("shared", algorithm, size).unwrap()
}

fn window(algorithm: Algorithm, limit: u64, window_us: u64) -> Limit {
    let size = LimitSize { capacity: Some(limit), rate: None, window_us: Some(window_us) };
    Limit::new("shared", algorithm, size).unwrap()
}

/// The states of one key, by what names them.
#[derive(Default)]
struct States(BTreeMap<u64, LimitState>);

impl States {
    fn admits(&mut self, limit: &Limit, now_us: u64) -> bool {
        let (step, next) = limit.step_state(self.0.get(&limit.state_id), at(now_us), 1);
        if let Some(next) = next {
            self.0.insert(limit.state_id, next);
        }
        step.admitted
    }
}

#[test]
fn buckets_that_share_a_key_admit_no_more_than_the_larger() {
    for algorithm in buckets() {
        for (small, large, per_second) in
            [((50, 1), (500, 1), 1), ((50, 20), (500, 1), 20), ((500, 1), (500, 90), 90)]
        {
            for seed in 0..20 {
                let rng = &mut fastrand::Rng::with_seed(seed);
                let limits = [small, large].map(|(capacity, rate)| bucket(algorithm, capacity, rate));
                let mut states = States::default();
                let (mut now_us, mut admitted) = (NOW_US, 0_u64);
                while now_us < NOW_US + 20 * SECOND_US {
                    let limit = &limits[rng.usize(0..2)];
                    for _ in 0..rng.u64(1..=600) {
                        admitted += u64::from(states.admits(limit, now_us));
                    }
                    let most = 500 + (now_us - NOW_US) * per_second / SECOND_US;
                    assert!(
                        admitted <= most,
                        "{algorithm:?} {small:?} {large:?}, seed {seed}: {admitted} of {most}"
                    );
                    now_us += rng.u64(0..=2 * SECOND_US);
                }
                assert!(admitted >= 50, "{algorithm:?}: {admitted}");
            }
        }
    }
}

#[test]
fn windows_that_share_a_key_admit_no_more_than_the_larger() {
    let counter = Algorithm::SlidingWindowCounter;
    for seed in 0..50 {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let limits = [50, 500].map(|limit| window(counter, limit, WINDOW_US));
        let mut states = States::default();
        let (mut now_us, mut counts) = (NOW_US, BTreeMap::<u64, u64>::new());
        while now_us < NOW_US + 10 * WINDOW_US {
            let limit = &limits[rng.usize(0..2)];
            for _ in 0..rng.u64(1..=600) {
                if states.admits(limit, now_us) {
                    *counts.entry(now_us / WINDOW_US).or_default() += 1;
                }
            }
            let (number, elapsed) = (now_us / WINDOW_US, now_us % WINDOW_US);
            let of = |number: u64| counts.get(&number).copied().unwrap_or(0);
            let weighed = of(number - 1) * (WINDOW_US - elapsed) + of(number) * WINDOW_US;
            assert!(weighed <= 500 * WINDOW_US, "seed {seed}: {} in a window", weighed / WINDOW_US);
            now_us += rng.u64(0..=WINDOW_US / 4);
        }
        assert!(counts.values().sum::<u64>() > 1_000);
    }
}

#[test]
fn windows_of_different_lengths_have_counts_of_their_own() {
    for algorithm in counters() {
        let (minute, hour) = (window(algorithm, 50, WINDOW_US), window(algorithm, 500, HOUR_US));
        let mut states = States::default();
        let (mut of_minute, mut of_hour) = (0, 0);
        // A minute's worth of seconds, all within one hour and one minute.
        let start_us = NOW_US - NOW_US % HOUR_US;
        for second in 0..60 {
            let now_us = start_us + second * SECOND_US;
            of_hour += (0..600).filter(|_| states.admits(&hour, now_us)).count();
            of_minute += usize::from(states.admits(&minute, now_us));
        }
        assert_eq!((of_minute, of_hour), (50, 500), "{algorithm:?}");
    }
}
