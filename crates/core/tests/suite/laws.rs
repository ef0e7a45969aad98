//! What every algorithm promises, whatever its numbers: a rejection is free, the limit holds over any
//! interval, nobody starves, and a clock that steps back harms nobody.

use crate::sample::{Bucket, HUNDRED, Kept, NOW_US, SECOND_US, Window, at, bucket, buckets, window, windows};
use tollgate_core::algorithm::{Algorithm, LimitStep, StateKind};
use tollgate_core::limit::Limit;

/// One limit of every algorithm, the windows at `limit` per `window_us` and the buckets at the same pace.
fn one_of_each(limit: u32, window_us: u64) -> Vec<Limit> {
    let as_window = window(limit, window_us, 1);
    let as_bucket = bucket(limit, u64::from(limit) * SECOND_US, window_us, 1);
    let buckets = buckets().map(|algorithm| as_bucket.limit(algorithm));
    buckets.chain(windows().map(|algorithm| as_window.limit(algorithm))).collect()
}

/// Random limits of all algorithms.
fn drawn(rng: &mut fastrand::Rng) -> Vec<Limit> {
    let (as_bucket, as_window, as_log) = (Bucket::draw(rng), Window::draw(rng), Window::draw_for_log(rng));
    let limit_of = |algorithm: Algorithm| match algorithm.state_kind() {
        StateKind::Log | StateKind::InFlight => as_log.limit(algorithm),
        StateKind::Cell if algorithm.counts_windows() => as_window.limit(algorithm),
        StateKind::Cell => as_bucket.limit(algorithm),
    };
    Algorithm::scripted().map(limit_of).collect()
}

#[test]
fn a_rejection_hands_back_no_state() {
    for seed in 0..200 {
        let rng = &mut fastrand::Rng::with_seed(seed);
        for limit in drawn(rng) {
            let mut kept = Kept::new(limit);
            let mut now_us = NOW_US;
            for index in 0..100 {
                now_us += rng.u64(0..=kept.limit.lifetime_us) / 16;
                let cost = rng.u32(1..=kept.limit.quota);
                let before = kept.state.clone();
                let (step, next) = kept.limit.step_state(before.as_ref(), at(now_us), cost);
                assert_eq!(next.is_some(), step.admitted, "seed {seed}, step {index}: {:?}", kept.limit);
                kept.step(now_us, cost);
                assert_eq!(
                    kept.state == before,
                    !step.admitted,
                    "seed {seed}, step {index}: {:?}",
                    kept.limit
                );
            }
        }
    }
}

/// Finds the busiest interval: with C the sum of what was admitted so far, the sum over i ≤ j exceeds
/// r·(t_j − t_i) by (C_j − r·t_j) − (C_{i−1} − r·t_i), so the lowest second term so far decides.
pub struct Ledger {
    rule: Bucket,
    sum: i128,
    lowest: i128,
    most: i128,
}

impl Ledger {
    pub fn new(rule: Bucket) -> Self {
        Self { rule, sum: 0, lowest: i128::MAX, most: 0 }
    }

    pub fn admit(&mut self, at_us: u64, cost: u32) {
        // The limit's clock is the start of the tick.
        let gained = i128::from(at_us - at_us % self.rule.tick_us) * i128::from(self.rule.tokens);
        self.lowest = self.lowest.min(self.sum - gained);
        self.sum += i128::from(cost) * i128::from(self.rule.seconds) * 1_000_000;
        self.most = self.most.max(self.sum - gained - self.lowest);
    }

    /// Whether no interval admitted more than the capacity and what flowed in it.
    pub fn holds(&self) -> bool {
        self.holds_with(0)
    }

    /// Whether no interval admitted more than that and so many tokens.
    pub fn holds_with(&self, more: u32) -> bool {
        let tokens = i128::from(self.rule.capacity) + i128::from(more);
        self.most <= tokens * i128::from(self.rule.seconds) * 1_000_000
    }
}

#[test]
fn a_bucket_admits_at_most_its_capacity_and_what_flows() {
    for algorithm in buckets() {
        for seed in 0..200 {
            let rng = &mut fastrand::Rng::with_seed(seed);
            let rule = Bucket::draw(rng);
            let mut kept = Kept::new(rule.limit(algorithm));
            let mut ledger = Ledger::new(rule);
            let mut now_us = NOW_US;
            for index in 0..300 {
                let cost = rng.u32(1..=rule.capacity);
                let step = kept.step(now_us, cost);
                if step.admitted {
                    ledger.admit(now_us, cost);
                }
                assert!(ledger.holds(), "seed {seed}, step {index}: {algorithm:?} {rule:?}");
                now_us += [0, step.retry_after_us, rng.u64(0..=step.reset_after_us)][rng.usize(0..3)];
            }
        }
    }
}

#[test]
fn a_ledger_notices_one_token_too_many() {
    let mut ledger = Ledger::new(bucket(3, 1, 1, 1));
    for at_us in [0, 0, 0, SECOND_US] {
        ledger.admit(at_us, 1);
    }
    assert!(ledger.holds());
    ledger.admit(2 * SECOND_US - 1, 1);
    assert!(!ledger.holds());
}

#[test]
fn a_fixed_window_never_admits_more_than_its_limit() {
    for_random_windows(Algorithm::FixedWindow, |rule, admitted, at_us| {
        let start_us = at_us - at_us % rule.window_us;
        admitted.iter().filter(|(us, _)| *us >= start_us).map(|(_, cost)| u64::from(*cost)).sum()
    });
}

#[test]
fn a_sliding_log_never_admits_more_than_its_limit_in_any_window() {
    for_random_windows(Algorithm::SlidingWindowLog, |rule, admitted, at_us| {
        let within = |us: u64| us + rule.window_us > at_us;
        admitted.iter().filter(|(us, _)| within(*us)).map(|(_, cost)| u64::from(*cost)).sum()
    });
}

/// The estimate supposes an even flow; what it cannot miss is a whole aligned window.
#[test]
fn a_sliding_counter_never_admits_more_than_its_limit_in_an_aligned_window() {
    for_random_windows(Algorithm::SlidingWindowCounter, |rule, admitted, at_us| {
        let start_us = at_us - at_us % rule.window_us;
        admitted.iter().filter(|(us, _)| *us >= start_us).map(|(_, cost)| u64::from(*cost)).sum()
    });
}

/// Walks random windows; `used` sums what counts at the instant of the newest admitted request.
fn for_random_windows(algorithm: Algorithm, used: impl Fn(&Window, &[(u64, u32)], u64) -> u64) {
    for seed in 0..200 {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let rule = Window::draw_for_log(rng);
        let mut kept = Kept::new(rule.limit(algorithm));
        let mut admitted = Vec::new();
        let mut now_us = NOW_US;
        for index in 0..300 {
            let cost = rng.u32(1..=rule.limit.min(8));
            let step = kept.step(now_us, cost);
            if step.admitted {
                admitted.push((now_us, cost));
                let used = used(&rule, &admitted, now_us);
                assert!(used <= rule.limit.into(), "seed {seed}, step {index}: {used} of {rule:?}");
            }
            now_us += [0, step.retry_after_us, rng.u64(0..=step.reset_after_us)][rng.usize(0..3)];
        }
    }
}

/// How many of `checks` pass that come every `gap_us`.
fn admitted_of(kept: &mut Kept, checks: u64, gap_us: u64) -> u64 {
    (0..checks).filter(|index| kept.step(NOW_US + index * gap_us, 1).admitted).count() as u64
}

/// A thousand a second for a minute: the bucket is never full again, so every token it gains is spent, and
/// until the last check at 59.999 s it gains ⌊59.999 · 1.67⌋ = 100.
#[test]
fn hammering_gets_exactly_the_tokens_there_are() {
    for algorithm in buckets() {
        let admitted = admitted_of(&mut Kept::new(HUNDRED.limit(algorithm)), 60_000, 1_000);
        assert_eq!(admitted, 100 + 59_999 * 167 / 100_000, "{algorithm:?}");
        assert_eq!(admitted, 200, "{algorithm:?}");
    }
}

/// 100 at once and ⌊0.998 · 1.67⌋ = 1 more.
#[test]
fn five_hundred_checks_in_a_second() {
    for algorithm in buckets() {
        let admitted = admitted_of(&mut Kept::new(HUNDRED.limit(algorithm)), 500, 2_000);
        assert_eq!(admitted, 101, "{algorithm:?}");
    }
}

#[test]
fn all_buckets_agree_step_by_step() {
    for seed in 0..300 {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let rule = Bucket::draw(rng);
        let mut kept: Vec<Kept> = buckets().map(|algorithm| Kept::new(rule.limit(algorithm))).collect();
        let mut now_us = NOW_US + rng.u64(0..1 << 40);
        for index in 0..300 {
            let cost =
                if rng.bool() { rng.u32(1..=rule.capacity) } else { rng.u32(1..=3).min(rule.capacity) };
            let steps: Vec<LimitStep> = kept.iter_mut().map(|kept| kept.step(now_us, cost)).collect();
            let first = steps[0];
            for (step, kept) in steps.iter().zip(&kept) {
                let context = || format!("seed {seed}, step {index}: {:?} {rule:?}", kept.limit.algorithm());
                assert_eq!(*step, first, "{}", context());
            }
            let (retry_us, reset_us) = (first.retry_after_us, first.reset_after_us);
            now_us += [0, rng.u64(0..3), retry_us, retry_us.saturating_sub(1), rng.u64(0..=reset_us)]
                [rng.usize(0..5)];
        }
    }
}

#[test]
fn at_its_reset_a_state_is_as_good_as_fresh_and_not_before() {
    for seed in 0..200 {
        let rng = &mut fastrand::Rng::with_seed(seed);
        for limit in drawn(rng) {
            let mut kept = Kept::new(limit);
            let mut now_us = NOW_US + rng.u64(0..1 << 40);
            for index in 0..60 {
                let step = kept.step(now_us, rng.u32(1..=kept.limit.quota));
                // Either it has just spent, or it was rejected for what was spent before.
                assert!(step.reset_after_us > 0, "seed {seed}, step {index}: {:?}", kept.limit);
                let reset_us = now_us + step.reset_after_us;
                let looks_fresh = |at_us| {
                    let (kept_step, fresh) = (kept.peek(at_us, 1), kept.fresh(at_us, 1));
                    (kept_step.admitted, kept_step.remaining) == (fresh.admitted, fresh.remaining)
                };
                assert!(looks_fresh(reset_us), "not at reset; seed {seed}, step {index}: {:?}", kept.limit);
                assert!(!looks_fresh(reset_us - 1), "earlier; seed {seed}, step {index}: {:?}", kept.limit);
                now_us += rng.u64(0..=step.reset_after_us);
            }
        }
    }
}

/// A clock that trembles: it goes on, but each reading may lie up to one span behind the newest. What is
/// admitted then counts as admitted at the newest instant of the state, and by that time the law holds.
#[test]
fn a_trembling_clock_gives_no_double_credit() {
    for algorithm in buckets() {
        for seed in 0..200 {
            let rng = &mut fastrand::Rng::with_seed(seed);
            let rule = Bucket::draw(rng);
            let mut kept = Kept::new(rule.limit(algorithm));
            let mut ledger = Ledger::new(rule);
            let (mut clock_us, mut newest_us) = (NOW_US, 0);
            for index in 0..300 {
                clock_us += rng.u64(0..=kept.limit.lifetime_us) / 8;
                let back_us = [0, 1, kept.limit.lifetime_us - rule.tick_us][rng.usize(0..3)];
                let now_us = clock_us - rng.u64(0..=back_us);
                let cost = rng.u32(1..=rule.capacity);
                if kept.step(now_us, cost).admitted {
                    newest_us = now_us.max(newest_us);
                    ledger.admit(newest_us, cost);
                }
                assert!(ledger.holds(), "seed {seed}, step {index}: {algorithm:?} {rule:?}");
            }
        }
    }
}

/// The windows under the same clock: an admitted request belongs to the newest instant, and no aligned
/// window, or no window at all for the log, holds more than the limit.
#[test]
fn a_trembling_clock_fills_no_window_twice() {
    for algorithm in windows() {
        for seed in 0..200 {
            let rng = &mut fastrand::Rng::with_seed(seed);
            let rule = window(rng.u32(1..=20), rng.u64(2..=10_000_000), 1);
            let mut kept = Kept::new(rule.limit(algorithm));
            let (mut clock_us, mut newest_us) = (NOW_US, 0);
            let mut admitted: Vec<(u64, u32)> = Vec::new();
            for index in 0..200 {
                clock_us += rng.u64(0..=rule.window_us) / 8;
                let back_us = [0, 1, rule.window_us][rng.usize(0..3)];
                let now_us = clock_us - rng.u64(0..=back_us);
                let cost = rng.u32(1..=rule.limit);
                if kept.step(now_us, cost).admitted {
                    newest_us = now_us.max(newest_us);
                    admitted.push((newest_us, cost));
                }
                let aligned_us = newest_us - newest_us % rule.window_us;
                let counts = |at_us: u64| match algorithm.state_kind() {
                    StateKind::Log | StateKind::InFlight => at_us + rule.window_us > newest_us,
                    StateKind::Cell => at_us >= aligned_us,
                };
                let used: u32 = admitted.iter().filter(|(us, _)| counts(*us)).map(|(_, cost)| cost).sum();
                assert!(used <= rule.limit, "seed {seed}, step {index}: {algorithm:?} {used} of {rule:?}");
            }
        }
    }
}

/// A client that hammers comes every millisecond, and so finds the promised instant within one.
const HAMMER_US: u64 = 1_000;
/// The start of a window of five seconds, so that the state of every algorithm speaks of this instant.
const ALIGNED_US: u64 = NOW_US - NOW_US % (5 * SECOND_US);

/// After a jump far back, a client that does nothing but hammer, and so is only ever rejected, is let in
/// after one span: the re-anchored state has to come back from a rejection.
#[test]
fn a_jump_back_locks_nobody_out() {
    for limit in one_of_each(10, 5 * SECOND_US) {
        let span_us = limit.lifetime_us;
        for back_us in [span_us + 1, span_us + SECOND_US, 100 * span_us, 365 * 86_400 * SECOND_US] {
            for cost in [1, 10] {
                let mut kept = Kept::new(limit.clone());
                assert!(kept.step(ALIGNED_US, 10).admitted);
                let start_us = ALIGNED_US - back_us;
                let promised_us = kept.peek(start_us, cost).retry_after_us;
                let wait_us = hammer_until_admitted(&mut kept, start_us, cost);
                let context = format!("{:?} after {back_us}, cost {cost}", limit.algorithm());
                assert!(promised_us <= span_us, "{context}: told to wait {promised_us}");
                assert!(wait_us < promised_us + HAMMER_US, "{context}: waited {wait_us}");
                assert!(wait_us >= promised_us, "{context}: waited {wait_us}");
            }
        }
    }
}

/// After a smaller step back the state is kept, and the wait grows by at most that step.
#[test]
fn a_small_step_back_adds_at_most_itself_to_the_wait() {
    for limit in one_of_each(10, 5 * SECOND_US) {
        let span_us = limit.lifetime_us;
        for back_us in [1, 1_000, SECOND_US, span_us / 2, span_us] {
            for cost in [1, 10] {
                let mut kept = Kept::new(limit.clone());
                assert!(kept.step(ALIGNED_US, 10).admitted);
                let longest_us = back_us + kept.peek(ALIGNED_US, cost).retry_after_us;
                let wait_us = hammer_until_admitted(&mut kept, ALIGNED_US - back_us, cost);
                assert!(
                    wait_us < longest_us + HAMMER_US,
                    "{:?} after {back_us}: {wait_us}",
                    limit.algorithm()
                );
            }
        }
    }
}

/// Re-anchoring writes once: what follows is an ordinary rejection, which writes nothing.
#[test]
fn a_jump_back_is_settled_by_one_rejection() {
    for limit in one_of_each(10, 5 * SECOND_US) {
        let mut kept = Kept::new(limit.clone());
        assert!(kept.step(ALIGNED_US, 10).admitted);
        let start_us = ALIGNED_US - 10 * limit.lifetime_us - 1;
        let (step, next) = limit.step_state(kept.state.as_ref(), at(start_us), 10);
        assert!(!step.admitted && next.is_some(), "{:?}", limit.algorithm());
        let (step, next) = limit.step_state(next.as_ref(), at(start_us), 10);
        assert!(!step.admitted && next.is_none(), "{:?}", limit.algorithm());
    }
}

fn hammer_until_admitted(kept: &mut Kept, start_us: u64, cost: u32) -> u64 {
    let mut wait_us = 0;
    while !kept.step(start_us + wait_us, cost).admitted {
        wait_us += HAMMER_US;
        assert!(wait_us < 10 * kept.limit.lifetime_us, "{:?} is locked out", kept.limit.algorithm());
    }
    wait_us
}
