//! Four nodes in one process, clients by Zipf's law, as fast as the machine goes.

use super::pinned::{Pinned, own_cpu_seconds, runtime};
use super::textbook::Textbook;
use super::{request, sharing, until};
use crate::setting::{keys, verdict, zipf};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tollgate_core::limit::Limit;
use tollgate_core::rules;
use tollgate_limiter::{Check, Limiter};
use tollgate_redis::RedisStore;
use tollgate_simulate::{Ledger, LedgerEntry};

const NODES: usize = 4;
const CLIENTS: usize = 100_000;
const AT_ONCE: usize = 512;
const TIME: Duration = Duration::from_secs(8);
/// One client in so many is watched request by request.
const WATCHED: u32 = 50;
const RULES: &str = "
rules:
  - { id: plan, key: api_key, limit: 10000/min }
";

pub fn run() {
    println!("redis: leased, {NODES} nodes, {CLIENTS} clients by Zipf's law, limits of 10,000/min");
    let server = Pinned::alone();
    let runtime = runtime();
    let textbook = textbook_rate(&runtime, &server);
    for (name, sticky, bar, local_bar) in
        [("random routing", false, 3.5, 0.6), ("sticky routing", true, 8.0, 0.9)]
    {
        let found = measure(&runtime, &server, sticky);
        println!(
            "  {name}: {:.0} checks/s ({:.0} local), {:.0} script calls/s; textbook {textbook:.0}/s",
            found.per_second,
            found.per_second * found.local_share,
            found.calls_per_second
        );
        println!(
            "    a local decision takes {:.2} µs at the median; Redis is busy {:.0} % of the time, the nodes {:.0} %",
            found.local_us,
            found.server_share * 100.0,
            found.own_share * 100.0
        );
        verdict(&format!("{name}: checks per second × textbook"), found.per_second / textbook, bar, false);
        verdict(&format!("{name}: local share"), found.local_share, local_bar, false);
        verdict(&format!("{name}: over-admission, tokens"), found.excess as f64, 0.0, true);
        verdict(&format!("{name}: false rejections, %"), found.lost_share * 100.0, 0.1, true);
        verdict(&format!("{name}: local decision p50, µs"), found.local_us, 10.0, true);
    }
}

fn textbook_rate(runtime: &Runtime, server: &Pinned) -> f64 {
    let textbook = runtime.block_on(Textbook::open(server.server()));
    let (keys, picks) = (Arc::new(keys(CLIENTS)), Arc::new(zipf(CLIENTS, 1 << 20, 7)));
    let time = Duration::from_secs(3);
    let count = runtime.block_on(until(time, AT_ONCE, move |at| {
        let (textbook, keys, picks) = (textbook.clone(), Arc::clone(&keys), Arc::clone(&picks));
        async move { textbook.check(&keys[picks[at % picks.len()] as usize]).await }
    }));
    count as f64 / time.as_secs_f64()
}

struct Found {
    per_second: f64,
    local_share: f64,
    calls_per_second: f64,
    excess: i64,
    lost_share: f64,
    local_us: f64,
    server_share: f64,
    own_share: f64,
}

#[derive(Default)]
struct Seen {
    local: u64,
    ledger: Ledger,
    local_us: Vec<f64>,
}

impl Seen {
    fn note(&mut self, client: u32, node: usize, is_local: bool, admitted: bool, times: [Duration; 2]) {
        let [sent, received] = times;
        if is_local {
            self.local += 1;
            if self.local.is_multiple_of(64) {
                self.local_us.push((received - sent).as_secs_f64() * 1e6);
            }
        }
        if client.is_multiple_of(WATCHED) {
            self.ledger.note(LedgerEntry {
                key: client,
                node: node as u16,
                admitted,
                cost: 1,
                sent_us: sent.as_micros() as u64,
                received_us: received.as_micros() as u64,
            });
        }
    }
}

fn measure(runtime: &Runtime, server: &Pinned, sticky: bool) -> Found {
    server.server().cli(&["FLUSHALL"]);
    let nodes: Vec<(Arc<Limiter>, RedisStore)> = runtime.block_on(async {
        let mut nodes = Vec::new();
        for _ in 0..NODES {
            nodes.push(sharing(&server.url(), RULES).await);
        }
        // Until each knows of all.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        nodes
    });
    let calls_before: u64 = nodes.iter().map(|(_, redis)| redis.calls()).sum();
    let limiters: Arc<Vec<Arc<Limiter>>> =
        Arc::new(nodes.iter().map(|(limiter, _)| Arc::clone(limiter)).collect());
    let seen = Arc::new(Mutex::new(Seen::default()));
    let (keys, picks) = (Arc::new(keys(CLIENTS)), Arc::new(zipf(CLIENTS, 1 << 22, 11)));
    let (begin, cpu, own) = (Instant::now(), server.cpu_seconds(), own_cpu_seconds());
    let count = {
        let seen = Arc::clone(&seen);
        runtime.block_on(until(TIME, AT_ONCE, move |at| {
            let (limiters, keys, picks) = (Arc::clone(&limiters), Arc::clone(&keys), Arc::clone(&picks));
            let seen = Arc::clone(&seen);
            async move {
                let pick = picks[at % picks.len()];
                let node = if sticky { pick as usize } else { at.wrapping_mul(0x9e37_79b9) >> 7 } % NODES;
                let sent = begin.elapsed();
                let check = limiters[node].check(&request(&keys[pick as usize])).expect("a sound request");
                let (is_local, decision) = match check {
                    Check::Decided(decision) => (true, decision),
                    Check::Pending(pending) => (false, pending.decision().await),
                };
                let received = begin.elapsed();
                seen.lock().note(pick, node, is_local, decision.allowed(), [sent, received]);
                // Local ones must not keep the runtime from hearing the others.
                if is_local && at.is_multiple_of(8) {
                    tokio::task::yield_now().await;
                }
            }
        }))
    };
    let seconds = begin.elapsed().as_secs_f64();
    let (cpu, own) = (server.cpu_seconds() - cpu, own_cpu_seconds() - own);
    let calls: u64 = nodes.iter().map(|(_, redis)| redis.calls()).sum();
    let mut seen = std::mem::take(&mut *seen.lock());
    let limit = limit();
    let bucket = limit.meter().bucket().expect("a bucket");
    let excess = seen.ledger.worst_excess(|_| Some(bucket)).map_or(0, |(_, excess)| excess);
    seen.local_us.sort_by(f64::total_cmp);
    runtime.block_on(async {
        for (_, redis) in &nodes {
            redis.close().await;
        }
    });
    Found {
        per_second: count as f64 / seconds,
        local_share: seen.local as f64 / count as f64,
        calls_per_second: (calls - calls_before) as f64 / seconds,
        server_share: cpu / seconds,
        own_share: own / seconds,
        excess,
        lost_share: lost_share(&seen.ledger, &limit),
        local_us: seen.local_us.get(seen.local_us.len() / 2).copied().unwrap_or(f64::NAN),
    }
}

fn limit() -> Limit {
    let loaded = rules::load("bench.yaml", RULES).expect("the rules are good");
    let limit = loaded.rules.limits().next().map(|(_, limit)| limit.clone());
    limit.expect("a limit")
}

/// What one exact bucket per client would have admitted of the same requests, and the fleet did not.
fn lost_share(ledger: &Ledger, limit: &Limit) -> f64 {
    let mut by_key: std::collections::BTreeMap<u32, Vec<&LedgerEntry>> = std::collections::BTreeMap::new();
    for entry in ledger.entries() {
        by_key.entry(entry.key).or_default().push(entry);
    }
    let (mut exact, mut lost) = (0_u64, 0_u64);
    for entries in by_key.values_mut() {
        entries.sort_by_key(|entry| entry.sent_us);
        let mut cell = None;
        let mut admits = 0;
        for entry in entries.iter() {
            let step = limit.step(cell, 1_000_000_000_000 + entry.sent_us, 1);
            if step.admitted {
                admits += 1;
                cell = step.next;
            }
        }
        let admitted = entries.iter().filter(|entry| entry.admitted).count() as u64;
        exact += admits;
        lost += u64::saturating_sub(admits, admitted);
    }
    lost as f64 / exact.max(1) as f64
}
