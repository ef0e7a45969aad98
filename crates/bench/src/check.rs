//! `Limiter::check` (selection, hashing, table, decision) beside governor's `check_key` on a dashmap with `String` keys.

use crate::measurement::{median, nanos_per_call, report_at_least, report_at_most};
use crate::workload::{keys, limiter, uniform, zipf};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Barrier;
use std::time::Instant;
use tollgate_limiter::{Check, Counting, Limiter, Method, Request};

/// All checks pass: an admission writes its state, a refusal does not.
const RULES: &str = r#"
rules:
  - id: orders
    tier: pro
    match: { api_key_pattern: "sk_prod_*", endpoint_regex: "^/v1/orders.*" }
    params: { capacity: 1000000, refill_rate: 1000000 }
  - id: free
    tier: free
    match: { api_key_pattern: "sk_free_*", endpoint_regex: ".*" }
    algorithm: sliding_window_counter
    params: { limit: 100, window: 60 }
"#;
/// Rounds on one thread. They are so short that a disturbance affects both sides of a ratio.
const PAIRS: usize = 61;
const PAIR_CHECKS: usize = 200_000;
/// Rounds on two threads.
const ROUNDS: usize = 7;

pub fn run() {
    println!("check: one thread, ns per check, medians of {PAIRS} rounds taken in turns");
    one_thread("10 k keys, Zipf", 10_000, zipf(10_000, 2_000_000, 1), 1.0);
    one_thread("1 M keys, uniform", 1_000_000, uniform(1_000_000, 2_000_000, 2), 1.0);
    one_thread("10 M keys, uniform", 10_000_000, uniform(10_000_000, 2_000_000, 3), 0.35);
    counting("10 k keys, Zipf", 10_000, zipf(10_000, 2_000_000, 1));
    println!("check: two threads over one");
    two_threads("10 k keys, Zipf", 10_000, zipf(10_000, 2_000_000, 4), 1.2);
    two_threads("1 M keys, uniform", 1_000_000, uniform(1_000_000, 2_000_000, 5), 1.8);
}

fn one_thread(name: &str, clients: usize, picks: Vec<u32>, bar: f64) {
    let keys = keys(clients);
    let ours = limiter(RULES, 1 << 30);
    let million = NonZeroU32::new(1_000_000).unwrap_or(NonZeroU32::MAX);
    let theirs: DefaultKeyedRateLimiter<String> = RateLimiter::keyed(Quota::per_second(million));
    for key in &keys {
        check(&ours, key);
        black_box(theirs.check_key(key).is_ok());
    }
    let (mut our_times, mut their_times, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for picks in picks.chunks(PAIR_CHECKS).cycle().take(PAIRS) {
        let our_time = nanos_per_call(&keys, picks, |key| check(&ours, key));
        let their_time = nanos_per_call(&keys, picks, |key| {
            black_box(theirs.check_key(key).is_ok());
        });
        our_times.push(our_time);
        their_times.push(their_time);
        ratios.push(our_time / their_time);
    }
    let (our_time, their_time) = (median(&mut our_times), median(&mut their_times));
    println!("  {name:<30} tollgate {our_time:>6.1}   governor {their_time:>6.1}");
    report_at_most(&format!("{name}: × governor"), median(&mut ratios), bar);
}

/// What counting every decision for metrics costs, in the same rounds.
fn counting(name: &str, clients: usize, picks: Vec<u32>) {
    let keys = keys(clients);
    let limiters = [Counting::On, Counting::Off].map(|counting| limiter(RULES, 1 << 30).counting(counting));
    let mut times = [const { Vec::new() }; 2];
    for limiter in &limiters {
        keys.iter().for_each(|key| check(limiter, key));
    }
    for picks in picks.chunks(PAIR_CHECKS).cycle().take(PAIRS) {
        for (limiter, times) in limiters.iter().zip(&mut times) {
            times.push(nanos_per_call(&keys, picks, |key| check(limiter, key)));
        }
    }
    let [on, off] = times.map(|mut times| median(&mut times));
    println!("  {name:<30} counted  {on:>6.1}   not counted {off:>6.1}");
}

fn two_threads(name: &str, clients: usize, picks: Vec<u32>, bar: f64) {
    let keys = keys(clients);
    let limiter = limiter(RULES, 1 << 30);
    for key in &keys {
        check(&limiter, key);
    }
    let (mut ones, mut twos) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ones.push(checks_per_second(&limiter, &keys, &picks, 1));
        twos.push(checks_per_second(&limiter, &keys, &picks, 2));
    }
    let (one, two) = (median(&mut ones), median(&mut twos));
    println!("  {name:<30} one {:>6.2} M/s   two {:>6.2} M/s", one / 1e6, two / 1e6);
    report_at_least(&format!("{name}: two threads × one"), two / one, bar);
}

fn checks_per_second(limiter: &Limiter, keys: &[String], picks: &[u32], threads: usize) -> f64 {
    let barrier = Barrier::new(threads + 1);
    let start = std::thread::scope(|scope| {
        for thread in 0..threads {
            let barrier = &barrier;
            scope.spawn(move || {
                // A first pass fills the caches of the new thread.
                let offset = picks.len() / threads * thread;
                for index in 0..picks.len() / 4 {
                    check(limiter, &keys[picks[(index + offset) % picks.len()] as usize]);
                }
                barrier.wait();
                for index in 0..picks.len() {
                    check(limiter, &keys[picks[(index + offset) % picks.len()] as usize]);
                }
            });
        }
        barrier.wait();
        Instant::now()
    });
    (picks.len() * threads) as f64 / start.elapsed().as_secs_f64()
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
