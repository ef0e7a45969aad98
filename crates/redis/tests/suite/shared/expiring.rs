//! Keys of short limits on a server that really expires them: every algorithm keeps to its limit.
//!
//! Each client is busy at one node, which takes tokens ahead, and bursts at the other before its limit is full again, when it is,
//! and after its key has expired. A key that expired while it limits, or while tokens of it are lent, would start full.

use super::fleet::{Node, alone, beside_others, patient_nodes};
use crate::setting::load;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tollgate_core::algorithm::Algorithm;
use tollgate_limiter::{Clock, Request};
use tollgate_simulate::{Ledger, LedgerEntry};
use tollgate_testbed::RedisServer;

fn algorithms() -> impl Iterator<Item = &'static str> {
    Algorithm::ALL.into_iter().filter(|algorithm| algorithm.is_leased()).map(Algorithm::name)
}

/// One client of a rule, and what came of its requests.
#[derive(Clone)]
struct Spender {
    rule: Arc<str>,
    client: Arc<str>,
    limit: u64,
    nodes: Arc<[Arc<Node>]>,
    start: Instant,
    clock: Clock,
    ledger: Arc<Mutex<Ledger>>,
}

impl Spender {
    fn new(rule: &str, client: &str, limit: u64, nodes: &[Arc<Node>]) -> Self {
        let (rule, client, nodes) = (Arc::from(rule), Arc::from(client), nodes.into());
        let (start, clock) = (Instant::now(), Clock::system());
        Self { rule, client, limit, nodes, start, clock, ledger: Arc::default() }
    }

    async fn until(&self, ms: u64) {
        sleep_until(self.start + Duration::from_millis(ms)).await;
    }

    async fn send(&self, node: usize) {
        let endpoint = format!("/{}", self.rule);
        let request = Request { api_key: Some(&self.client), endpoint: &endpoint, ..Request::default() };
        let sent_us = self.clock.now().as_us();
        let (admitted, degraded) = self.nodes[node].check(&request).await;
        assert!(!degraded, "{}: the store answers", self.rule);
        let (received_us, node) = (self.clock.now().as_us(), node as u16);
        self.ledger.lock().note(LedgerEntry { key: 0, node, admitted, cost: 1, sent_us, received_us });
    }

    /// Twice the limit, at all nodes at once.
    async fn burst(&self) {
        let mut sent = JoinSet::new();
        for number in 0..2 * self.limit as usize {
            let spender = self.clone();
            sent.spawn(async move { spender.send(number % spender.nodes.len()).await });
        }
        while let Some(ended) = sent.join_next().await {
            ended.unwrap();
        }
    }

    /// A request each 10 ms at the first node.
    async fn be_busy(&self, requests: usize) {
        let mut ticks = interval(Duration::from_millis(10));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for _ in 0..requests {
            ticks.tick().await;
            self.send(0).await;
        }
    }

    /// Nothing is over-admitted, and so often the limit is admitted.
    fn assert_kept(&self, text: &str, least: u64) {
        let loaded = load(text);
        let (_, limit) = loaded.rules.limits().find(|(rule, _)| *rule.id == *self.rule).unwrap();
        let ledger = self.ledger.lock();
        let (admitted, over) = (ledger.admitted(0, 0..u64::MAX), ledger.excess(0, limit.meter()));
        println!("{}: {admitted} admitted, {over} over", self.rule);
        assert!(over <= 0, "{}: {over} over-admitted", self.rule);
        assert!(admitted >= least * self.limit, "{}: only {admitted} admitted", self.rule);
    }
}

/// Pauses between the bursts: shorter than the limit takes to fill, about as long, and longer.
const BURSTS_MS: [u64; 9] = [0, 350, 700, 1_000, 1_100, 1_450, 2_000, 3_600, 5_300];

/// The states of these limits live for many times as long as they take to fill.
#[test]
fn bursts_of_limits_that_fill_fast_never_exceed_them() {
    alone(async || {
        let rule =
            |name| format!("  - {{ id: {name}, endpoint: /{name}, algorithm: {name}, limit: 500/500ms }}\n");
        let text = format!("rules:\n{}", algorithms().map(rule).collect::<String>());
        let server = RedisServer::start(&["--hz", "100"]);
        let nodes = patient_nodes(&server.url(), &text, 2).await;
        let mut running = JoinSet::new();
        for algorithm in algorithms() {
            let spender = Spender::new(algorithm, "one", 500, &nodes);
            running.spawn(async move {
                for begin_ms in BURSTS_MS {
                    spender.until(begin_ms).await;
                    spender.burst().await;
                }
                spender
            });
        }
        while let Some(ended) = running.join_next().await {
            ended.unwrap().assert_kept(&text, 4);
        }
    });
}

const FILLED_IN_S: [u64; 4] = [1, 2, 4, 10];
const LIMIT: u64 = 300;
/// Until then all keys are in use.
const GONE_MS: u64 = 12_500;
/// By then all have expired: keys live for twice the time to full, and 16 s at least.
const EXPIRED_MS: u64 = GONE_MS + 20_000 + 2_000;
/// When they are used again.
const AGAIN_MS: u64 = EXPIRED_MS + 500;

/// Tokens are lent when the client goes, and again when it bursts: with a new state, before that is full, and after it has expired.
async fn lend_expire_and_burst(spender: Spender, filled_in_s: u64) -> Spender {
    spender.be_busy(100).await;
    spender.burst().await;
    for filled_percent in [60, 130] {
        let now_ms = spender.start.elapsed().as_millis() as u64;
        spender.until((now_ms + filled_in_s * 10 * filled_percent).min(GONE_MS - 1_600)).await;
        spender.burst().await;
    }
    spender.until(GONE_MS - 1_500).await;
    spender.be_busy(100).await;
    spender.until(AGAIN_MS).await;
    spender.be_busy(20).await;
    spender.burst().await;
    spender
}

#[test]
fn keys_that_expire_for_real_never_admit_more_than_their_limit() {
    beside_others(async || {
        let name = |algorithm: &str, seconds: u64| format!("{algorithm}_{seconds}");
        let rule = |algorithm: &str, seconds: u64| {
            let name = name(algorithm, seconds);
            format!(
                "  - {{ id: {name}, endpoint: /{name}, algorithm: {algorithm}, limit: {LIMIT}/{seconds}s }}\n"
            )
        };
        let all = || algorithms().flat_map(|algorithm| FILLED_IN_S.map(|seconds| (algorithm, seconds)));
        let text = format!(
            "rules:\n{}",
            all().map(|(algorithm, seconds)| rule(algorithm, seconds)).collect::<String>()
        );
        let server = RedisServer::start(&["--hz", "100"]);
        let nodes = patient_nodes(&server.url(), &text, 2).await;
        let mut running = JoinSet::new();
        for (algorithm, seconds) in all() {
            let name = name(algorithm, seconds);
            // Clients of their own: a key lives as long as the state in it that lives longest.
            running.spawn(lend_expire_and_burst(Spender::new(&name, &name, LIMIT, &nodes), seconds));
        }
        sleep_until(Instant::now() + Duration::from_millis(EXPIRED_MS)).await;
        let left = tokio::task::block_in_place(|| server.cli(&["KEYS", "tg:{*"]));
        let stats = tokio::task::block_in_place(|| server.cli(&["INFO", "stats"]));
        let expired = stats.lines().find_map(|line| line.strip_prefix("expired_keys:")).unwrap();
        println!("{expired} keys have expired");
        while let Some(ended) = running.join_next().await {
            ended.unwrap().assert_kept(&text, 2);
        }
        assert!(left.is_empty(), "not expired: {left}");
        assert!(expired.parse::<usize>().unwrap() >= all().count(), "{expired} keys have expired");
    });
}
