//! Limits shared through Redis, beside a textbook script (HMGET, HSET, PEXPIRE; one call per check, pipelined). Redis
//! has one core and everything else the other. The result is the capacity of one Redis core, so rates are per second of
//! the server's CPU time.

mod blocking;
mod heartbeats;
mod lease;
pub mod pinned;
mod states;
mod textbook;
mod work;

use crate::measurement::{median, report_at_least, report_at_most};
use crate::workload::{keys, uniform};
use pinned::{PinnedRedis, runtime};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use textbook::TextbookScript;
use tollgate_core::rules;
use tollgate_limiter::{Clock, FailureSettings, Limiter, MemoryStore, Request};
use tollgate_redis::{RedisSettings, RedisStore, StoreUrl};

const CLIENTS: usize = 100_000;
const AT_ONCE: usize = 512;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(2);

const STRICT: &str = "
rules:
  - { id: plan, key: api_key, limit: 1000000/min, consistency: strict }
";

/// A limiter that shares its states through the server at `url`.
async fn sharing(url: &str, text: &str) -> (Arc<Limiter>, RedisStore) {
    let url: StoreUrl = url.parse().expect("the URL of a test server");
    let settings = RedisSettings { timeout: Duration::from_millis(500), ..RedisSettings::default() };
    let redis = RedisStore::open(&url, settings, Clock::system()).await.expect("the server answers");
    let loaded = rules::load("bench.yaml", text).expect("valid rules");
    let limiter = Limiter::new(MemoryStore::new(1 << 24), Clock::system());
    let limiter = limiter.sharing(redis.shared_store(), FailureSettings::default());
    limiter.install(loaded.rules, loaded.lists).expect("few names");
    (Arc::new(limiter), redis)
}

fn request(key: &str) -> Request<'_> {
    Request { api_key: Some(key), endpoint: "/v1/orders", ..Request::default() }
}

pub fn run() {
    pinned::pin_self();
    let parts: [(&str, fn()); 7] = [
        ("strict", strict),
        ("latency", latency),
        ("lease", lease::run),
        ("work", work::run),
        ("blocking", blocking::run),
        ("heartbeats", heartbeats::run),
        ("states", states::run),
    ];
    let wanted = std::env::args().nth(2);
    for (name, part) in parts {
        if wanted.as_ref().is_none_or(|wanted| wanted == name) {
            part();
        }
    }
}

/// The capacity of one Redis core if every check calls it.
fn strict() {
    println!(
        "redis: strict checks, {CLIENTS} clients, {AT_ONCE} at once, medians of {ROUNDS} rounds in turns"
    );
    for (name, server, bar) in
        [("standalone", PinnedRedis::alone(), 2.0), ("Cluster", PinnedRedis::cluster(), 1.2)]
    {
        let runtime = runtime();
        let (limiter, _redis) = runtime.block_on(sharing(&server.url(), STRICT));
        let textbook = runtime.block_on(TextbookScript::open(server.server()));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let (mut our_wall, mut their_wall) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let load = KeySequence::new(CLIENTS, uniform(CLIENTS, 1 << 20, round as u64));
            let our = measure(&server, || runtime.block_on(check_on(&limiter, &load)));
            let their = measure(&server, || runtime.block_on(check_with_textbook(&textbook, &load)));
            // The first round is a warm-up.
            if round > 0 {
                ours.push(our.per_cpu_second);
                theirs.push(their.per_cpu_second);
                our_wall.push(our.per_second);
                their_wall.push(their.per_second);
            }
        }
        let (our, their) = (median(&mut ours), median(&mut theirs));
        let (our_wall, their_wall) = (median(&mut our_wall), median(&mut their_wall));
        if limiter.degraded() > 0 {
            println!("  (the machine stalled: {} checks were decided without the store)", limiter.degraded());
        }
        println!(
            "  {name:<12} tollgate {our_wall:>7.0}/s, textbook {their_wall:>7.0}/s; \
             per second of the server's CPU time {our:>7.0} and {their:>7.0}",
        );
        report_at_least(&format!("{name}: strict checks per second × textbook"), our_wall / their_wall, bar);
        report_at_least(&format!("{name}: per second of CPU time × textbook"), our / their, bar);
    }
}

/// The keys of the requests, in order and one after another in memory: in a server a key has just been parsed out of a
/// request, and fetching it from a list of all clients is no part of a check.
struct KeySequence {
    picks: Vec<u32>,
    text: String,
    /// The length of each key.
    length: usize,
}

impl KeySequence {
    fn new(clients: usize, picks: Vec<u32>) -> Arc<Self> {
        let keys = keys(clients);
        let text = picks.iter().map(|pick| keys[*pick as usize].as_str()).collect();
        Arc::new(Self { picks, text, length: keys[0].len() })
    }

    fn key(&self, at: usize) -> &str {
        &self.text[at % self.picks.len() * self.length..][..self.length]
    }

    /// The number of the client of a request.
    fn client(&self, at: usize) -> u32 {
        self.picks[at % self.picks.len()]
    }
}

fn check_on(limiter: &Arc<Limiter>, load: &Arc<KeySequence>) -> impl Future<Output = u64> + use<> {
    let (limiter, load) = (Arc::clone(limiter), Arc::clone(load));
    repeat_for(ROUND, AT_ONCE, move |at| {
        let (limiter, load) = (Arc::clone(&limiter), Arc::clone(&load));
        async move {
            let check = limiter.check(&request(load.key(at))).expect("a valid request");
            assert!(check.decision().await.allowed(), "every check passes");
        }
    })
}

fn check_with_textbook(
    textbook: &TextbookScript,
    load: &Arc<KeySequence>,
) -> impl Future<Output = u64> + use<> {
    textbook_checks(ROUND, textbook, load)
}

/// Checks with the textbook script for `time`, and returns how many.
fn textbook_checks(
    time: Duration,
    textbook: &TextbookScript,
    load: &Arc<KeySequence>,
) -> impl Future<Output = u64> + use<> {
    let (textbook, load) = (textbook.clone(), Arc::clone(load));
    repeat_for(time, AT_ONCE, move |at| {
        let (textbook, load) = (textbook.clone(), Arc::clone(&load));
        async move { textbook.check(load.key(at)).await }
    })
}

/// The latency of a check beside a PING through the same client, at half load.
fn latency() {
    println!("redis: latency at half load, in microseconds");
    let server = PinnedRedis::alone();
    let runtime = runtime();
    let (limiter, _redis) = runtime.block_on(sharing(&server.url(), STRICT));
    let textbook = runtime.block_on(TextbookScript::open(server.server()));
    let keys = Arc::new(keys(CLIENTS));
    let (mut medians, mut worst) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (mut checks, mut pings) = runtime.block_on(latencies(&limiter, &textbook, &keys));
        checks.sort_by(f64::total_cmp);
        pings.sort_by(f64::total_cmp);
        let at = |values: &[f64], share: f64| values[(values.len() as f64 * share) as usize];
        let [p50, p99] = [0.5, 0.99].map(|share| (at(&checks, share), at(&pings, share)));
        println!("  strict check p50 {:.0} p99 {:.0}   PING p50 {:.0} p99 {:.0}", p50.0, p99.0, p50.1, p99.1);
        medians.push(p50.0 / p50.1);
        worst.push(p99.0 / p99.1);
    }
    report_at_most("p50 of a strict check × PING, median of the rounds", median(&mut medians), 2.0);
    report_at_most("p99 of a strict check × PING, median of the rounds", median(&mut worst), 2.0);
}

/// The latencies of checks and of PINGs in turns with them, in microseconds. One starts every 20 µs: far below the
/// capacity of a core, and enough for several in flight.
async fn latencies(
    limiter: &Arc<Limiter>,
    textbook: &TextbookScript,
    keys: &Arc<Vec<String>>,
) -> (Vec<f64>, Vec<f64>) {
    let (mut checks, mut pings) = (Vec::new(), Vec::new());
    let begin = Instant::now();
    let mut tasks = Vec::new();
    for number in 0..50_000_u32 {
        let due = begin + Duration::from_micros(20) * number;
        while Instant::now() < due {
            tokio::task::yield_now().await;
        }
        let (limiter, keys, textbook) = (Arc::clone(limiter), Arc::clone(keys), textbook.clone());
        tasks.push(tokio::spawn(async move {
            let start = Instant::now();
            if number % 2 == 0 {
                let key = &keys[number as usize % CLIENTS];
                let _ = limiter.check(&request(key)).expect("a valid request").decision().await;
            } else {
                textbook.ping().await;
            }
            (number % 2 == 0, start.elapsed().as_secs_f64() * 1e6)
        }));
    }
    for task in tasks {
        let (is_check, us) = task.await.expect("the task ends");
        if is_check { checks.push(us) } else { pings.push(us) }
    }
    (checks, pings)
}

/// Repeats `body` for `time`, `at_once` concurrently, and returns how often it ran.
async fn repeat_for<F: Future<Output = ()> + Send + 'static>(
    time: Duration,
    at_once: usize,
    body: impl Fn(usize) -> F + Send + Sync + 'static,
) -> u64 {
    let end = Instant::now() + time;
    let (next, body) = (Arc::new(AtomicUsize::new(0)), Arc::new(body));
    let is_over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..at_once)
        .map(|_| {
            let (next, body, is_over) = (Arc::clone(&next), Arc::clone(&body), Arc::clone(&is_over));
            tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    // The clock is not read for every request: that would be a tenth of a local decision.
                    if at.is_multiple_of(64) && Instant::now() >= end {
                        is_over.store(true, Ordering::Relaxed);
                    }
                    body(at).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("the task ends");
    }
    next.load(Ordering::Relaxed) as u64
}

/// A rate of checks.
struct RedisThroughput {
    per_second: f64,
    /// Per second of the server's CPU time.
    per_cpu_second: f64,
}

fn measure(server: &PinnedRedis, body: impl FnOnce() -> u64) -> RedisThroughput {
    let (cpu, start) = (server.cpu_seconds(), Instant::now());
    let count = body() as f64;
    let per_second = count / start.elapsed().as_secs_f64();
    RedisThroughput { per_second, per_cpu_second: count / (server.cpu_seconds() - cpu) }
}
