//! What telemetry costs an admitted check: a limiter that counts and observes beside one that does neither.

use crate::measurement::{median, nanos_per_call, report_at_most};
use crate::workload::{keys, limiter, zipf};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_limiter::metrics::{DecisionObserver, DecisionRecord};
use tollgate_limiter::{Check, Counting, Limiter, Method, ObservationSettings, Request};

/// All checks pass.
const RULES: &str = r#"
rules:
  - id: orders
    match: { api_key_pattern: "sk_prod_*", endpoint_regex: "^/v1/orders.*" }
    params: { capacity: 1000000, refill_rate: 1000000 }
"#;
const ROUNDS: usize = 61;
const ROUND_CHECKS: usize = 200_000;
const BAR: f64 = 1.10;

/// An observer that counts.
#[derive(Debug, Default)]
struct RecordCount {
    records: AtomicU64,
    dropped: AtomicU64,
}

impl DecisionObserver for RecordCount {
    fn record(&self, record: DecisionRecord) {
        black_box(&record);
        self.records.fetch_add(1, Ordering::Relaxed);
    }

    fn record_dropped(&self, records: u64) {
        self.dropped.fetch_add(records, Ordering::Relaxed);
    }
}

pub fn run() {
    println!("telemetry: one thread, ns per check, medians of {ROUNDS} rounds taken in turns");
    let keys = keys(10_000);
    let picks = zipf(10_000, 2_000_000, 6);
    let records = Arc::new(RecordCount::default());
    let observer = Arc::clone(&records) as Arc<dyn DecisionObserver>;
    let limiters: [(&str, Limiter); 3] = [
        ("not counted", limiter(RULES, 1 << 28).counting(Counting::Off)),
        ("counted", limiter(RULES, 1 << 28)),
        (
            "counted and observed",
            limiter(RULES, 1 << 28).observed_by(observer, ObservationSettings::default()),
        ),
    ];
    for (_, limiter) in &limiters {
        keys.iter().for_each(|key| check(limiter, key));
    }
    let mut times: [Vec<f64>; 3] = Default::default();
    for (round, picks) in picks.chunks(ROUND_CHECKS).cycle().take(ROUNDS).enumerate() {
        // Each is the first of a round as often as the others.
        for turn in 0..limiters.len() {
            let index = (round + turn) % limiters.len();
            times[index].push(nanos_per_call(&keys, picks, |key| check(&limiters[index].1, key)));
        }
    }
    for (index, (name, _)) in limiters.iter().enumerate() {
        println!("  {name:<30} {:>6.1}", median(&mut times[index].clone()));
    }
    for (index, (name, _)) in limiters.iter().enumerate().skip(1) {
        let mut ratios: Vec<f64> =
            times[index].iter().zip(&times[0]).map(|(with, without)| with / without).collect();
        report_at_most(&format!("{name}: × not counted"), median(&mut ratios), BAR);
    }
    println!("  records {}", records.records.load(Ordering::Relaxed));
}

#[inline]
fn check(limiter: &Limiter, key: &str) {
    let request = Request {
        api_key: Some(key),
        endpoint: "/v1/orders/17",
        method: Some(Method::Get),
        ..Request::default()
    };
    black_box(matches!(limiter.check(&request), Ok(Check::Decided(decision)) if decision.allowed()));
}
