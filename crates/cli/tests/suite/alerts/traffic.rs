//! Light traffic for a fleet, whose kind a test changes while it runs.

use crate::http_client::HttpClient;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Each node gets a batch of checks this often.
const EVERY: Duration = Duration::from_millis(50);
/// How many checks a batch has for the hot key: 4,000 a second.
const HOT_CHECKS: usize = 200;
/// The limit of the rule `quota`.
const QUOTA: u32 = 100_000;

/// The rules that the traffic is for. Strict, so that all their checks need the store; other checks are decided locally.
pub const RULES: &str = "
defaults: { key: api_key, consistency: strict, on_store_failure: local }
rules:
  - { id: api, endpoint: /api, limit: 1000000/s }
  - { id: quota, endpoint: /quota, limit: 100000/day }
";

/// What a test switches on and off.
#[derive(Debug, Default)]
pub struct TrafficKind {
    /// One in five checks of the rule `quota` is of a key that has spent it.
    pub is_quota_exceeded: AtomicBool,
    /// One key floods the first node.
    pub is_key_hot: AtomicBool,
    is_over: AtomicBool,
}

/// One connection and one thread for each node. It ends when this value is dropped.
#[derive(Debug)]
pub struct Traffic {
    pub kind: Arc<TrafficKind>,
    threads: Vec<JoinHandle<()>>,
}

impl Traffic {
    /// Starts to send.
    pub fn start(nodes: impl IntoIterator<Item = SocketAddr>) -> Self {
        let kind = Arc::<TrafficKind>::default();
        let threads = nodes.into_iter().enumerate().map(|(index, node)| {
            let kind = Arc::clone(&kind);
            thread::spawn(move || send_until_over(index, node, &kind))
        });
        Self { threads: threads.collect(), kind }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.kind.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said why.
            let _ = thread.join();
        }
    }
}

fn send_until_over(node: usize, address: SocketAddr, kind: &TrafficKind) {
    let mut client = HttpClient::connect(address);
    let spent = client.check_batch(&[check("spent", "/quota", QUOTA)]);
    assert_eq!(spent.status, 200, "{spent:?}");
    for tick in 0_u64.. {
        if kind.is_over.load(Ordering::Relaxed) {
            return;
        }
        let user = format!("user-{}", tick % 10);
        let mut checks = vec![check(&user, "/api", 1); 2];
        checks.push(check(&user, "/unlimited", 1));
        checks.extend(vec![check("modest", "/quota", 1); 4]);
        if kind.is_quota_exceeded.load(Ordering::Relaxed) {
            checks.push(check("spent", "/quota", 1));
        }
        if node == 0 && kind.is_key_hot.load(Ordering::Relaxed) {
            checks.extend(vec![check("hot", "/api", 1); HOT_CHECKS]);
        }
        let reply = client.check_batch(&checks);
        assert_eq!(reply.status, 200, "{reply:?}");
        // The rate of the traffic; nothing waits for it.
        thread::sleep(EVERY);
    }
}

fn check(key: &str, endpoint: &str, cost: u32) -> String {
    format!(r#"{{"key":"{key}","endpoint":"{endpoint}","cost":{cost}}}"#)
}
