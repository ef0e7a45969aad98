//! A limiter on a shared store, and several that know each other.

use crate::setting::{PLENTY, load};
use std::sync::Arc;
use tollgate_core::rules::LoadedRules;
use tollgate_limiter::{Clock, FailureSettings, Limiter, MemoryStore, Request};
use tollgate_redis::{RedisSettings, RedisStore};
use tollgate_testbed::{PATIENCE, eventually};

/// The key with which these nodes hash identities.
pub const SECRET: [u8; 16] = [7; 16];

/// One node.
pub struct Node {
    pub limiter: Arc<Limiter>,
    pub store: RedisStore,
}

impl Node {
    pub async fn start(url: &str, text: &str) -> Arc<Self> {
        Self::start_with(url, text, with_secret(RedisSettings::default())).await
    }

    pub async fn start_with(url: &str, text: &str, settings: RedisSettings) -> Arc<Self> {
        Self::start_on(url, text, settings, Clock::system()).await
    }

    /// A node with a clock of its own.
    pub async fn start_on(url: &str, text: &str, settings: RedisSettings, clock: Clock) -> Arc<Self> {
        let opened = RedisStore::open(&url.parse().unwrap(), settings, clock.clone()).await;
        let store = opened.unwrap_or_else(|error| panic!("{error}"));
        let limiter = Limiter::new(MemoryStore::new(PLENTY), clock)
            .sharing(store.shared_store(), FailureSettings::default());
        let LoadedRules { rules, lists, .. } = load(text);
        limiter.install(rules, lists).unwrap();
        Arc::new(Self { limiter: Arc::new(limiter), store })
    }

    /// Whether `request` passes, and whether the store had a say.
    pub async fn check(&self, request: &Request<'_>) -> (bool, bool) {
        let decision = self.limiter.check(request).unwrap().decision().await;
        (decision.allowed(), decision.degraded)
    }
}

/// So many nodes that know each other.
pub async fn nodes(url: &str, text: &str, count: usize) -> Vec<Arc<Node>> {
    nodes_with(url, text, count, RedisSettings::default()).await
}

/// The same, for tests that are not about time.
pub async fn patient_nodes(url: &str, text: &str, count: usize) -> Vec<Arc<Node>> {
    nodes_with(url, text, count, patient()).await
}

async fn nodes_with(url: &str, text: &str, count: usize, settings: RedisSettings) -> Vec<Arc<Node>> {
    let mut nodes = Vec::new();
    for _ in 0..count {
        nodes.push(Node::start_with(url, text, with_secret(settings.clone())).await);
    }
    know_each_other(&nodes).await;
    nodes
}

/// Waits until each of `nodes` counts all of them.
pub async fn know_each_other(nodes: &[Arc<Node>]) {
    eventually("the nodes know each other", async || {
        nodes.iter().all(|node| node.store.node_count() as usize == nodes.len())
    })
    .await;
}

/// However slow the machine is, the store decides.
pub fn patient() -> RedisSettings {
    with_secret(RedisSettings { timeout: PATIENCE / 10, ..RedisSettings::default() })
}

pub fn with_secret(settings: RedisSettings) -> RedisSettings {
    RedisSettings { secret: Some(SECRET), ..settings }
}
