//! A client that the store refused stays refused when the store is gone, until the time that it was told.

use super::fleet::{Node, alone, nodes};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tollgate_limiter::{Decision, Outcome, Request};
use tollgate_testbed::{RedisServer, eventually};

/// A token comes every 36 s, or all of them; under `/soon` every 2.5 s.
const RULES: &str = "
defaults: { on_store_failure: allow }
rules:
  - { id: leased, endpoint: /leased, params: { capacity: 200, refill_rate: 100/hour } }
  - { id: strict, endpoint: /strict, params: { capacity: 5, refill_rate: 100/hour }, consistency: strict }
  - { id: gcra, endpoint: /gcra, algorithm: gcra, params: { capacity: 5, refill_rate: 100/hour } }
  - { id: log, endpoint: /log, algorithm: sliding_window_log, params: { limit: 5, window: 36s } }
  - { id: soon, endpoint: /soon, params: { capacity: 5, refill_rate: 24/min } }
";
const LONG: [&str; 4] = ["/leased", "/strict", "/gcra", "/log"];
const SOON: &str = "/soon";
const WAIT: Duration = Duration::from_secs(36);
/// How long after the stop it is looked at.
const LATER: Duration = Duration::from_secs(5);
/// How far two waits for the same instant may be apart: the time that a decision takes.
const TOLERANCE: Duration = Duration::from_millis(150);

async fn ask(node: &Node, key: &str, endpoint: &str) -> Decision {
    let request = Request { api_key: Some(key), endpoint, ..Request::default() };
    node.limiter.check(&request).unwrap().decision().await
}

/// When a refused client may come again.
fn retry_at(decision: &Decision) -> Option<Instant> {
    match &decision.outcome {
        Outcome::Limited(standing) => Some(Instant::now() + Duration::from_micros(standing.wait_us()?)),
        _ => None,
    }
}

/// Spends until it is refused; tells when it may come again.
async fn until_refused(node: &Node, key: &str, endpoint: &str) -> Instant {
    loop {
        let decision = ask(node, key, endpoint).await;
        assert!(!decision.degraded, "the store answers");
        if let Some(at) = retry_at(&decision) {
            return at;
        }
    }
}

fn assert_refused_until(decision: &Decision, until: Instant, endpoint: &str) {
    let at = retry_at(decision).unwrap_or_else(|| panic!("{endpoint}: not refused: {decision:?}"));
    let apart = at.max(until) - at.min(until);
    assert!(!decision.degraded && apart < TOLERANCE, "{endpoint}: {apart:?} off: {decision:?}");
}

/// A client is refused; the store is stopped; the client asks every so often, and is still refused later.
async fn stays_refused(node: Arc<Node>, endpoint: &'static str, key: &'static str, stopped: Arc<StoppedAt>) {
    let until = until_refused(&node, key, endpoint).await;
    let wait = until - Instant::now();
    assert!(wait > WAIT - Duration::from_secs(1) && wait <= WAIT, "{endpoint}: told to wait {wait:?}");
    let later = stopped.wait().await + LATER;
    while key == "asks" && Instant::now() < later {
        assert_refused_until(&ask(&node, key, endpoint).await, until, endpoint);
        sleep(Duration::from_millis(40)).await;
    }
    sleep_until(later).await;
    assert_refused_until(&ask(&node, key, endpoint).await, until, endpoint);
    let other = ask(&node, "not refused", endpoint).await;
    assert!(other.allowed() && other.degraded, "{endpoint}: {other:?}");
}

/// One that was told to wait for less passes as all do, but not before.
async fn passes_in_time(node: Arc<Node>, stopped: Arc<StoppedAt>) {
    let until = until_refused(&node, "asks", SOON).await;
    stopped.wait().await;
    while Instant::now() < until - TOLERANCE {
        assert_refused_until(&ask(&node, "asks", SOON).await, until, SOON);
        sleep(Duration::from_millis(40)).await;
    }
    sleep_until(until + TOLERANCE).await;
    let decision = ask(&node, "asks", SOON).await;
    assert!(decision.allowed() && decision.degraded, "{decision:?}");
}

/// Tells the clients when the store was stopped, once they are all refused.
struct StoppedAt {
    refused: tokio::sync::Barrier,
    at: tokio::sync::watch::Sender<Option<Instant>>,
}

impl StoppedAt {
    async fn wait(&self) -> Instant {
        let mut at = self.at.subscribe();
        self.refused.wait().await;
        at.wait_for(Option::is_some).await.unwrap().unwrap()
    }
}

async fn outage(stop: fn(&mut RedisServer)) {
    let mut server = RedisServer::start(&[]);
    let node = nodes(&server.url(), RULES, 1).await.remove(0);
    let clients = 2 * LONG.len() + 1;
    let refused = tokio::sync::Barrier::new(clients + 1);
    let stopped = Arc::new(StoppedAt { refused, at: tokio::sync::watch::channel(None).0 });
    let mut all = JoinSet::new();
    for endpoint in LONG {
        for key in ["asks", "is silent"] {
            all.spawn(stays_refused(Arc::clone(&node), endpoint, key, Arc::clone(&stopped)));
        }
    }
    all.spawn(passes_in_time(Arc::clone(&node), Arc::clone(&stopped)));
    stopped.refused.wait().await;
    stop(&mut server);
    stopped.at.send_replace(Some(Instant::now()));
    eventually("the store is given up", async || node.store.shards().iter().all(|shard| shard.is_away)).await;
    while let Some(ended) = all.join_next().await {
        ended.unwrap();
    }
}

#[test]
fn a_refused_client_stays_refused_in_an_outage() {
    alone(async || {
        tokio::join!(outage(|server| server.freeze()), outage(RedisServer::kill));
    });
}

/// `CLIENT PAUSE … WRITE`: the server replies to a PING and no script.
#[test]
fn a_server_whose_writes_are_paused_stays_away_until_they_are_not() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let node = nodes(&server.url(), RULES, 1).await.remove(0);
        assert!(!ask(&node, "paused", SOON).await.degraded);
        server.cli(&["CLIENT", "PAUSE", "2000", "WRITE"]);
        let end = Instant::now() + Duration::from_millis(1_500);
        let mut number = 0;
        while Instant::now() < end {
            number += 1;
            let decision = ask(&node, &format!("paused-{number}"), SOON).await;
            assert!(decision.degraded, "{decision:?}");
            sleep(Duration::from_millis(5)).await;
        }
        let shard = node.store.shards().remove(0);
        assert!(shard.is_away && shard.times_away == 1, "{shard:?}");
        eventually("it is back", async || !ask(&node, "back", SOON).await.degraded).await;
    });
}
