//! Live figures of several nodes on a real Redis.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tollgate_control::RuleStatus;
use tollgate_control::live::{
    FleetNodes, LiveEventKind, LiveMonitor, LiveParts, LiveRange, LiveSettings, LiveView, NodeProfile,
    NodeState, NodeStatus,
};
use tollgate_core::rules;
use tollgate_limiter::{Clock, FailureSettings, Limiter, MemoryStore, Request};
use tollgate_redis::{RedisSettings, RedisStore};
use tollgate_testbed::{RedisServer, eventually};

const RULES: &str = "rules: [{ id: api, key: user, limit: 5/h }]";
const SETTINGS: LiveSettings = LiveSettings {
    status_interval: Duration::from_millis(200),
    status_kept: Duration::from_secs(1),
    always_follow: 16,
};

struct LiveNode {
    limiter: Arc<Limiter>,
    store: RedisStore,
    monitor: LiveMonitor,
}

impl LiveNode {
    async fn start(server: &RedisServer, name: &str, live: LiveSettings) -> Self {
        let settings = RedisSettings { timeout: Duration::from_secs(2), ..RedisSettings::default() };
        let store =
            RedisStore::open(&server.url().parse().unwrap(), settings, Clock::system()).await.unwrap();
        let limiter = Limiter::new(MemoryStore::new(1 << 20), Clock::system())
            .sharing(store.shared_store(), FailureSettings::default());
        let loaded = rules::load("rules.yaml", RULES).unwrap();
        limiter.install(loaded.rules, loaded.lists).unwrap();
        let limiter = Arc::new(limiter);
        let parts = LiveParts {
            profile: NodeProfile {
                name: format!("node-{name}"),
                address: name.to_owned(),
                version: "1.0.0".to_owned(),
            },
            limiter: Arc::clone(&limiter),
            store: Some(store.observer()),
            rules: watch::channel(RuleStatus { revision: 7, ..RuleStatus::default() }).1,
            gateway: Arc::default(),
        };
        let monitor = LiveMonitor::start(parts, live).unwrap();
        Self { limiter, store, monitor }
    }

    fn view(&self) -> LiveView {
        self.monitor.view()
    }

    /// Sends requests, and returns how many were allowed and limited.
    async fn send(&self, user: &str, requests: u64) -> (u64, u64) {
        let (mut allowed, mut limited) = (0, 0);
        for _ in 0..requests {
            let request = Request { user: Some(user), endpoint: "/", ..Request::default() };
            let decision = self.limiter.check(&request).unwrap().decision().await;
            assert!(!decision.degraded);
            if decision.allowed() { allowed += 1 } else { limited += 1 }
        }
        (allowed, limited)
    }
}

/// The decisions of all points.
fn totals(view: &LiveView) -> (u64, u64) {
    let report = view.report(LiveRange::FiveMinutes);
    let sum =
        |of: fn(&tollgate_control::live::LivePoint) -> Option<u64>| report.points.iter().filter_map(of).sum();
    (sum(|point| point.allowed), sum(|point| point.limited))
}

fn addresses(nodes: &FleetNodes, state: NodeState) -> BTreeSet<&str> {
    let listed = nodes.nodes.iter().filter(|node| node.state == state);
    listed.map(|node| node.status.address.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_figures_of_three_nodes_are_the_sum_of_what_was_sent() {
    let server = RedisServer::start(&[]);
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(LiveNode::start(&server, name, SETTINGS).await);
    }
    eventually("all nodes know each other", async || {
        let mut known = 0;
        for node in &nodes {
            let listed = node.view().nodes().await;
            let healthy = addresses(&listed, NodeState::Healthy) == BTreeSet::from(["a", "b", "c"]);
            known += usize::from(
                healthy && listed.complete && node.view().report(LiveRange::FiveMinutes).nodes == 3,
            );
        }
        known == 3
    })
    .await;
    let (mut allowed, mut limited) = (0, 0);
    for (number, node) in nodes.iter().enumerate() {
        for user in ["ann", "bob"] {
            let sent = node.send(user, 40 + number as u64).await;
            (allowed, limited) = (allowed + sent.0, limited + sent.1);
        }
    }
    assert_eq!((allowed, allowed + limited), (10, 2 * (40 + 41 + 42)), "5 of each user");
    for node in &nodes {
        eventually("the sum is there", async || totals(&node.view()) == (allowed, limited)).await;
        let report = node.view().report(LiveRange::FiveMinutes);
        let rule = &report.rules[0];
        assert_eq!((rule.id.as_str(), rule.allowed, rule.limited), ("api", allowed, limited));
        assert!(report.points.iter().any(|point| point.store_p99_us.is_some()));
        // The first ten keys of each node, so all: bounds and counts agree, whichever node is asked.
        let top = node.view().top_of_fleet(5).await;
        let mut keys: Vec<_> =
            top.limited.iter().map(|key| (key.name.as_str(), key.count, key.at_most)).collect();
        keys.sort_unstable();
        let of_each: Vec<u64> = keys.iter().map(|(_, count, _)| *count).collect();
        assert_eq!(of_each.iter().sum::<u64>(), limited, "{keys:?}");
        assert_eq!(keys.iter().map(|(name, ..)| *name).collect::<Vec<_>>(), ["ann", "bob"], "each once");
    }
    let listed = nodes[0].view().nodes().await;
    assert!(listed.nodes[0].is_self && listed.nodes[0].status.address == "a");
    assert!(listed.nodes.iter().all(|node| node.status.revision == 7 && node.status.shards.len() == 1));
    let sum: u64 = listed.nodes.iter().map(|node| node.status.counters.groups.total()).sum();
    assert_eq!(sum, allowed + limited);

    // A node that does not tell its status any more, then one that is gone.
    let lost = nodes.pop().unwrap();
    lost.monitor.stop().await;
    let view = nodes[0].view();
    eventually("it has no status", async || {
        let listed = view.nodes().await;
        listed.nodes.len() == 3 && addresses(&listed, NodeState::NoStatus).len() == 1
    })
    .await;
    let LiveNode { store, .. } = lost;
    drop(store);
    let start = Instant::now();
    eventually("it disappears", async || view.nodes().await.nodes.len() == 2).await;
    assert!(start.elapsed() < Duration::from_secs(15));
    eventually("that is an event", async || {
        let events = view.report(LiveRange::FiveMinutes).events;
        events.iter().any(|event| event.kind == LiveEventKind::NodeLeft)
    })
    .await;
    assert_eq!(totals(&view), (allowed, limited), "its decisions stay counted");
}

fn calls_of(server: &RedisServer, command: &str) -> u64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_nodes_are_listed_with_a_few_commands() {
    const MANY: usize = 200;
    let server = RedisServer::start(&[]);
    // It reads only when it is asked.
    let live = LiveSettings { always_follow: 0, ..SETTINGS };
    let node = LiveNode::start(&server, "real", live).await;
    let view = node.view();
    let key = server.cli(&["KEYS", "tg:alive:*"]);
    let tag = key.split(['{', '}']).nth(1).unwrap().to_owned();
    let ids: Vec<String> = (0..MANY).map(|number| format!("{number:016x}")).collect();
    // Heartbeats that will be recent for a while, and statuses of all but one.
    let time = server.cli(&["TIME"]);
    let (seconds, _) = time.split_once('\n').unwrap();
    let seen = format!("{}000000", seconds.trim().parse::<u64>().unwrap() + 4);
    let mut command = vec!["ZADD".to_owned(), key.clone()];
    ids.iter().for_each(|id| command.extend([seen.clone(), id.clone()]));
    server.cli(&command.iter().map(String::as_str).collect::<Vec<_>>());
    let mut command = vec!["MSET".to_owned()];
    for (number, id) in ids.iter().enumerate().skip(1) {
        let mut status = NodeStatus { id: id.clone(), uptime_seconds: 1_000, ..NodeStatus::default() };
        status.counters.groups.allowed = number as u64;
        command.extend([format!("tg:status:{{{tag}}}:{id}"), serde_json::to_string(&status).unwrap()]);
    }
    server.cli(&command.iter().map(String::as_str).collect::<Vec<_>>());
    eventually("the node knows of all", async || node.store.node_count() as usize == MANY + 1).await;

    let (before, start) = (calls_of(&server, "mget"), Instant::now());
    let mut questions = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let view = view.clone();
        questions.spawn(async move { view.nodes().await });
    }
    let answers = questions.join_all().await;
    let (took, calls) = (start.elapsed(), calls_of(&server, "mget") - before);
    println!("{} nodes in {took:?}, {calls} MGET for {} questions", MANY + 1, answers.len());
    assert!(took < Duration::from_secs(3), "{took:?}");
    // One reading is 9 calls. Another may be due at the same time.
    assert!((9..=27).contains(&calls), "{calls} calls of MGET");
    for answer in &answers {
        assert_eq!(answer.nodes.len(), MANY + 1);
        let silent: Vec<_> = answer.nodes.iter().filter(|node| node.state == NodeState::NoStatus).collect();
        assert_eq!(silent.iter().map(|node| node.status.id.as_str()).collect::<Vec<_>>(), [ids[0].as_str()]);
    }
}

#[tokio::test]
async fn a_node_without_others_shows_itself_and_its_followers() {
    let limiter = Arc::new(Limiter::new(MemoryStore::new(1 << 20), Clock::system()));
    let loaded = rules::load("rules.yaml", RULES).unwrap();
    limiter.install(loaded.rules, loaded.lists).unwrap();
    let parts = LiveParts {
        profile: NodeProfile::default(),
        limiter: Arc::clone(&limiter),
        store: None,
        rules: watch::channel(RuleStatus::default()).1,
        gateway: Arc::default(),
    };
    let monitor = LiveMonitor::start(parts, SETTINGS).unwrap();
    let view = monitor.view();
    view.set_admin("http://127.0.0.1:9090".to_owned());
    let mut messages = view.subscribe();
    view.reporter().report(LiveEventKind::Published, "revision 2 was published");
    for _ in 0..7 {
        limiter.check(&Request { user: Some("ann"), endpoint: "/", ..Request::default() }).unwrap();
    }
    eventually("the decisions are shown", async || totals(&view) == (5, 2)).await;
    let mut kinds = BTreeSet::new();
    while let Ok(message) = messages.try_recv() {
        kinds.insert(match message {
            tollgate_control::live::LiveMessage::Point(_) => "point".to_owned(),
            tollgate_control::live::LiveMessage::Event(event) => event.text.clone(),
        });
    }
    let expected = ["point", "revision 0 is in force", "revision 2 was published"].map(str::to_owned);
    assert_eq!(kinds, BTreeSet::from(expected));
    let listed = view.nodes().await;
    assert!(listed.complete && listed.nodes.len() == 1 && listed.nodes[0].is_self);
    assert_eq!(listed.nodes[0].status.admin.as_deref(), Some("http://127.0.0.1:9090"));

    let status = NodeStatus {
        id: "f1".to_owned(),
        address: "edge:8000".to_owned(),
        uptime_seconds: 50,
        ..NodeStatus::default()
    };
    view.take_in_posted("f1", status.clone()).unwrap();
    assert!(view.take_in_posted("f2", status).is_err(), "it is of another node");
    let own = listed.nodes[0].status.clone();
    assert!(view.take_in_posted(&own.id.clone(), own).is_err(), "it is this node");
    let listed = view.nodes().await;
    let follower = &listed.nodes[1];
    assert!(follower.follower && follower.status.address == "edge:8000");
    let json = serde_json::to_value(follower).unwrap();
    assert_eq!(
        (&json["self"], &json["state"], &json["id"]),
        (&false.into(), &"healthy".into(), &"f1".into())
    );
    monitor.stop().await;
}
