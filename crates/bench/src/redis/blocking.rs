//! For how long one script call keeps the server from everything else, while a node asks as fast as it can: by the
//! server's slow log, and by PINGs on another connection.

use super::pinned::{Pinned, connect, put_first, runtime};
use super::{AT_ONCE, until};
use crate::setting::{keys, uniform, verdict};
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
/// Entries of each log at the beginning: enough to be long, and room for what is asked here.
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
";
/// What is asked, and of how many clients.
const CASES: [(&str, &[&str], usize); 4] = [
    ("one bucket", &["/plain"], CLIENTS),
    ("four buckets", &["/four"], CLIENTS),
    ("a log", &["/log"], 2_000),
    ("all of them", &["/plain", "/four", "/log", "/plain"], 2_000),
];

pub fn run() {
    println!("redis: how long one script call takes, {AT_ONCE} checks at once");
    for (name, endpoints, clients) in CASES {
        let found = measure(endpoints, clients);
        println!(
            "  {name:<13} {:>7.0} checks/s, {:.0} per second of the server's processor time; script calls p50 {:.2} p90 {:.2} p99 {:.2} ms; \
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
        verdict(&format!("{name}: a script call, p50, ms"), at(&found.calls, 0.5), 0.5, true);
        verdict(&format!("{name}: a script call, p99, ms"), at(&found.calls, 0.99), 0.5, true);
        verdict(&format!("{name}: PING on another connection, p99, ms"), at(&found.pings, 0.99), 1.0, true);
    }
}

/// Times in milliseconds, sorted.
struct Found {
    per_second: f64,
    /// Per second of the server's processor time.
    per_cpu_second: f64,
    calls: Vec<f64>,
    pings: Vec<f64>,
}

fn measure(endpoints: &'static [&'static str], clients: usize) -> Found {
    let server = Pinned::alone();
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
        runtime.block_on(until(time, AT_ONCE, move |at| {
            let (limiter, keys, picks) = (Arc::clone(&limiter), Arc::clone(&keys), Arc::clone(&picks));
            async move {
                let (key, endpoint) =
                    (&keys[picks[at % picks.len()] as usize], endpoints[at % endpoints.len()]);
                let request = Request { api_key: Some(key), endpoint, ..Request::default() };
                let _ = limiter.check(&request).expect("a sound request").decision().await;
            }
        }))
    };
    // So that most clients are known.
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
    let mut pings = pinging.join().expect("it ends");
    let mut calls = script_calls(&mut control);
    if limiter.degraded() > 0 {
        println!("  (the machine stalled: {} checks were decided without the store)", limiter.degraded());
    }
    pings.sort_by(f64::total_cmp);
    calls.sort_by(f64::total_cmp);
    Found { per_second: checks / TIME.as_secs_f64(), per_cpu_second: checks / cpu, calls, pings }
}

async fn open(server: &Pinned) -> (Arc<Limiter>, RedisStore) {
    let url = server.url().parse().expect("the address of a server that was started here");
    let settings = RedisSettings {
        timeout: Duration::from_millis(500),
        secret: Some(SECRET),
        ..RedisSettings::default()
    };
    let store = RedisStore::open(&url, settings, Clock::system()).await.expect("the server answers");
    let loaded = rules::load("bench.yaml", RULES).expect("the rules are good");
    let limiter = Limiter::new(MemoryStore::new(1 << 24), Clock::system());
    let limiter = limiter.sharing(store.shared_store(), FailureSettings::default());
    limiter.install(loaded.rules, loaded.lists);
    (Arc::new(limiter), store)
}

/// Writes logs as the script does, see sliding_window_log.lua.
fn fill_logs(connection: &mut Connection, keys: &[String]) {
    let loaded = rules::load("bench.yaml", RULES).expect("the rules are good");
    let (rule, limit) = loaded.rules.limits().next().expect("the log is the first");
    let places = StateAddresses::new("tg:", FleetSecret(SECRET));
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
    for key in keys {
        let request = Request { api_key: Some(key), endpoint: "/log", ..Request::default() };
        let place = places.locate(rule, limit, &request, 0);
        let list = [place.key.as_bytes(), b":", place.field.as_bytes()].concat();
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
    // Else it would measure how long it waits for the core that it shares with the node.
    put_first();
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
