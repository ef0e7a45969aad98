//! Leases: four nodes in one process, clients by Zipf's law, at full load.

use super::pinned::{PinnedRedis, own_cpu_seconds, runtime};
use super::textbook::TextbookScript;
use super::{KeySequence, repeat_for, request, sharing, textbook_checks};
use crate::measurement::{median, report_at_least, report_at_most};
use crate::workload::zipf;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tollgate_core::limit::Limit;
use tollgate_core::rules;
use tollgate_core::time::StoreTime;
use tollgate_limiter::{Check, Limiter};
use tollgate_redis::RedisStore;
use tollgate_simulate::{Ledger, LedgerEntry, Routing};

const NODES: usize = 4;
const CLIENTS: usize = 100_000;
const AT_ONCE: usize = 512;
const TIME: Duration = Duration::from_secs(8);
const ROUNDS: usize = 5;
/// Every request of one client in so many is recorded.
const RECORDED: u32 = 50;
/// One request in so many is timed.
const TIMED: usize = 64;
const RULES: &str = "
rules:
  - { id: plan, key: api_key, limit: 10000/min }
";

pub fn run() {
    println!(
        "redis: leased, {NODES} nodes, {CLIENTS} clients by Zipf's law, limits of 10,000/min, \
         medians of {ROUNDS} rounds in turns with the textbook"
    );
    let server = PinnedRedis::alone();
    let runtime = runtime();
    let mut routings = [
        RoutingRounds {
            name: "random routing",
            routing: Routing::Random,
            bar: 3.5,
            local_bar: 0.6,
            rounds: vec![],
        },
        RoutingRounds {
            name: "sticky routing",
            routing: Routing::Sticky,
            bar: 8.0,
            local_bar: 0.9,
            rounds: vec![],
        },
    ];
    for _ in 0..ROUNDS {
        let mut textbook_before = textbook_rate(&runtime, &server);
        for routed in &mut routings {
            let found = measure(&runtime, &server, routed.routing);
            let textbook_after = textbook_rate(&runtime, &server);
            // The speed of the machine changes within seconds: what is compared was measured one after the other.
            let textbook = f64::midpoint(textbook_before, textbook_after);
            println!(
                "  {}: {:.0} checks/s ({:.0} local), {:.0} script calls/s; textbook {textbook:.0}/s; Redis is busy \
                 {:.0} % of the time, the nodes {:.0} %",
                routed.name,
                found.per_second,
                found.per_second * found.local_share,
                found.calls_per_second,
                found.server_share * 100.0,
                found.own_share * 100.0
            );
            routed.rounds.push((found.per_second / textbook, found));
            textbook_before = textbook_after;
        }
    }
    routings.iter().for_each(RoutingRounds::report);
}

/// The rounds with one routing: their checks per second × textbook, and the results.
struct RoutingRounds {
    name: &'static str,
    routing: Routing,
    bar: f64,
    local_bar: f64,
    rounds: Vec<(f64, LeaseResult)>,
}

impl RoutingRounds {
    fn report(&self) {
        let Self { name, bar, local_bar, rounds, .. } = self;
        let of = |value: fn(&(f64, LeaseResult)) -> f64| rounds.iter().map(value).collect::<Vec<f64>>();
        let worst = |values: Vec<f64>| values.into_iter().fold(f64::MIN, f64::max);
        report_at_least(
            &format!("{name}: checks per second × textbook"),
            median(&mut of(|(ratio, _)| *ratio)),
            *bar,
        );
        let local_share = median(&mut of(|(_, found)| found.local_share));
        report_at_least(&format!("{name}: local share"), local_share, *local_bar);
        let excess = worst(of(|(_, found)| found.excess as f64));
        report_at_most(&format!("{name}: over-admission in any round, tokens"), excess, 0.0);
        let lost_share = worst(of(|(_, found)| found.lost_share * 100.0));
        report_at_most(&format!("{name}: false refusals in any round, %"), lost_share, 0.1);
        let local_us = median(&mut of(|(_, found)| found.local_us));
        report_at_most(&format!("{name}: local decision p50, µs"), local_us, 1.0);
    }
}

fn textbook_rate(runtime: &Runtime, server: &PinnedRedis) -> f64 {
    let textbook = runtime.block_on(TextbookScript::open(server.server()));
    let load = KeySequence::new(CLIENTS, zipf(CLIENTS, 1 << 20, 7));
    let time = Duration::from_secs(3);
    let count = runtime.block_on(textbook_checks(time, &textbook, &load));
    count as f64 / time.as_secs_f64()
}

struct LeaseResult {
    per_second: f64,
    local_share: f64,
    calls_per_second: f64,
    excess: i64,
    lost_share: f64,
    local_us: f64,
    server_share: f64,
    own_share: f64,
}

/// The load, and what is recorded of it.
struct LeaseLoad {
    limiters: Vec<Arc<Limiter>>,
    keys: Arc<KeySequence>,
    begin: Instant,
    local: AtomicU64,
    record: Mutex<LeaseRecord>,
}

#[derive(Default)]
struct LeaseRecord {
    ledger: Ledger,
    local_us: Vec<f64>,
}

/// Where a decision was made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DecisionOrigin {
    Local,
    Store,
}

impl LeaseLoad {
    /// Makes one check. Returns where it was decided.
    async fn check(&self, at: usize, routing: Routing) -> DecisionOrigin {
        let client = self.keys.client(at);
        let node = match routing {
            Routing::Sticky => client as usize,
            Routing::Random => at.wrapping_mul(0x9e37_79b9) >> 7,
        } % NODES;
        // Times are read for requests that are recorded only: otherwise half of the load would be reading the clock.
        let (in_ledger, is_timed) = (client.is_multiple_of(RECORDED), at.is_multiple_of(TIMED));
        let sent = (in_ledger || is_timed).then(|| self.begin.elapsed());
        let check = self.limiters[node].check(&request(self.keys.key(at))).expect("a valid request");
        let (origin, decision) = match check {
            Check::Decided(decision) => (DecisionOrigin::Local, decision),
            Check::Pending(pending) => (DecisionOrigin::Store, pending.decision().await),
        };
        if origin == DecisionOrigin::Local {
            self.local.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(sent) = sent {
            let received = self.begin.elapsed();
            let mut record = self.record.lock();
            if is_timed && origin == DecisionOrigin::Local {
                record.local_us.push((received - sent).as_secs_f64() * 1e6);
            }
            if in_ledger {
                record.ledger.note(LedgerEntry {
                    key: client,
                    node: node as u16,
                    admitted: decision.allowed(),
                    cost: 1,
                    sent_us: sent.as_micros() as u64,
                    received_us: received.as_micros() as u64,
                });
            }
        }
        origin
    }
}

fn measure(runtime: &Runtime, server: &PinnedRedis, routing: Routing) -> LeaseResult {
    server.server().cli(&["FLUSHALL"]);
    let nodes: Vec<(Arc<Limiter>, RedisStore)> = runtime.block_on(async {
        let mut nodes = Vec::new();
        for _ in 0..NODES {
            nodes.push(sharing(&server.url(), RULES).await);
        }
        // Until every node has counted the others.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        nodes
    });
    let calls_before: u64 = nodes.iter().map(|(_, redis)| redis.calls()).sum();
    let keys = KeySequence::new(CLIENTS, zipf(CLIENTS, 1 << 22, 11));
    let load = Arc::new(LeaseLoad {
        limiters: nodes.iter().map(|(limiter, _)| Arc::clone(limiter)).collect(),
        keys,
        begin: Instant::now(),
        local: AtomicU64::new(0),
        record: Mutex::default(),
    });
    let (begin, cpu, own) = (load.begin, server.cpu_seconds(), own_cpu_seconds());
    let count = {
        let load = Arc::clone(&load);
        runtime.block_on(repeat_for(TIME, AT_ONCE, move |at| {
            let load = Arc::clone(&load);
            async move {
                let origin = load.check(at, routing).await;
                // Local decisions must not keep the runtime from polling the sockets.
                if origin == DecisionOrigin::Local && at.is_multiple_of(8) {
                    tokio::task::yield_now().await;
                }
            }
        }))
    };
    let seconds = begin.elapsed().as_secs_f64();
    let (cpu, own) = (server.cpu_seconds() - cpu, own_cpu_seconds() - own);
    let calls: u64 = nodes.iter().map(|(_, redis)| redis.calls()).sum();
    let mut record = std::mem::take(&mut *load.record.lock());
    let limit = limit();
    let bucket = limit.meter().bucket().expect("a bucket");
    let excess = record.ledger.worst_excess(|_| Some(bucket)).map_or(0, |(_, excess)| excess);
    record.local_us.sort_by(f64::total_cmp);
    runtime.block_on(async {
        for (_, redis) in &nodes {
            redis.close().await;
        }
    });
    LeaseResult {
        per_second: count as f64 / seconds,
        local_share: load.local.load(Ordering::Relaxed) as f64 / count as f64,
        calls_per_second: (calls - calls_before) as f64 / seconds,
        server_share: cpu / seconds,
        own_share: own / seconds,
        excess,
        lost_share: lost_share(&record.ledger, &limit),
        local_us: record.local_us.get(record.local_us.len() / 2).copied().unwrap_or(f64::NAN),
    }
}

fn limit() -> Limit {
    let loaded = rules::load("bench.yaml", RULES).expect("valid rules");
    let limit = loaded.rules.limits().next().map(|(_, limit)| limit.clone());
    limit.expect("a limit")
}

/// The share of requests that one exact bucket per client would have admitted, and the fleet refused.
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
            let step = limit.step(cell, StoreTime::from_us(1_000_000_000_000 + entry.sent_us), 1);
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
