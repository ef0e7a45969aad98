//! Four nodes and one key: nothing is over-admitted, next to nothing is lost, and abuse costs the store little.

use super::fleet::{Node, alone, bucket, nodes, patient_nodes};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tollgate_limiter::Request;
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

/// As fast as a loop goes, on two nodes at once.
async fn abuse(limit: &str, most_calls_a_second: u64) {
    const LENGTH: Duration = Duration::from_secs(3);
    let server = RedisServer::start(&[]);
    let nodes =
        nodes(&server.url(), &format!("rules: [{{ id: one, key: api_key, limit: {limit} }}]"), 2).await;
    let mut loops = JoinSet::new();
    for node in nodes {
        loops.spawn(async move {
            while node.check(&request()).await.0 {}
            let (start, calls) = (Instant::now(), node.store.calls());
            let (mut sent, mut admitted) = (0_u64, 0_u64);
            while start.elapsed() < LENGTH {
                for _ in 0..100 {
                    sent += 1;
                    admitted += u64::from(node.check(&request()).await.0);
                }
                tokio::task::yield_now().await;
            }
            (sent, admitted, node.store.calls() - calls)
        });
    }
    while let Some(ended) = loops.join_next().await {
        let (sent, admitted, calls) = ended.unwrap();
        println!("{limit}: {sent} sent, {admitted} admitted, {calls} calls in {LENGTH:?}");
        assert!(sent > 100 * admitted, "no abuse: {admitted} of {sent} passed");
        assert!(calls <= most_calls_a_second * LENGTH.as_secs(), "{limit}: {calls} calls in {LENGTH:?}");
    }
}

#[test]
fn an_abusive_key_costs_the_store_next_to_nothing() {
    alone(async || {
        abuse("100/min", 20).await;
        abuse("100/s", 60).await;
    });
}
