//! A client that moves from one node to another finds its tokens there.

use super::fleet::{Node, alone, bucket, patient_nodes};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tollgate_limiter::Request;
use tollgate_simulate::{Ledger, LedgerEntry};
use tollgate_testbed::RedisServer;

const RULES: &str =
    "rules: [{ id: one, key: api_key, params: { capacity: 600, refill_rate: 10 }, on_store_failure: deny }]";
const CAPACITY: i64 = 600;
const PER_SECOND: f64 = 10.0;
/// How long a client is busy at its first node.
const BUSY: Duration = Duration::from_millis(1_600);
/// More than there is.
const BURST: usize = 620;
const MOVED_LATER: Duration = Duration::from_secs(1);
/// After this time the store has forgotten what was lent to a node that died.
const FORGOTTEN: Duration = Duration::from_millis(4_500);

/// A client, and what it got.
struct Client {
    key: String,
    start: Instant,
    /// When the first of its requests was answered: its bucket has been refilled at least since then.
    refills_from: Instant,
    ledger: Arc<Mutex<Ledger>>,
}

impl Client {
    fn new(key: &str) -> Self {
        let start = Instant::now();
        Self { key: key.to_owned(), start, refills_from: start, ledger: Arc::default() }
    }

    /// Sends `per_second` for as long as the client stays, and notes when the bucket began to refill.
    async fn be_busy(&mut self, node: &Arc<Node>, per_second: u32) {
        let end = Instant::now() + BUSY;
        let mut ticks = interval(Duration::from_secs(1) / per_second);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut is_first = true;
        while Instant::now() < end {
            ticks.tick().await;
            send(node, &self.key, self.start, &self.ledger).await;
            if std::mem::take(&mut is_first) {
                self.refills_from = Instant::now();
            }
        }
    }

    /// Asks for everything at once. Returns how many tokens are missing of all that it should have got so far.
    async fn burst(&self, node: &Arc<Node>) -> i64 {
        let due = CAPACITY as f64 + PER_SECOND * self.refills_from.elapsed().as_secs_f64();
        let mut sent = JoinSet::new();
        for _ in 0..BURST {
            let (node, key) = (Arc::clone(node), self.key.clone());
            let (start, ledger) = (self.start, Arc::clone(&self.ledger));
            sent.spawn(async move { send(&node, &key, start, &ledger).await });
        }
        while let Some(ended) = sent.join_next().await {
            ended.unwrap();
        }
        let ledger = self.ledger.lock();
        let over = ledger.excess(0, &bucket(RULES));
        assert!(over <= 0, "{}: {over} over-admitted", self.key);
        due.floor() as i64 - ledger.admitted(0, 0..u64::MAX) as i64
    }
}

async fn send(node: &Node, key: &str, start: Instant, ledger: &Mutex<Ledger>) {
    let sent_us = start.elapsed().as_micros() as u64;
    let request = Request { api_key: Some(key), endpoint: "/", ..Request::default() };
    let (admitted, degraded) = node.check(&request).await;
    assert!(!degraded, "the store answers");
    let received_us = start.elapsed().as_micros() as u64;
    ledger.lock().note(LedgerEntry { key: 0, node: 0, admitted, cost: 1, sent_us, received_us });
}

/// What is missing right after the move, and a second later.
async fn moves(first: Arc<Node>, second: Arc<Node>, number: u32) -> (i64, i64) {
    // At another time of an epoch each.
    sleep(Duration::from_millis(250) * number).await;
    let mut client = Client::new(&format!("moves-{number}"));
    client.be_busy(&first, 61 + 43 * (number % 4)).await;
    let moved = Instant::now();
    let at_once = client.burst(&second).await;
    sleep_until(moved + MOVED_LATER).await;
    (at_once, client.burst(&second).await)
}

/// What is missing a second after the move, if nothing is asked for before.
async fn moves_later(first: Arc<Node>, second: Arc<Node>, number: u32) -> i64 {
    sleep(Duration::from_millis(250) * number).await;
    let mut client = Client::new(&format!("moves-later-{number}"));
    client.be_busy(&first, 61 + 43 * (number % 4)).await;
    sleep(MOVED_LATER).await;
    client.burst(&second).await
}

async fn clients_move() {
    let server = RedisServer::start(&[]);
    let nodes = patient_nodes(&server.url(), RULES, 2).await;
    let (mut at_once, mut later) = (JoinSet::new(), JoinSet::new());
    for number in 0..8 {
        at_once.spawn(moves(Arc::clone(&nodes[0]), Arc::clone(&nodes[1]), number));
        later.spawn(moves_later(Arc::clone(&nodes[0]), Arc::clone(&nodes[1]), number));
    }
    let (at_once, later) = (at_once.join_all().await, later.join_all().await);
    println!("missing at once and a second later: {at_once:?}; only a second later: {later:?}");
    for (at_once, later) in at_once {
        assert!(at_once <= CAPACITY / 100, "{at_once} missing");
        assert!(later <= 0, "{later} missing a second after the move");
    }
    assert!(later.iter().all(|missing| *missing <= 0), "{later:?} missing a second after the move");
}

async fn a_node_dies() {
    let server = RedisServer::start(&[]);
    let mut nodes = patient_nodes(&server.url(), RULES, 2).await;
    let (lives, dies) = (nodes.remove(0), nodes.remove(0));
    let mut busy = JoinSet::new();
    for number in 0..8 {
        let node = Arc::clone(&dies);
        busy.spawn(async move {
            let mut client = Client::new(&format!("left-{number}"));
            client.be_busy(&node, 41 + 23 * number).await;
            client
        });
    }
    let clients = busy.join_all().await;
    // As in a process that is killed: its tasks end, and nothing is returned.
    assert_eq!(Arc::strong_count(&dies), 1);
    drop(dies);
    let died = Instant::now();
    let mut missing = Vec::new();
    for client in &clients {
        missing.push(client.burst(&lives).await);
    }
    sleep_until(died + FORGOTTEN).await;
    let mut lost = Vec::new();
    for client in &clients {
        lost.push(client.burst(&lives).await);
    }
    println!("missing when the node has died: {missing:?}; lost for good: {lost:?}");
    let most = CAPACITY * 2 / 100;
    assert!(missing.iter().chain(&lost).all(|tokens| *tokens <= most), "{missing:?}, then {lost:?}");
}

#[test]
fn a_client_that_moves_finds_its_tokens_and_loses_little_if_its_node_dies() {
    alone(async || {
        tokio::join!(clients_move(), a_node_dies());
    });
}
