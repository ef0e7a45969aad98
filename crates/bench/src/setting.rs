//! What the benches share: keys, their popularity, a limiter, the memory of the process.

use std::time::Instant;
use tollgate_core::rules;
use tollgate_limiter::{Clock, Limiter, MemoryStore};

/// How many keys are kept warm at a time.
const BATCH: usize = 256;

/// A limiter under `rules`, with at most `bytes` of states.
pub fn limiter(rules: &str, bytes: usize) -> Limiter {
    let loaded = rules::load("bench.yaml", rules).unwrap_or_else(|report| {
        eprintln!("{report}");
        std::process::exit(1)
    });
    let limiter = Limiter::new(MemoryStore::new(bytes), Clock::system());
    limiter.install(loaded.rules, loaded.lists);
    limiter
}

/// The API keys of `count` clients.
pub fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("sk_prod_{number:010}")).collect()
}

/// A sequence of `length` picks out of `count` by Zipf's law with exponent 1.
pub fn zipf(count: usize, length: usize, seed: u64) -> Vec<u32> {
    let mut sums = Vec::with_capacity(count);
    let mut sum = 0.0;
    for rank in 1..=count {
        sum += 1.0 / rank as f64;
        sums.push(sum);
    }
    let mut order: Vec<u32> = (0..count as u32).collect();
    let mut random = fastrand::Rng::with_seed(seed);
    random.shuffle(&mut order);
    (0..length)
        .map(|_| {
            let point = random.f64() * sum;
            order[sums.partition_point(|below| *below < point).min(count - 1)]
        })
        .collect()
}

/// A sequence of `length` picks out of `count`, all alike.
pub fn uniform(count: usize, length: usize, seed: u64) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u32(..count as u32)).collect()
}

/// Nanoseconds per call of `body` over the picked keys. Each key is copied to a warm buffer before its batch
/// is timed: in a server it has just been parsed out of a request, and to fetch it from a list of millions
/// is no part of a check.
pub fn nanos_per_call(keys: &[String], picks: &[u32], mut body: impl FnMut(&String)) -> f64 {
    let mut warm = vec![String::new(); BATCH];
    let mut nanos = 0;
    for batch in picks.chunks(BATCH) {
        for (pick, key) in batch.iter().zip(&mut warm) {
            key.clone_from(&keys[*pick as usize]);
        }
        let start = Instant::now();
        warm[..batch.len()].iter().for_each(&mut body);
        nanos += start.elapsed().as_nanos();
    }
    nanos as f64 / picks.len() as f64
}

pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The resident memory of this process.
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}

pub fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// One line of the result: what was reached, what was asked for.
pub fn verdict(what: &str, reached: f64, bar: f64, at_most: bool) {
    let met = if at_most { reached <= bar } else { reached >= bar };
    let sign = if at_most { "≤" } else { "≥" };
    println!("  {what:<58} {reached:>8.2}   bar {sign} {bar:<6} {}", if met { "met" } else { "MISSED" });
}
