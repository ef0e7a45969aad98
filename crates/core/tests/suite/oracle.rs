//! Every algorithm against a naive twin that is written from its definition.
//!
//! The twins count in microseconds and in fractions that are never reduced, keep lists where the code keeps
//! counts, and know no formula for a wait: they search for the first microsecond at which the same request
//! passes, or at which the state is that of a key never seen. What they share with the code is only what is
//! documented: that a limit's clock is the start of the current tick, what survives a change of the rule,
//! and what happens when the clock steps back.

mod buckets;
mod log;
mod windows;

use crate::sample::{Kept, NOW_US};
use std::fmt::Debug;
use tollgate_core::algorithm::{Algorithm, LimitStep};
use tollgate_core::limit::Limit;

/// A naive twin of one algorithm, with the state of one key.
trait Oracle: Default {
    /// The numbers of a limit.
    type Rule: Copy + Debug;
    const ALGORITHM: Algorithm;

    fn draw(rng: &mut fastrand::Rng) -> Self::Rule;
    fn edited(rule: &Self::Rule, rng: &mut fastrand::Rng) -> Self::Rule;
    fn limit(rule: &Self::Rule) -> Limit;

    /// Re-anchors a state that lies so far ahead that the clock must have jumped back.
    fn settle(&mut self, rule: &Self::Rule, now_us: u64);
    fn admits(&self, rule: &Self::Rule, now_us: u64, cost: u32) -> bool;
    fn spend(&mut self, rule: &Self::Rule, now_us: u64, cost: u32);
    fn remaining(&self, rule: &Self::Rule, now_us: u64) -> u32;
    /// Whether nothing is left of what was spent.
    fn is_fresh(&self, rule: &Self::Rule, now_us: u64) -> bool;
}

/// What may happen during a walk besides requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    Calm,
    ClockStepsBack,
    RuleChanges,
    ClockStepsBackAndRuleChanges,
}

impl Weather {
    const ALL: [Self; 4] =
        [Self::Calm, Self::ClockStepsBack, Self::RuleChanges, Self::ClockStepsBackAndRuleChanges];

    fn steps_back(self) -> bool {
        matches!(self, Self::ClockStepsBack | Self::ClockStepsBackAndRuleChanges)
    }

    fn changes_rules(self) -> bool {
        matches!(self, Self::RuleChanges | Self::ClockStepsBackAndRuleChanges)
    }
}

const WALKS: u64 = 960;
const STEPS: u64 = 300;

/// A test for each oracle.
macro_rules! oracles {
    ($($name:ident: $oracle:ty,)*) => {
        $(
            #[test]
            fn $name() {
                walks::<$oracle>();
            }
        )*

        #[test]
        fn every_algorithm_has_an_oracle() {
            let oracles = [$(<$oracle>::ALGORITHM),*];
            for algorithm in Algorithm::scripted() {
                assert!(oracles.contains(&algorithm), "{algorithm:?}");
            }
        }
    };
}

oracles! {
    token_bucket: buckets::TokenBucket,
    leaky_bucket: buckets::LeakyBucket,
    gcra: buckets::Gcra,
    fixed_window: windows::FixedWindow,
    sliding_window_log: log::SlidingWindowLog,
    sliding_window_counter: windows::SlidingWindowCounter,
}

fn walks<O: Oracle>() {
    let (mut admitted, mut rejected) = (0, 0);
    for seed in 0..WALKS {
        let passed = walk::<O>(seed, Weather::ALL[(seed % 4) as usize]);
        admitted += passed;
        rejected += STEPS - passed;
    }
    // A walk that only ever sees one answer tests little.
    assert!(admitted > WALKS * STEPS / 5, "only {admitted} admitted");
    assert!(rejected > WALKS * STEPS / 5, "only {rejected} rejected");
}

/// Returns how many requests passed.
fn walk<O: Oracle>(seed: u64, weather: Weather) -> u64 {
    let rng = &mut fastrand::Rng::with_seed(seed);
    let mut rule = O::draw(rng);
    let mut kept = Kept::new(O::limit(&rule));
    let mut oracle = O::default();
    let mut now_us = NOW_US + rng.u64(0..1 << 45);
    let mut last: Option<LimitStep> = None;
    let mut admitted = 0;
    for index in 0..STEPS {
        if weather.changes_rules() && rng.u8(0..20) == 0 {
            rule = O::edited(&rule, rng);
            kept.limit = O::limit(&rule);
        }
        now_us = draw_instant(rng, weather, now_us, last, kept.limit.lifetime_us);
        let cost = draw_cost(rng, kept.limit.quota, last);
        let context =
            || format!("seed {seed}, step {index}: {:?} {rule:?}, cost {cost} at {now_us}", O::ALGORITHM);

        let expected = expect(&mut oracle, &rule, now_us, cost);
        let step = kept.step(now_us, cost);
        assert_eq!(Answer::of(&step), expected, "{}", context());
        if !step.admitted {
            let retry_us = now_us + step.retry_after_us;
            assert!(!kept.peek(retry_us - 1, cost).admitted, "passes too early: {}", context());
            assert!(kept.peek(retry_us, cost).admitted, "still rejected when promised: {}", context());
        }
        admitted += u64::from(step.admitted);
        last = Some(step);
    }
    admitted
}

/// The part of a step that an oracle can answer.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    admitted: bool,
    remaining: u32,
    retry_after_us: u64,
    reset_after_us: u64,
}

impl Answer {
    fn of(step: &LimitStep) -> Self {
        Self {
            admitted: step.admitted,
            remaining: step.remaining,
            retry_after_us: step.retry_after_us,
            reset_after_us: step.reset_after_us,
        }
    }
}

fn expect<O: Oracle>(oracle: &mut O, rule: &O::Rule, now_us: u64, cost: u32) -> Answer {
    oracle.settle(rule, now_us);
    let admitted = oracle.admits(rule, now_us, cost);
    if admitted {
        oracle.spend(rule, now_us, cost);
    }
    let retry_us = if admitted { now_us } else { first_us(now_us, |at_us| oracle.admits(rule, at_us, cost)) };
    Answer {
        admitted,
        remaining: oracle.remaining(rule, now_us),
        retry_after_us: retry_us - now_us,
        reset_after_us: first_us(now_us, |at_us| oracle.is_fresh(rule, at_us)) - now_us,
    }
}

/// The first microsecond from `from_us` on at which `holds`, which then goes on holding.
fn first_us(from_us: u64, holds: impl Fn(u64) -> bool) -> u64 {
    if holds(from_us) {
        return from_us;
    }
    let mut ahead_us = 1;
    while !holds(from_us + ahead_us) {
        ahead_us *= 2;
        assert!(ahead_us < 1 << 50, "it never comes");
    }
    let (mut fails_us, mut holds_us) = (from_us + ahead_us / 2, from_us + ahead_us);
    while holds_us - fails_us > 1 {
        let middle_us = fails_us + (holds_us - fails_us) / 2;
        if holds(middle_us) { holds_us = middle_us } else { fails_us = middle_us }
    }
    holds_us
}

/// Bursts, pauses of all lengths, and every instant around a promise.
fn draw_instant(
    rng: &mut fastrand::Rng,
    weather: Weather,
    now_us: u64,
    last: Option<LimitStep>,
    lifetime_us: u64,
) -> u64 {
    if weather.steps_back() && rng.u8(0..6) == 0 {
        let back_us = [2, 2_000_000, lifetime_us, 3 * lifetime_us][rng.usize(0..4)];
        return now_us.saturating_sub(rng.u64(0..=back_us)).max(NOW_US / 2);
    }
    let (retry_us, reset_us) = last.map_or((0, 0), |step| (step.retry_after_us, step.reset_after_us));
    now_us
        + match rng.u8(0..14) {
            0..=3 => 0,
            4..=5 => rng.u64(1..=5),
            6..=7 => retry_us.saturating_sub(1),
            8 => retry_us,
            9 => retry_us + rng.u64(0..=3),
            10 => (reset_us + rng.u64(0..=2)).saturating_sub(1),
            11 => rng.u64(0..=reset_us),
            12 => rng.u64(0..=3_000_000).min(lifetime_us),
            _ => rng.u64(0..=2 * lifetime_us) / 10u64.pow(rng.u32(0..=3)),
        }
}

/// Small costs, any costs, and those just within and just beyond what is left.
fn draw_cost(rng: &mut fastrand::Rng, quota: u32, last: Option<LimitStep>) -> u32 {
    let left = last.map_or(quota, |step| step.remaining);
    let cost = match rng.u8(0..6) {
        0..=1 => rng.u32(1..=3),
        2 => rng.u32(1..=quota),
        3 => quota / rng.u32(1..=8),
        4 => left,
        _ => left.saturating_add(1),
    };
    cost.clamp(1, quota)
}
