//! A node that an operator works on: its rules and its control state are in force in its limiter.

use crate::admin_fixture::{AdminFixture, AdministeredNode, EchoMetrics};
use crate::client::Reply;
use crate::fleet_node::NO_POLL;
use serde_json::Value;
use std::ops::Deref;
use std::sync::Arc;
use tokio::sync::watch;
use tollgate_control::{
    ControlStateFollower, FollowedRules, InstallSettings, RepositoryRules, RuleOwner, RuleRepository,
    RuleSeed, RuleStatus,
};
use tollgate_limiter::{Clock, Decision, Limiter, ManualClock, MemoryStore, Request};
use tollgate_testbed::{PATIENCE, eventually};

/// 2027-01-15T08:00:00Z.
pub const START_US: u64 = 1_800_000_000_000_000;
/// An hour.
pub const HOUR_US: u64 = 3_600_000_000;

pub struct OperatedNode {
    admin: AdminFixture,
    pub repository: RuleRepository,
    status: watch::Receiver<RuleStatus>,
    _followed: FollowedRules,
    _control_state: ControlStateFollower,
}

impl Deref for OperatedNode {
    type Target = AdminFixture;

    fn deref(&self) -> &AdminFixture {
        &self.admin
    }
}

impl OperatedNode {
    /// A node with these rules, on a clock that the test moves.
    pub async fn start(rules: &'static str) -> (Self, ManualClock) {
        let clock = ManualClock::new(START_US);
        (Self::on_clock(rules, Clock::Manual(clock.clone())).await, clock)
    }

    pub async fn on_clock(rules: &'static str, clock: Clock) -> Self {
        let repository = RuleRepository::open_embedded(None, clock.clone()).unwrap();
        let limiter = Arc::new(Limiter::new(MemoryStore::new(1 << 24), clock));
        let (seed, settings) = (RuleSeed::Example(rules), InstallSettings::default());
        let opened = RepositoryRules::open(repository.clone(), seed, settings, Arc::clone(&limiter)).await;
        let opened = opened.unwrap_or_else(|error| panic!("{error}"));
        let status = opened.status();
        let (followed, _) = opened.follow().unwrap();
        let control_state = ControlStateFollower::start(repository.clone(), Arc::clone(&limiter), NO_POLL);
        let node = AdministeredNode {
            rule_owner: RuleOwner::Repository,
            repository: repository.clone(),
            limiter,
            rules: status.clone(),
        };
        let admin = AdminFixture::of_node(EchoMetrics, node).await;
        Self { admin, repository, status, _followed: followed, _control_state: control_state }
    }

    /// Waits until the revision that `reply` names is in force, and returns its number.
    pub async fn in_force(&self, reply: &Reply) -> u64 {
        assert_eq!(reply.status, 200, "{reply:?}");
        let number = reply.json()["revision"].as_u64().unwrap();
        let mut status = self.status.clone();
        let reached = status.wait_for(|status| status.revision == number && status.error.is_none());
        tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("{number}")).unwrap();
        number
    }

    /// What the node shows of a key.
    pub async fn key(&self, path: &str) -> Value {
        let reply = self.get(&format!("/v1/keys/{path}")).await;
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        reply.json()
    }

    /// Waits until the key has so many grants.
    pub async fn until_grants(&self, path: &str, count: usize) {
        eventually("the grants are in force", async || {
            self.key(path).await["grants"].as_array().unwrap().len() == count
        })
        .await;
    }

    /// The grant of `tokens` that is made with this body.
    pub async fn grant(&self, path: &str, body: &str) -> String {
        let reply = self.call("POST", &format!("/v1/keys/{path}/grant"), "", body).await;
        assert_eq!(reply.status, 200, "{path} {body}: {reply:?}");
        reply.json()["id"].as_str().unwrap().to_owned()
    }
}

/// The decision on a request of this key.
pub fn decide(limiter: &Limiter, api_key: &str) -> Decision {
    let request = Request { api_key: Some(api_key), endpoint: "/v1/orders", ..Request::default() };
    limiter.check(&request).unwrap().now().unwrap()
}

/// How many of `requests` requests of this key are admitted.
pub fn admitted(limiter: &Limiter, api_key: &str, requests: usize) -> usize {
    (0..requests).filter(|_| decide(limiter, api_key).allowed()).count()
}
