//! How long one script call blocks the server, under the full load of a node: measured by the slow log of the server,
//! and by PINGs on another connection.

use super::pinned::{PinnedRedis, connect, raise_priority, runtime};
use super::{AT_ONCE, repeat_for};
use crate::measurement::report_at_most;
use crate::workload::{keys, uniform};
use redis::{Connection, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tollgate_core::rules;
use tollgate_core::state_address::{FleetSecret, StateAddresses};
use tollgate_limiter::{Clock, FailureSettings, Limiter, MemoryStore, Request};
use tollgate_redis::{RedisSettings, RedisStore};

const CLIENTS: usize = 20_000;
const TIME: Duration = Duration::from_secs(3);
const SECRET: [u8; 16] = [7; 16];
/// Entries of each log at the beginning: a long log with room for the checks of the bench.
const ENTRIES: u64 = 800;
const RULES: &str = "
defaults: { consistency: strict }
rules:
  - { id: log, endpoint: /log, key: api_key, limit: 1000/h, algorithm: sliding_window_log }
  - { id: plain, endpoint: /plain, key: api_key, limit: 1000000/min }
  - { id: second, endpoint: /four, key: api_key, limit: 1000000/s }
  - { id: minute, endpoint: /four, key: api_key, limit: 1000000/min }
  - { id: hour, endpoint: /four, key: api_key, limit: 1000000/h }
  - { id: day, endpoint: /four, key: api_key, limit: 1000000/day }
  - { id: leased, endpoint: /leased, key: api_key, limit: 1000000/min, consistency: leased }
  - { id: leased-hour, endpoint: /leased, key: api_key, limit: 1000000/h, consistency: leased }
";
/// The endpoints of the checks, and the number of clients.
const CASES: [(&str, &[&str], usize); 5] = [
    ("one bucket", &["/plain"], CLIENTS),
    ("four buckets", &["/four"], CLIENTS),
    ("a log", &["/log"], 2_000),
    ("all of them", &["/plain", "/four", "/log", "/plain"], 2_000),
    // Calls that take tokens ahead, and reports.
    ("two leased", &["/leased"], 10 * CLIENTS),
];

pub fn run() {
    println!("redis: duration of one script call, {AT_ONCE} checks at once");
    for (name, endpoints, clients) in CASES {
        let found = measure(endpoints, clients);
        println!(
            "  {name:<13} {:>7.0} checks/s, {:.0} per second of the server's CPU time; script calls p50 {:.2} p90 {:.2} p99 {:.2} ms; \
             PING p50 {:.2} p90 {:.2} p99 {:.2} ms",
            found.per_second,
            found.per_cpu_second,
            at(&found.calls, 0.5),
            at(&found.calls, 0.9),
            at(&found.calls, 0.99),
            at(&found.pings, 0.5),
            at(&found.pings, 0.9),
            at(&found.pings, 0.99),
        );
        report_at_most(&format!("{name}: a script call, p50, ms"), at(&found.calls, 0.5), 0.5);
        report_at_most(&format!("{name}: a script call, p99, ms"), at(&found.calls, 0.99), 0.5);
        report_at_most(&format!("{name}: PING on another connection, p99, ms"), at(&found.pings, 0.99), 1.0);
    }
}

/// Times in milliseconds, sorted.
struct BlockingTimes {
    per_second: f64,
    /// Per second of the server's CPU time.
    per_cpu_second: f64,
    calls: Vec<f64>,
    pings: Vec<f64>,
}

fn measure(endpoints: &'static [&'static str], clients: usize) -> BlockingTimes {
    let server = PinnedRedis::alone();
    let keys = Arc::new(keys(clients));
    let mut control = connect(&server);
    if endpoints.contains(&"/log") {
        fill_logs(&mut control, &keys);
    }
    let runtime = runtime();
    let (limiter, _store) = runtime.block_on(open(&server));
    let picks = Arc::new(uniform(clients, 1 << 20, 1));
    let check = |time: Duration| {
        let (limiter, keys, picks) = (Arc::clone(&limiter), Arc::clone(&keys), Arc::clone(&picks));
        runtime.block_on(repeat_for(time, AT_ONCE, move |at| {
            let (limiter, keys, picks) = (Arc::clone(&limiter), Arc::clone(&keys), Arc::clone(&picks));
            async move {
                let (key, endpoint) =
                    (&keys[picks[at % picks.len()] as usize], endpoints[at % endpoints.len()]);
                let request = Request { api_key: Some(key), endpoint, ..Request::default() };
                let _ = limiter.check(&request).expect("a valid request").decision().await;
            }
        }))
    };
    // Warm-up: most clients have a state afterwards.
    check(TIME / 3);
    set(&mut control, "slowlog-max-len", "1000000");
    set(&mut control, "slowlog-log-slower-than", "0");
    let is_over = Arc::new(AtomicBool::new(false));
    let pinging = std::thread::spawn({
        let (connection, is_over) = (connect(&server), Arc::clone(&is_over));
        move || ping_until(&is_over, connection)
    });
    let cpu = server.cpu_seconds();
    let checks = check(TIME) as f64;
    let cpu = server.cpu_seconds() - cpu;
    is_over.store(true, Ordering::Relaxed);
    let mut pings = pinging.join().expect("the task ends");
    let mut calls = script_calls(&mut control);
    if limiter.degraded() > 0 {
        println!("  (the machine stalled: {} checks were decided without the store)", limiter.degraded());
    }
    pings.sort_by(f64::total_cmp);
    calls.sort_by(f64::total_cmp);
    BlockingTimes { per_second: checks / TIME.as_secs_f64(), per_cpu_second: checks / cpu, calls, pings }
}

async fn open(server: &PinnedRedis) -> (Arc<Limiter>, RedisStore) {
    let url = server.url().parse().expect("the URL of a test server");
    let settings = RedisSettings {
        timeout: Duration::from_millis(500),
        secret: Some(SECRET),
        ..RedisSettings::default()
    };
    let store = RedisStore::open(&url, settings, Clock::system()).await.expect("the server answers");
    let loaded = rules::load("bench.yaml", RULES).expect("valid rules");
    let limiter = Limiter::new(MemoryStore::new(1 << 24), Clock::system());
    let limiter = limiter.sharing(store.shared_store(), FailureSettings::default());
    limiter.install(loaded.rules, loaded.lists).expect("few names");
    (Arc::new(limiter), store)
}

/// Writes logs in the format of sliding_window_log.lua.
fn fill_logs(connection: &mut Connection, keys: &[String]) {
    let loaded = rules::load("bench.yaml", RULES).expect("valid rules");
    let (rule, limit) = loaded.rules.limits().next().expect("the first limit is the log");
    let addresses = StateAddresses::new("tg:", FleetSecret(SECRET));
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
    for key in keys {
        let request = Request { api_key: Some(key), endpoint: "/log", ..Request::default() };
        let address = addresses.locate(rule, limit, &request, 0);
        let list = [address.key.as_bytes(), b":", address.field.as_bytes()].concat();
        let mut command = redis::cmd("RPUSH");
        command.arg(list);
        for number in 0..ENTRIES {
            let mut entry = Vec::with_capacity(18);
            entry.extend(&(now_us - 1_000_000 + number).to_be_bytes()[1..]);
            entry.extend(&number.to_be_bytes()[1..]);
            entry.extend(1_u32.to_be_bytes());
            command.arg(entry);
        }
        let _: u64 = command.query(connection).expect("the server answers");
    }
}

fn ping_until(is_over: &AtomicBool, mut connection: Connection) -> Vec<f64> {
    // Without it, the latency would include the wait for the core that is shared with the node.
    raise_priority();
    let mut times = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let start = Instant::now();
        let _: String = redis::cmd("PING").query(&mut connection).expect("the server answers");
        times.push(start.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(Duration::from_micros(500));
    }
    times
}

/// How long each script call in the slow log took, in milliseconds.
fn script_calls(connection: &mut Connection) -> Vec<f64> {
    let entries: Vec<Vec<Value>> =
        redis::cmd("SLOWLOG").arg("GET").arg(-1).query(connection).expect("the server answers");
    let time = |entry: &Vec<Value>| match (&entry[2], &entry[3]) {
        (Value::Int(us), Value::Array(words)) => match words.first() {
            Some(Value::BulkString(word)) if word == b"EVALSHA" => Some(*us as f64 / 1e3),
            _ => None,
        },
        _ => None,
    };
    entries.iter().filter_map(time).collect()
}

fn set(connection: &mut Connection, name: &str, value: &str) {
    let _: () =
        redis::cmd("CONFIG").arg("SET").arg(name).arg(value).query(connection).expect("the server answers");
}

fn at(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share) as usize).copied().unwrap_or(f64::NAN)
}
