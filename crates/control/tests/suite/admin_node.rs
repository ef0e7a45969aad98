//! A node of a fleet with its admin listener.

use crate::admin_fixture::{AdminFixture, AdministeredNode, EchoMetrics};
use crate::fleet_node::{FleetNode, NodeStart};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tollgate_control::{ControlStateFollower, RuleOwner, RuleSeed};
use tollgate_redis::RedisStore;
use tollgate_testbed::eventually;

const POLL: Duration = Duration::from_millis(200);

/// A node of a fleet, with its admin listener.
pub struct AdminNode {
    pub node: FleetNode,
    pub admin: AdminFixture,
    _control_state: ControlStateFollower,
}

impl AdminNode {
    pub async fn start(url: &str, rules: &'static str) -> Self {
        let seed = RuleSeed::Example(rules);
        Self::of(NodeStart { poll: POLL, seed, ..NodeStart::new(url) }.start().await).await
    }

    /// A node on a store that may be down.
    pub async fn start_on(store: RedisStore, rules: &'static str) -> Self {
        let seed = RuleSeed::Example(rules);
        Self::of(NodeStart { poll: POLL, seed, ..NodeStart::new("") }.start_on(Arc::new(store)).await).await
    }

    async fn of(node: FleetNode) -> Self {
        let limiter = Arc::clone(&node.limiter);
        let control_state = ControlStateFollower::start(node.repository.clone(), Arc::clone(&limiter), POLL);
        let administered = AdministeredNode {
            rule_owner: RuleOwner::Repository,
            repository: node.repository.clone(),
            limiter,
            rules: node.status.clone(),
        };
        let admin = AdminFixture::of_node(EchoMetrics, administered).await;
        Self { node, admin, _control_state: control_state }
    }

    pub async fn get(&self, path: &str) -> Value {
        let reply = self.admin.get(path).await;
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        reply.json()
    }

    /// Switches the emergency limit, and returns the mode and whether it is stored.
    pub async fn switch(&self, mode: &str) -> (Value, Value) {
        let body = json!({ "mode": mode }).to_string();
        let reply = self.admin.call("PUT", "/v1/emergency", "", &body).await;
        assert_eq!(reply.status, 200, "{reply:?}");
        (reply.json()["mode"].clone(), reply.json()["stored"].clone())
    }

    pub async fn emergency(&self) -> (Value, Value) {
        let emergency = self.get("/v1/emergency").await;
        (emergency["mode"].clone(), emergency["stored"].clone())
    }

    pub async fn until_mode(&self, mode: &str) {
        eventually(&format!("the emergency limit is {mode} and stored"), async || {
            self.emergency().await == (json!(mode), json!(true))
        })
        .await;
    }
}
