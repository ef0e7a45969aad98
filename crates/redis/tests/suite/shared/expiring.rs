//! Keys of short limits on a server that really expires them: every algorithm keeps to its limit.

use super::fleet::{Node, alone, patient_nodes};
use crate::setting::load;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tollgate_core::algorithm::Algorithm;
use tollgate_limiter::{Clock, Request};
use tollgate_simulate::{Ledger, LedgerEntry};
use tollgate_testbed::RedisServer;

fn algorithms() -> impl Iterator<Item = &'static str> {
    Algorithm::ALL.into_iter().filter(|algorithm| algorithm.is_leased()).map(Algorithm::name)
}

fn rules() -> String {
    let rule =
        |name| format!("  - {{ id: {name}, endpoint: /{name}, algorithm: {name}, limit: 500/500ms }}\n");
    format!("rules:\n{}", algorithms().map(rule).collect::<String>())
}

const LIMIT: u64 = 500;
/// Pauses between the bursts: shorter than the bucket takes to fill, about as long, and longer than states last.
const BURSTS_MS: [u64; 9] = [0, 350, 700, 1_000, 1_100, 1_450, 2_000, 3_600, 5_300];

/// Twice the limit, at both nodes, again and again.
async fn bursts(nodes: Vec<Arc<Node>>, algorithm: &'static str, ledger: Arc<Mutex<Ledger>>) {
    let (start, clock) = (Instant::now(), Clock::system());
    let endpoint: Arc<str> = Arc::from(format!("/{algorithm}"));
    for begin_ms in BURSTS_MS {
        sleep_until(start + Duration::from_millis(begin_ms)).await;
        let mut sent = JoinSet::new();
        for number in 0..2 * LIMIT as usize {
            let node = Arc::clone(&nodes[number % nodes.len()]);
            let (endpoint, ledger, clock) = (Arc::clone(&endpoint), Arc::clone(&ledger), clock.clone());
            sent.spawn(async move {
                let request = Request { api_key: Some("one"), endpoint: &endpoint, ..Request::default() };
                let sent_us = clock.now().as_us();
                let (admitted, degraded) = node.check(&request).await;
                assert!(!degraded, "the store answers");
                let received_us = clock.now().as_us();
                ledger.lock().note(LedgerEntry { key: 0, node: 0, admitted, cost: 1, sent_us, received_us });
            });
        }
        while let Some(ended) = sent.join_next().await {
            ended.unwrap();
        }
    }
}

#[test]
fn keys_that_expire_for_real_never_admit_more_than_their_limit() {
    alone(async || {
        let server = RedisServer::start(&["--hz", "100"]);
        let nodes = patient_nodes(&server.url(), &rules(), 2).await;
        let mut running = JoinSet::new();
        for algorithm in algorithms() {
            let nodes = nodes.clone();
            running.spawn(async move {
                let ledger = Arc::<Mutex<Ledger>>::default();
                bursts(nodes, algorithm, Arc::clone(&ledger)).await;
                (algorithm, ledger)
            });
        }
        let loaded = load(&rules());
        while let Some(ended) = running.join_next().await {
            let (algorithm, ledger) = ended.unwrap();
            let ledger = ledger.lock();
            let admitted = ledger.admitted(0, 0..u64::MAX);
            let (_, limit) = loaded.rules.limits().find(|(rule, _)| rule.id == algorithm).unwrap();
            let over = ledger.excess(0, limit.meter());
            println!("{algorithm}: {admitted} admitted, {over} over");
            assert!(over <= 0, "{algorithm}: {over} over-admitted");
            assert!(admitted >= 4 * LIMIT, "{algorithm}: only {admitted} admitted");
        }
    });
}
