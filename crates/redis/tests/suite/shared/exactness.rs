//! Four nodes and one key: nothing is over-admitted, next to nothing is lost, and abuse costs the store little.

use super::fleet::{Node, alone, bucket, patient_nodes};
use super::node::with_secret;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tollgate_limiter::Request;
use tollgate_redis::RedisSettings;
use tollgate_simulate::{Ledger, LedgerEntry};
use tollgate_testbed::judging::could_not_judge;
use tollgate_testbed::{RedisServer, StallMonitor};

const NODES: usize = 4;
const CAPACITY: u64 = 500;
const PER_SECOND: u64 = 500;
const LENGTH: Duration = Duration::from_secs(10);
/// More than this would hide a loss of one per cent.
const LONGEST_STALL: Duration = Duration::from_millis(250);

fn request() -> Request<'static> {
    Request { api_key: Some("busy"), endpoint: "/", ..Request::default() }
}

/// Three times what is allowed, spread over all nodes.
async fn three_times_the_limit(rules: String) {
    let server = RedisServer::start(&[]);
    let nodes = patient_nodes(&server.url(), &rules, NODES).await;
    let witness = StallMonitor::start();
    let start = Instant::now();
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let mut load = JoinSet::new();
    for (number, node) in nodes.iter().enumerate() {
        load.spawn(send_evenly(Arc::clone(node), number, start, Arc::clone(&ledger)));
    }
    while load.join_next().await.is_some_and(|ended| ended.is_ok()) {}
    assert!(load.is_empty(), "a request ended in a panic");
    let calls: u64 = nodes.iter().map(|node| node.store.calls()).sum();

    let ledger = ledger.lock();
    let last_us = ledger.entries().iter().map(|entry| entry.sent_us).max().unwrap();
    let due = CAPACITY as f64 + PER_SECOND as f64 * last_us as f64 / 1e6;
    let admitted = ledger.admitted(0, 0..u64::MAX) as f64;
    let excess = ledger.excess(0, &bucket(&rules));
    let stall = witness.longest();
    println!(
        "{} sent, {admitted} of {due:.0} admitted ({:.2} %), {excess} over, {calls} calls, stall {stall:?}",
        ledger.entries().len(),
        100.0 * admitted / due
    );
    assert!(excess <= 0, "{excess} over-admitted");
    if stall > LONGEST_STALL {
        could_not_judge(format!("the machine stood still for {stall:?}"));
    }
    // While the machine stands still, nothing asks for what comes in meanwhile.
    let missed = PER_SECOND as f64 * stall.as_secs_f64();
    assert!(
        admitted >= 0.99 * due - missed && admitted <= 1.01 * due,
        "{admitted} of {due}; stall {stall:?}"
    );
}

async fn send_evenly(node: Arc<Node>, number: usize, start: Instant, ledger: Arc<Mutex<Ledger>>) {
    let mut ticks = interval(Duration::from_micros(1_000_000 * NODES as u64 / (3 * PER_SECOND)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut under_way = JoinSet::new();
    while start.elapsed() < LENGTH {
        ticks.tick().await;
        let (node, ledger) = (Arc::clone(&node), Arc::clone(&ledger));
        under_way.spawn(async move {
            let sent_us = start.elapsed().as_micros() as u64;
            let (admitted, degraded) = node.check(&request()).await;
            let received_us = start.elapsed().as_micros() as u64;
            assert!(!degraded, "the store answers");
            let node = number as u16;
            ledger.lock().note(LedgerEntry { key: 0, node, admitted, cost: 1, sent_us, received_us });
        });
    }
    while let Some(ended) = under_way.join_next().await {
        ended.unwrap();
    }
}

fn rule(more: &str) -> String {
    let params = format!("params: {{ capacity: {CAPACITY}, refill_rate: {PER_SECOND} }}");
    format!("rules: [{{ id: one, key: api_key, {params}, {more} }}]")
}

#[test]
fn four_nodes_with_leases_admit_what_one_would() {
    alone(async || three_times_the_limit(rule("consistency: leased")).await);
}

#[test]
fn four_strict_nodes_admit_what_one_would() {
    alone(async || three_times_the_limit(rule("consistency: strict")).await);
}

/// A client that pauses for longer leaves tokens for calls that admit.
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// A client that sends requests as fast as a loop goes, to two nodes at once.
struct AbusiveLoad {
    /// What its rule says beside id and key.
    limit: &'static str,
    /// The costs of its requests, in turn.
    costs: &'static [u64],
    /// How many calls a second each node may make for it,
    calls_a_second: u64,
    /// and for how many admitted requests how many more; none where calls that admit are among those.
    calls_that_admit: Option<(u64, u64)>,
}

const fn abuse(
    limit: &'static str,
    costs: &'static [u64],
    calls_a_second: u64,
    calls_that_admit: Option<(u64, u64)>,
) -> AbusiveLoad {
    AbusiveLoad { limit, costs, calls_a_second, calls_that_admit }
}

static ABUSES: [AbusiveLoad; 12] = [
    abuse("limit: 100/min", &[1], 10, None),
    abuse("limit: 10/s", &[1], 10, None),
    abuse("limit: 100/s", &[1], 10, None),
    // A call takes what 100 ms refill: what a late call leaves is for another one.
    abuse("limit: 1000/s", &[1], 10, Some((100, 1))),
    abuse("limit: 1000/s, algorithm: gcra", &[1], 10, Some((100, 1))),
    // A window is full at once when it begins, and each call takes a part of that.
    abuse("limit: 100/min, algorithm: fixed_window", &[1], 10, Some((1, 1))),
    abuse("limit: 1000/s, algorithm: fixed_window", &[1], 10, Some((5, 1))),
    // Nothing is taken ahead: each request that is admitted is a call.
    abuse("limit: 100/min, consistency: strict", &[1], 10, Some((1, 1))),
    abuse("limit: 100/s, consistency: strict", &[1], 10, Some((1, 1))),
    abuse("limit: 100/min, algorithm: sliding_window_log", &[1], 10, Some((1, 1))),
    // Credit that is too little for a request is returned with a call, and taken again.
    abuse("limit: 100/s", &[8, 4, 2, 1], 10, Some((1, 2))),
    // What a log refused says nothing of lower costs.
    abuse("limit: 100/min, algorithm: sliding_window_log", &[8, 4, 2, 1], 4 * 10, Some((1, 1))),
];

impl AbusiveLoad {
    /// Two nodes that share nothing with those of other rules.
    async fn start(&self, server: &RedisServer, number: usize) -> [Arc<Node>; 2] {
        let text = format!("rules: [{{ id: one, key: api_key, {} }}]", self.limit);
        let prefix = format!("tg{number}:");
        let settings =
            RedisSettings { prefix, expected_nodes: Some(2), ..with_secret(RedisSettings::default()) };
        let url = server.url();
        [Node::start_with(&url, &text, settings.clone()).await, Node::start_with(&url, &text, settings).await]
    }

    fn assert_cheap(&self, result: &OverloadResult) {
        let AbusiveLoad { limit, costs, .. } = self;
        let OverloadResult { sent, admitted, calls, longest_pause, took } = result;
        println!("{limit}, costs {costs:?}: {admitted} of {sent} admitted, {calls} calls in {took:?}");
        assert!(sent - admitted > 100 * calls, "no abuse: {limit}");
        let most = (self.calls_a_second as f64 * took.as_secs_f64()) as u64 + 1;
        let most = most + self.calls_that_admit.map_or(0, |(requests, calls)| admitted * calls / requests);
        if *calls > most && *longest_pause > LONGEST_PAUSE {
            could_not_judge(format!("{limit}: {calls} calls, and the client paused for {longest_pause:?}"));
        }
        assert!(*calls <= most, "{limit}, costs {costs:?}: {calls} calls in {took:?}, {most} may be");
    }
}

struct OverloadResult {
    sent: u64,
    admitted: u64,
    calls: u64,
    longest_pause: Duration,
    took: Duration,
}

async fn send_without_pause(node: Arc<Node>, costs: &'static [u64]) -> OverloadResult {
    const LENGTH: Duration = Duration::from_secs(3);
    let costing = |number: u64| Request { cost: costs[number as usize % costs.len()], ..request() };
    while node.check(&request()).await.0 {}
    let (start, calls) = (Instant::now(), node.store.calls());
    let (mut sent, mut admitted, mut longest_pause, mut last) = (0, 0, Duration::ZERO, start);
    while start.elapsed() < LENGTH {
        longest_pause = longest_pause.max(last.elapsed());
        last = Instant::now();
        for _ in 0..100 {
            admitted += u64::from(node.check(&costing(sent)).await.0);
            sent += 1;
        }
        tokio::task::yield_now().await;
    }
    OverloadResult { sent, admitted, calls: node.store.calls() - calls, longest_pause, took: start.elapsed() }
}

#[test]
fn an_abusive_key_costs_the_store_ten_calls_a_second_at_most() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let mut loops = JoinSet::new();
        for (number, abuse) in ABUSES.iter().enumerate() {
            for node in abuse.start(&server, number).await {
                loops.spawn(async move { (abuse, send_without_pause(node, abuse.costs).await) });
            }
        }
        for (abuse, result) in loops.join_all().await {
            abuse.assert_cheap(&result);
        }
    });
}
