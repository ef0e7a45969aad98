//! Requests in several parts, and limits that requests state, against an exact model of buckets.

use super::setting::{SECOND_US, Setting, key};
use super::walks::{Engine, pause_us};
use fastrand::Rng;
use std::collections::HashMap;
use tollgate_core::algorithm::Algorithm;
use tollgate_core::limit::LimitSize;
use tollgate_core::rate::Rate;
use tollgate_limiter::{
    Decision, InvalidPart, InvalidRequest, Outcome, PartDecisions, Request, RequestLimit, RequestPart,
    TokenOperation,
};

/// The capacity, and the rate in tokens and seconds, of each key that requests state.
const NUMBERS: [(&str, Algorithm, u64, u64, u64); 4] = [
    ("a", Algorithm::Gcra, 5, 1, 3),
    ("b", Algorithm::Gcra, 1, 2, 1),
    ("c", Algorithm::TokenBucket, 7, 3, 7),
    ("d", Algorithm::TokenBucket, 40, 7, 60),
];
/// The limit of each API key, by a rule.
const RULE: (u64, u64, u64) = (10, 1, 2);

fn rules() -> String {
    let (capacity, amount, seconds) = RULE;
    let rate = amount as f64 / seconds as f64;
    format!("rules: [{{ id: plan, key: api_key, params: {{ capacity: {capacity}, refill_rate: {rate} }} }}]")
}

/// A bucket in exact fractions: one token is `period` units, and each microsecond adds `amount`.
struct ModelBucket {
    capacity: u64,
    amount: u64,
    period: u64,
    level: u64,
    at_us: u64,
}

impl ModelBucket {
    fn new((capacity, amount, seconds): (u64, u64, u64), at_us: u64) -> Self {
        let period = seconds * SECOND_US;
        Self { capacity, amount, period, level: capacity * period, at_us }
    }

    fn full(&self) -> u64 {
        self.capacity * self.period
    }

    fn refill(&mut self, now_us: u64) {
        self.level = self.full().min(self.level + (now_us - self.at_us) * self.amount);
        self.at_us = now_us;
    }

    fn remaining(&self) -> u64 {
        self.level / self.period
    }

    fn wait_us(&self, tokens: u64) -> u64 {
        (tokens * self.period).saturating_sub(self.level).div_ceil(self.amount)
    }

    fn reset_us(&self) -> u64 {
        (self.full() - self.level).div_ceil(self.amount)
    }
}

/// What a part is charged by: a key of [`NUMBERS`], or an API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Target {
    Stated(usize),
    Rule(&'static str),
}

#[derive(Clone, Copy, Debug)]
struct ModelPart {
    target: Target,
    operation: TokenOperation,
    cost: u64,
}

fn part_of(part: &ModelPart) -> RequestPart<'static> {
    let ModelPart { target, operation, cost } = *part;
    match target {
        Target::Stated(index) => {
            let (key, algorithm, capacity, amount, seconds) = NUMBERS[index];
            let rate = Rate::per(amount, seconds * SECOND_US);
            let size = LimitSize { capacity: Some(capacity), rate, window_us: None };
            let request = Request { cost, ..Request::default() };
            RequestPart { request, operation, limit: Some(RequestLimit { key, algorithm, size }) }
        }
        Target::Rule(name) => RequestPart { request: Request { cost, ..key(name) }, operation, limit: None },
    }
}

pub fn decide(setting: &Setting, parts: &[RequestPart<'_>]) -> Result<PartDecisions, InvalidPart> {
    setting.wait(async { Ok(setting.limiter.check_parts(parts)?.decisions().await) })
}

fn standing(decision: &Decision) -> (bool, u64, u64, u64) {
    match decision.outcome {
        Outcome::Admitted(status) => (true, status.remaining.into(), 0, status.reset_after_us),
        Outcome::Limited(status) => {
            (false, status.remaining.into(), status.wait_us().unwrap(), status.reset_after_us)
        }
        other => panic!("{other:?}"),
    }
}

/// Draws one to four parts. Several may take of one state; others are about states of their own.
fn draw(rng: &mut Rng) -> Vec<ModelPart> {
    let mut parts: Vec<ModelPart> = Vec::new();
    for _ in 0..rng.usize(1..=4) {
        let target = match rng.usize(..NUMBERS.len() + 3) {
            index if index < NUMBERS.len() => Target::Stated(index),
            index => Target::Rule(["x", "y", "z"][index - NUMBERS.len()]),
        };
        let operation = *rng
            .choice(&[
                TokenOperation::Take,
                TokenOperation::Take,
                TokenOperation::Look,
                TokenOperation::Refund,
            ])
            .unwrap();
        let takes = |part: &ModelPart| part.operation == TokenOperation::Take;
        let part = ModelPart { target, operation, cost: rng.u64(1..=3) };
        let same = parts.iter().filter(|known| known.target == target);
        if { same }.all(|known| takes(known) && takes(&part)) {
            parts.push(part);
        }
    }
    parts
}

/// Random parts: every decision, what remains, the wait and the reset are those of the model, to the microsecond.
pub fn walk_parts(engine: Engine<'_>, steps: usize) {
    let mut rng = Rng::with_seed(31);
    let setting = engine(&rules());
    let mut buckets: HashMap<Target, ModelBucket> = HashMap::new();
    let (mut passed, mut refused, mut invalid) = (0, 0, 0);
    for step in 0..steps {
        setting.clock.advance_us(pause_us(&mut rng) % (20 * SECOND_US));
        let now_us = setting.limiter.clock().now().as_us();
        let parts = draw(&mut rng);
        for part in &parts {
            let numbers = match part.target {
                Target::Stated(index) => (NUMBERS[index].2, NUMBERS[index].3, NUMBERS[index].4),
                Target::Rule(_) => RULE,
            };
            let bucket = buckets.entry(part.target).or_insert_with(|| ModelBucket::new(numbers, now_us));
            bucket.refill(now_us);
        }
        let context = format!("step {step}: {parts:?}");
        let given: Vec<RequestPart<'_>> = parts.iter().map(part_of).collect();
        let found = decide(&setting, &given);

        let taken = |target: Target| {
            let takes = |part: &&ModelPart| part.target == target && part.operation == TokenOperation::Take;
            parts.iter().filter(takes).map(|part| part.cost).sum::<u64>()
        };
        let can_never_pass = |part: &ModelPart| {
            let capacity = buckets[&part.target].capacity;
            taken(part.target) > capacity || part.operation == TokenOperation::Look && part.cost > capacity
        };
        if parts.iter().any(can_never_pass) {
            let error = found.expect_err(&context).error;
            assert!(matches!(error, InvalidRequest::CostAboveLimit { .. }), "{context}: {error}");
            invalid += 1;
            continue;
        }
        let found = found.unwrap_or_else(|error| panic!("{context}: {error}"));
        let admits = |part: &ModelPart| match part.operation {
            TokenOperation::Take => buckets[&part.target].wait_us(taken(part.target)) == 0,
            TokenOperation::Look => buckets[&part.target].wait_us(part.cost) == 0,
            TokenOperation::Refund => true,
        };
        let passes = parts.iter().all(admits);
        assert_eq!(found.iter().all(Decision::allowed), passes, "{context}: {found:?}");
        let repeats = |part: &ModelPart| parts.iter().filter(|other| other.target == part.target).count() > 1;
        for (part, decision) in parts.iter().zip(&found) {
            let bucket = buckets.get_mut(&part.target).unwrap();
            match part.operation {
                TokenOperation::Take if passes => bucket.level -= part.cost * bucket.period,
                TokenOperation::Refund if passes => {
                    bucket.level = bucket.full().min(bucket.level + part.cost * bucket.period);
                }
                _ => {}
            }
            // With a shared store, parts of one state may be answered together: each then shows what all of them leave.
            if repeats(part) {
                continue;
            }
            let wait_us = if passes || part.operation == TokenOperation::Refund {
                0
            } else {
                bucket.wait_us(part.cost)
            };
            let expected = (wait_us == 0, bucket.remaining(), wait_us, bucket.reset_us());
            let mut shown = standing(decision);
            // A shared store is asked for the tokens of an admitted part before another refuses: its reset may differ by
            // the rounding of a microsecond.
            if !passes && shown.0 && shown.3.abs_diff(expected.3) == 1 {
                shown.3 = expected.3;
            }
            assert_eq!(shown, expected, "{context}: {part:?}");
        }
        *if passes { &mut passed } else { &mut refused } += 1;
    }
    assert!(passed > steps / 5 && refused > steps / 5 && invalid > 0, "{passed} {refused} {invalid}");
}

const ALGORITHMS: &str = "
rules:
  - { id: token_bucket, endpoint: /token_bucket, key: api_key, limit: 9/h }
  - { id: leaky_bucket, endpoint: /leaky_bucket, key: api_key, algorithm: leaky_bucket, limit: 9/h }
  - { id: gcra, endpoint: /gcra, key: api_key, algorithm: gcra, limit: 9/h, burst: 8 }
  - { id: fixed_window, endpoint: /fixed_window, key: api_key, algorithm: fixed_window, limit: 9/h }
  - { id: sliding_window_log, endpoint: /sliding_window_log, key: api_key, algorithm: sliding_window_log, limit: 9/h }
  - { id: sliding_window_counter, endpoint: /sliding_window_counter, key: api_key, algorithm: sliding_window_counter, limit: 9/h }
";

/// Under every algorithm, of rules and stated: looking spends nothing, and refunds give back no more than was taken.
pub fn walk_algorithms(engine: Engine<'_>) {
    let setting = engine(ALGORITHMS);
    for algorithm in Algorithm::scripted() {
        let name = algorithm.name();
        let endpoint = format!("/{name}");
        let hour = Some(3_600 * SECOND_US);
        let rate = if algorithm.counts_windows() { None } else { Rate::per(9, 3_600 * SECOND_US) };
        let size =
            LimitSize { capacity: Some(9), rate, window_us: hour.filter(|_| algorithm.counts_windows()) };
        for limit in [None, Some(RequestLimit { key: "client", algorithm, size })] {
            let do_with = |operation, cost| {
                let request = Request { endpoint: &endpoint, cost, ..key("client") };
                let found = decide(&setting, &[RequestPart { request, operation, limit }]).unwrap();
                let (admitted, remaining, _, _) = standing(&found[0]);
                (admitted, remaining)
            };
            use TokenOperation::{Look, Refund, Take};
            assert_eq!(do_with(Refund, 3), (true, 9), "{name}: a state that nothing was taken from");
            assert_eq!(do_with(Take, 5), (true, 4), "{name}");
            assert_eq!([do_with(Look, 1), do_with(Look, 1), do_with(Look, 4)], [(true, 4); 3], "{name}");
            assert_eq!(do_with(Look, 5), (false, 4), "{name}");
            assert_eq!(do_with(Refund, 2), (true, 6), "{name}");
            assert_eq!(do_with(Refund, u64::MAX), (true, 9), "{name}: never above the limit");
            assert_eq!([do_with(Take, 9), do_with(Take, 1)], [(true, 0), (false, 0)], "{name}");
            assert_eq!(
                [do_with(Refund, 1), do_with(Take, 2), do_with(Take, 1)].map(|(passes, _)| passes),
                [true, false, true],
                "{name}"
            );
        }
    }
}

/// Requests that state other numbers for a key find its tokens; the new capacity and rate apply at once.
pub fn numbers_of_a_key_may_change(engine: Engine<'_>) {
    // A rule of the name that decisions have, and by the identity of stated keys: its states are others.
    let setting = engine("rules: [{ id: request_limit, key: key, algorithm: gcra, limit: 2/day, burst: 1 }]");
    let take = |key, capacity, per_second: u64, cost| {
        let rate = Rate::per(per_second, SECOND_US);
        let size = LimitSize { capacity: Some(capacity), rate, window_us: None };
        let limit = RequestLimit { key, algorithm: Algorithm::Gcra, size };
        let request = Request { cost, ..Request::default() };
        let found =
            setting.wait(async { setting.limiter.check_limit(&request, &limit).unwrap().decision().await });
        let (admitted, remaining, wait_us, _) = standing(&found);
        (admitted, remaining, wait_us)
    };
    assert_eq!(take("k", 10, 1, 4), (true, 6, 0));
    assert_eq!(take("k", 100, 1, 1), (true, 5, 0), "a larger capacity has no more tokens at once");
    assert_eq!(take("k", 3, 1, 1), (true, 2, 0), "a smaller one is full at most");
    assert_eq!(take("k", 3, 2, 3), (false, 2, SECOND_US / 2), "the new rate applies at once");
    assert_eq!(take("other", 3, 2, 3), (true, 0, 0));
    setting.clock.advance_us(SECOND_US);
    assert_eq!(take("k", 10, 4, 1), (true, 5, 0), "2 and 4 more");
    let ids = [("key", "k")];
    let by_rule = Request { ids: &ids, ..Request::default() };
    assert_eq!([setting.check(&by_rule), setting.check(&by_rule)].map(|found| found.allowed()), [true; 2]);
    assert!(!setting.check(&by_rule).allowed());
    assert_eq!(take("k", 10, 4, 1), (true, 4, 0), "the rule has states of its own");
}
