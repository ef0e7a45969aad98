//! Nodes that follow a control plane over HTTP: rules, grants, the emergency limit and statuses, on real listeners.

use crate::admin_fixture::{AdminFixture, AdministeredNode, EchoMetrics};
use crate::fleet_node::NO_POLL;
use crate::operated_node::{OperatedNode, admitted};
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tollgate_control::live::{LiveMonitor, LiveParts, LiveSettings, NodeProfile};
use tollgate_control::{
    ControlPlaneRules, FollowedRules, HttpClient, InstallSettings, RuleOwner, RuleRepository, RuleStatus,
    StatusPoster,
};
use tollgate_limiter::{Clock, Limiter, MemoryStore, Request};
use tollgate_testbed::{PATIENCE, eventually};

const RULES: &str = "# The limits.\ntiers:\n  pro: { api_key_pattern: 'pro_*', limit: 50/h }\nrules:\n  - { id: plan, key: api_key, tier: pro }\n  - { id: api, key: api_key, limit: 5/h }\n";

fn limiter() -> Arc<Limiter> {
    Arc::new(Limiter::new(MemoryStore::new(1 << 20), Clock::system()))
}

/// What a follower runs, without an admin listener.
struct FollowedPart {
    limiter: Arc<Limiter>,
    status: watch::Receiver<RuleStatus>,
    owner: RuleOwner,
    client: HttpClient,
    _followed: FollowedRules,
}

impl FollowedPart {
    async fn start(url: &str, token: &str, poll: Duration) -> Self {
        let limiter = limiter();
        let client = HttpClient::new(url, Some(token), None).unwrap();
        let settings = InstallSettings::default();
        let rules = ControlPlaneRules::open(client.clone(), poll, settings, Arc::clone(&limiter)).await;
        let rules = rules.unwrap_or_else(|error| panic!("{error}"));
        let (status, owner) = (rules.status(), RuleOwner::ControlPlane(rules.followed()));
        Self { limiter, status, owner, client, _followed: rules.follow().unwrap() }
    }

    async fn until_revision(&self, number: u64) {
        let mut status = self.status.clone();
        let reached = status.wait_for(|status| status.revision == number && status.error.is_none());
        tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("{number}")).unwrap();
    }

    /// Whether the emergency limit is on.
    fn is_emergency(&self) -> bool {
        // Another address each time: the one before may have no token left.
        static ADDRESSES: AtomicU32 = AtomicU32::new(1 << 24);
        let ip = Ipv4Addr::from(ADDRESSES.fetch_add(1, Ordering::Relaxed));
        (0..11).any(|index| {
            let api_key = format!("{ip} {index}");
            let request =
                Request { api_key: Some(&api_key), ip: Some(ip.into()), endpoint: "/", ..Request::default() };
            let decision = self.limiter.check(&request).unwrap().now().unwrap();
            !decision.allowed() && decision.terms.is_some_and(|terms| terms.names.rule == "emergency")
        })
    }
}

/// A follower with an admin listener, which posts its status.
struct Follower {
    part: FollowedPart,
    admin: AdminFixture,
    _poster: StatusPoster,
}

impl Deref for Follower {
    type Target = FollowedPart;

    fn deref(&self) -> &FollowedPart {
        &self.part
    }
}

impl Follower {
    async fn start(url: &str, token: &str) -> Self {
        let part = FollowedPart::start(url, token, NO_POLL).await;
        let node = AdministeredNode {
            rule_owner: part.owner.clone(),
            repository: RuleRepository::open_embedded(None, Clock::system()).unwrap(),
            limiter: Arc::clone(&part.limiter),
            rules: part.status.clone(),
        };
        let admin = AdminFixture::of_node(EchoMetrics, node).await;
        let poster = StatusPoster::start(part.client.clone(), admin.live.view());
        Self { part, admin, _poster: poster }
    }
}

async fn control_plane() -> (OperatedNode, String) {
    let plane = OperatedNode::on_clock(RULES, Clock::system()).await;
    let token = plane.create_token("edge", "follow").await;
    (plane, token)
}

/// The followers that the control plane lists.
async fn followers(plane: &AdminFixture) -> Vec<Value> {
    let nodes = plane.get("/v1/nodes").await.json()["nodes"].as_array().unwrap().clone();
    nodes.into_iter().filter(|node| node["follower"] == true).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_is_listed_with_its_revision_and_lag() {
    let (plane, token) = control_plane().await;
    let follower = Follower::start(&plane.url(), &token).await;
    eventually("the follower is listed", async || followers(&plane).await.len() == 1).await;
    let node = followers(&plane).await.remove(0);
    assert_eq!(
        (&node["state"], &node["revision"], &node["behind"]),
        (&json!("healthy"), &json!(1), &json!(0))
    );
    assert!(node["started"].is_string() && node["uptime_seconds"].is_u64(), "{node}");
    // Both have the name of this host, in any order.
    let nodes = plane.get("/v1/nodes").await.json()["nodes"].clone();
    let own = nodes.as_array().unwrap().iter().find(|node| node["self"] == true).expect("the control plane");
    assert_eq!((&own["follower"], &own["behind"]), (&json!(false), &json!(0)));
    // Its decisions are in the figures of the fleet.
    assert_eq!(admitted(&follower.limiter, "sk_1", 9), 5);
    eventually("its decisions are counted", async || {
        let node = followers(&plane).await.remove(0);
        (&node["counters"]["allowed"], &node["counters"]["limited"]) == (&json!(5), &json!(4))
    })
    .await;
    let reply = plane.call("PUT", "/v1/rules/tier/pro", "", r#"{"limit":60}"#).await;
    plane.in_force(&reply).await;
    follower.until_revision(2).await;
    eventually("the new revision is listed", async || followers(&plane).await[0]["revision"] == 2).await;
    assert_eq!(followers(&plane).await[0]["behind"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_and_the_emergency_limit_reach_a_follower() {
    let (plane, token) = control_plane().await;
    let follower = Follower::start(&plane.url(), &token).await;
    assert_eq!(admitted(&follower.limiter, "sk_1", 9), 5);
    let start = Instant::now();
    let id = plane.grant("api_key/sk_1", r#"{"tokens":3,"for":"1h"}"#).await;
    let grants = async || {
        let key = follower.admin.get("/v1/keys/api_key/sk_1").await.json();
        key["grants"].as_array().unwrap().len()
    };
    eventually("the grant is in force", async || grants().await == 1).await;
    println!("a grant is in force at a follower after {:?}", start.elapsed());
    assert_eq!(admitted(&follower.limiter, "sk_1", 9), 3);
    let shown = follower.admin.get("/v1/keys/api_key/sk_1").await.json()["grants"][0].clone();
    assert_eq!(
        (&shown["id"], &shown["author"], &shown["remaining"]),
        (&json!(id), &json!("operate.token"), &json!(0))
    );

    let start = Instant::now();
    assert_eq!(plane.call("PUT", "/v1/emergency", "", r#"{"mode":"on"}"#).await.status, 200);
    eventually("the emergency limit is on", async || follower.is_emergency()).await;
    println!("the emergency limit is on at a follower after {:?}", start.elapsed());
    assert_eq!(follower.admin.get("/v1/emergency").await.json()["mode"], "on");
    assert_eq!(plane.call("PUT", "/v1/emergency", "", r#"{"mode":"default"}"#).await.status, 200);
    eventually("the emergency limit is off", async || !follower.is_emergency()).await;
    assert_eq!(plane.call("DELETE", &format!("/v1/grants/{id}"), "", "").await.status, 200);
    eventually("the grant has ended", async || grants().await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_shows_the_rules_that_it_runs_and_refuses_changes() {
    let (plane, token) = control_plane().await;
    let follower = Follower::start(&plane.url(), &token).await;
    let admin = &follower.admin;
    let reply = admin.get("/v1/rules").await;
    assert_eq!((reply.status, reply.header("etag")), (200, "\"1\""));
    assert_eq!((&reply.json()["yaml"], &reply.json()["revision"]), (&json!(RULES), &json!(1)));
    plane.in_force(&plane.call("PUT", "/v1/rules/tier/pro", "", r#"{"limit":60}"#).await).await;
    eventually("it shows the new revision", async || admin.get("/v1/rules").await.header("etag") == "\"2\"")
        .await;
    let reply = admin.call("GET", "/v1/rules", "Accept: application/yaml\r\n", "").await;
    assert_eq!(reply.body, plane.call("GET", "/v1/rules", "Accept: application/yaml\r\n", "").await.body);
    assert_eq!(admin.call("GET", "/v1/rules", "If-None-Match: \"2\"\r\n", "").await.status, 304);
    // Questions about the rules in force are answered; the history is elsewhere.
    assert_eq!(admin.get("/v1/rules/plan").await.status, 200);
    assert_eq!(admin.get("/v1/revisions/2").await.json()["author"], "operate.token");
    assert_eq!(admin.get("/v1/revisions").await.json()["revisions"].as_array().unwrap().len(), 1);
    assert_eq!(admin.get("/v1/lists").await.json()["revision"], 2);
    let other = admin.get("/v1/revisions/1").await;
    assert_eq!(other.status, 404);
    assert!(other.json()["detail"].as_str().unwrap().contains(&plane.url()), "{other:?}");
    for (method, path, body) in [
        ("PUT", "/v1/rules", RULES),
        ("PUT", "/v1/rules/plan", "{}"),
        ("PATCH", "/v1/rules/plan", "{}"),
        ("DELETE", "/v1/rules/plan", ""),
        ("PUT", "/v1/rules/tier/pro", r#"{"limit":9}"#),
        ("POST", "/v1/lists/deny", r#"{"key":"a"}"#),
        ("DELETE", "/v1/lists/deny?key=a", ""),
        ("POST", "/v1/revisions/1/rollback", ""),
        ("POST", "/v1/keys/api_key/sk_1/block", "{}"),
        ("POST", "/v1/keys/api_key/sk_1/allow", "{}"),
        ("POST", "/v1/keys/api_key/sk_1/grant", r#"{"tokens":3,"for":"1h"}"#),
        ("DELETE", "/v1/grants/x", ""),
        ("PUT", "/v1/emergency", r#"{"mode":"on"}"#),
    ] {
        let reply = admin.call(method, path, "", body).await;
        assert_eq!(reply.status, 409, "{method} {path}: {reply:?}");
        let problem = reply.json();
        assert!(problem["detail"].as_str().unwrap().contains(&plane.url()), "{method} {path}: {problem}");
    }
    // Its states are its own.
    assert_eq!(admitted(&follower.limiter, "sk_1", 9), 5);
    assert_eq!(admin.call("DELETE", "/v1/keys/api_key/sk_1", "", "").await.json()["reset"], 1);
}

/// Least privilege: a node that follows reads what it applies and posts its status, and does nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn the_role_of_followers_allows_what_they_need() {
    let (plane, token) = control_plane().await;
    let follow = format!("Authorization: Bearer {token}\r\n");
    let read = format!("Authorization: Bearer {}\r\n", plane.create_token("dashboard", "read").await);
    plane.grant("api_key/sk_live_secret", r#"{"tokens":3,"for":"1h"}"#).await;
    let status = json!({ "id": "n1", "revision": 1 }).to_string();
    for (method, path, body, by_follower, by_reader) in [
        ("GET", "/v1/rules", "", 200, 200),
        ("GET", "/v1/control-state", "", 200, 403),
        ("POST", "/v1/nodes/n1/status", status.as_str(), 200, 403),
        ("GET", "/v1/nodes", "", 403, 200),
        ("GET", "/v1/audit", "", 403, 200),
        ("GET", "/v1/tokens", "", 403, 200),
        ("GET", "/v1/live", "", 403, 200),
        ("PUT", "/v1/rules/tier/pro", r#"{"limit":9}"#, 403, 403),
        ("POST", "/v1/tokens", r#"{"name":"x","role":"operate"}"#, 403, 403),
    ] {
        assert_eq!(plane.send(method, path, &follow, body).await.status, by_follower, "{method} {path}");
        assert_eq!(plane.send(method, path, &read, body).await.status, by_reader, "{method} {path}");
    }
    let login = plane.send("POST", "/v1/session", "", &json!({ "token": token }).to_string()).await;
    assert_eq!(login.status, 403, "the page is not for nodes: {login:?}");
    let state = plane.send("GET", "/v1/control-state", &follow, "").await;
    assert_eq!(state.json()["grants"][0]["value"], "sk_live_secret", "a node must know it");
    let tag = format!("{follow}If-None-Match: {}\r\n", state.header("etag"));
    assert_eq!(plane.send("GET", "/v1/control-state", &tag, "").await.status, 304);
    plane.grant("api_key/sk_2", r#"{"tokens":3,"for":"1h"}"#).await;
    assert_eq!(plane.send("GET", "/v1/control-state", &tag, "").await.status, 200);
    // A status must be of the node that the path names, and the answer says when the next is due.
    let taken = plane.send("POST", "/v1/nodes/n1/status", &follow, &status).await;
    assert_eq!(taken.json(), json!({ "id": "n1", "next_seconds": 2 }));
    assert_eq!(plane.send("POST", "/v1/nodes/n2/status", &follow, &status).await.status, 400);
    let large = json!({ "id": "n1", "address": "x".repeat(2 << 20) }).to_string();
    assert_eq!(plane.send("POST", "/v1/nodes/n1/status", &follow, &large).await.status, 413);
}

/// With a token that may only read, a follower gets its rules as before, and says what is missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_with_a_read_token_gets_rules_only() {
    let (plane, _) = control_plane().await;
    let read = plane.create_token("edge", "read").await;
    let follower = Follower::start(&plane.url(), &read).await;
    plane.in_force(&plane.call("PUT", "/v1/rules/tier/pro", "", r#"{"limit":60}"#).await).await;
    follower.until_revision(2).await;
    let emergency = follower.admin.get("/v1/emergency").await;
    assert_eq!(emergency.status, 503, "{emergency:?}");
    assert!(emergency.json()["detail"].as_str().unwrap().contains(&plane.url()), "{emergency:?}");
    assert_eq!(follower.admin.get("/v1/keys/api_key/sk_1").await.status, 200);
    assert!(followers(&plane).await.is_empty());
}

/// A follower can be followed: it answers for what it runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_follower_of_a_follower_gets_the_same() {
    let (plane, token) = control_plane().await;
    let first = Follower::start(&plane.url(), &token).await;
    let second_token = first.admin.create_token("inner", "follow").await;
    let second = Follower::start(&first.admin.url(), &second_token).await;
    plane.in_force(&plane.call("PUT", "/v1/rules/tier/pro", "", r#"{"limit":60}"#).await).await;
    second.until_revision(2).await;
    assert_eq!(plane.call("PUT", "/v1/emergency", "", r#"{"mode":"on"}"#).await.status, 200);
    eventually("the emergency limit is on", async || second.is_emergency()).await;
    eventually("it is listed at the first", async || followers(&first.admin).await.len() == 1).await;
}

/// The control plane of 200 followers: each has a stream, and posts its status.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_followers() {
    const FOLLOWERS: usize = 200;
    let (plane, token) = control_plane().await;
    let mut nodes = Vec::new();
    for _ in 0..FOLLOWERS {
        let part = FollowedPart::start(&plane.url(), &token, NO_POLL).await;
        let parts = LiveParts {
            profile: NodeProfile::default(),
            limiter: Arc::clone(&part.limiter),
            store: None,
            rules: part.status.clone(),
            gateway: Arc::default(),
        };
        let live = LiveMonitor::start(parts, LiveSettings::default()).unwrap();
        let poster = StatusPoster::start(part.client.clone(), live.view());
        nodes.push((part, live, poster));
    }
    eventually("all are listed", async || followers(&plane).await.len() == FOLLOWERS).await;
    let start = Instant::now();
    let reply = plane.call("PUT", "/v1/rules/tier/pro", "", r#"{"limit":60}"#).await;
    plane.in_force(&reply).await;
    for (part, ..) in &nodes {
        part.until_revision(2).await;
    }
    let took = start.elapsed();
    println!("{FOLLOWERS} followers: a publish is in force after {took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    // The first check of a thread takes longer.
    assert!(nodes.iter().all(|(part, ..)| !part.is_emergency()));
    let start = Instant::now();
    assert_eq!(plane.call("PUT", "/v1/emergency", "", r#"{"mode":"on"}"#).await.status, 200);
    for (part, ..) in &nodes {
        eventually("the emergency limit is on", async || part.is_emergency()).await;
    }
    println!("{FOLLOWERS} followers: the emergency limit is on after {:?}", start.elapsed());
    eventually("all tell the new revision", async || {
        let listed = followers(&plane).await;
        listed.len() == FOLLOWERS && listed.iter().all(|node| node["revision"] == 2)
    })
    .await;
}
