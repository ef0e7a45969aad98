//! The workload of the benches: a limiter, keys, and the order in which they are requested.

use tollgate_core::rules;
use tollgate_limiter::{Clock, Limiter, MemoryStore};

/// A limiter under `rules`, with at most `bytes` of states.
pub fn limiter(rules: &str, bytes: usize) -> Limiter {
    let loaded = rules::load("bench.yaml", rules).unwrap_or_else(|report| {
        eprintln!("{report}");
        std::process::exit(1)
    });
    let limiter = Limiter::new(MemoryStore::new(bytes), Clock::system());
    limiter.install(loaded.rules, loaded.lists).expect("few names");
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

/// A sequence of `length` picks out of `count`, all with the same probability.
pub fn uniform(count: usize, length: usize, seed: u64) -> Vec<u32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..length).map(|_| random.u32(..count as u32)).collect()
}
