//! One request under several limits in different slots: it is charged against all of them or none.

use super::fleet::{Node, alone, beside_others, patient_nodes};
use super::node::patient;
use crate::setting::{PLENTY, SECOND_US, START_US, from, load, told};
use redis::Connection;
use smallvec::smallvec;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinSet;
use tollgate_core::lending::{Prefetch, StoredState};
use tollgate_core::limit::Limit;
use tollgate_core::rules::LoadedRules;
use tollgate_core::script::{self, ChargeCall, ReplyState, ScriptCall, ScriptReply};
use tollgate_core::state_address::StateField;
use tollgate_core::time::StoreTime;
use tollgate_limiter::{Clock, FailureSettings, Limiter, ManualClock, MemoryStore, Request};
use tollgate_redis::RedisStore;
use tollgate_testbed::{RedisCluster, RedisServer, eventually};

const USERS: usize = 6;
const ADDRESSES: usize = 3;
const ROUTES: [&str; 3] = ["/a", "/b", "/c"];

/// Whose limit a count belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Whose {
    User(usize),
    Address(usize),
    Route(usize),
}

/// A limit each, so low that all of them refuse at some time, and so slow that nothing comes back by itself.
fn rules(algorithm: &str, consistency: &str) -> String {
    format!(
        "
defaults: {{ algorithm: {algorithm}, consistency: {consistency} }}
routes: [/a, /b, /c]
rules:
  - {{ id: user, key: user, limit: 40/day }}
  - {{ id: address, key: ip, limit: 90/day }}
  - {{ id: route, key: route, limit: 70/day }}
"
    )
}

/// What is used of each state in the store: the count of a window, or what is missing of a bucket's tokens.
fn used(cluster: &RedisCluster, loaded: &LoadedRules) -> Vec<u32> {
    let mut used: Vec<u32> = cluster.primaries.iter().flat_map(|server| used_at(server, loaded)).collect();
    used.retain(|used| *used > 0);
    used.sort_unstable();
    used
}

fn used_at(server: &RedisServer, loaded: &LoadedRules) -> Vec<u32> {
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("tg:{*").query(&mut connection).unwrap();
    let mut used = Vec::new();
    for key in keys {
        let fields: Vec<Vec<u8>> = redis::cmd("HKEYS").arg(&key).query(&mut connection).unwrap();
        used.extend(fields.iter().map(|field| used_of(&mut connection, loaded, &key, field)));
    }
    used
}

/// Asks for nothing, and so hears how things stand.
fn used_of(connection: &mut Connection, loaded: &LoadedRules, key: &str, bytes: &[u8]) -> u32 {
    let is_of = |limit: &Limit| bytes.starts_with(StateField::new(limit.state_id, None).as_bytes());
    let (_, limit) = loaded.rules.limits().find(|(_, limit)| is_of(limit)).unwrap();
    let route = bytes.get(5..).filter(|route| !route.is_empty());
    let route =
        route.map(|route| u64::from_be_bytes([route[0], route[1], route[2], route[3], route[4], 0, 0, 0]));
    let field = StateField::new(limit.state_id, route);
    let (account, now) = account(connection, limit, key, field);
    // What a node holds is taken, but not used: it has to be back as well.
    limit.quota - account.available(limit.meter(), now)
}

/// The state of `limit` in `field` of `key`, and the time at the store.
fn account(
    connection: &mut Connection,
    limit: &Limit,
    key: &str,
    field: StateField,
) -> (StoredState, StoreTime) {
    let (meter, reports) = (*limit.meter(), smallvec![]);
    let charge =
        ChargeCall { meter, field, enforced: true, as_lent: false, prefetch: Prefetch::NONE, reports };
    let ask = ScriptCall { runs: smallvec![], charges: smallvec![charge] };
    let mut command = redis::cmd("EVAL");
    command.arg(script::source()).arg(1).arg(key).arg(script::arguments(
        script::CallTime::Server,
        false,
        [&ask].into_iter(),
    ));
    let parts: Vec<Vec<u8>> = command.query(connection).unwrap();
    let now = script::read_time(&parts[0]).unwrap();
    let answer = ScriptReply::decode(&ask, now, &parts[1]).unwrap();
    match answer.charges[0].state {
        ReplyState::Stored(account) => (account, now),
        ReplyState::Log(_) => panic!("{limit:?} is kept as a log"),
    }
}

/// The state of the only client under the only limit, and the time at the store.
pub fn look(server: &RedisServer, loaded: &LoadedRules) -> (StoredState, StoreTime) {
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("tg:{*").query(&mut connection).unwrap();
    let (_, limit) = loaded.rules.limits().next().unwrap();
    let mut account = account(&mut connection, limit, &keys[0], StateField::new(limit.state_id, None));
    account.0.apply_reports(limit.meter(), account.1, &[]);
    account
}

/// All clients request everything at once, on two nodes.
async fn ask_for_everything(nodes: &[Arc<Node>], seed: u64) -> (BTreeMap<Whose, u32>, usize) {
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let node = Arc::clone(&nodes[task % nodes.len()]);
        tasks.spawn(async move {
            let mut rng = fastrand::Rng::with_seed(seed + task as u64);
            let (mut admitted, mut refused) = (Vec::new(), 0);
            for _ in 0..150 {
                let (user, address, route) = (rng.usize(..USERS), rng.usize(..ADDRESSES), rng.usize(..3));
                let name = format!("user-{user}");
                let request = Request {
                    user: Some(&name),
                    ip: Some(format!("192.0.2.{address}").parse().unwrap()),
                    endpoint: ROUTES[route],
                    ..Request::default()
                };
                let (allowed, degraded) = node.check(&request).await;
                assert!(!degraded, "the store answers");
                if allowed {
                    admitted.extend([Whose::User(user), Whose::Address(address), Whose::Route(route)]);
                } else {
                    refused += 1;
                }
            }
            (admitted, refused)
        });
    }
    let (mut counts, mut refusals) = (BTreeMap::new(), 0);
    while let Some(ended) = tasks.join_next().await {
        let (admitted, refused) = ended.unwrap();
        admitted.into_iter().for_each(|whose| *counts.entry(whose).or_default() += 1);
        refusals += refused;
    }
    (counts, refusals)
}

async fn all_or_nothing(algorithm: &str, consistency: &str) {
    let cluster = RedisCluster::start(3, 0);
    let text = rules(algorithm, consistency);
    let (nodes, loaded) = (patient_nodes(&cluster.url(), &text, 2).await, load(&text));
    let (counts, refusals) = ask_for_everything(&nodes, 1).await;
    assert!(refusals > 200, "{refusals}");
    let mut expected: Vec<u32> = counts.values().copied().collect();
    expected.sort_unstable();
    let mut found = Vec::new();
    let back = eventually(&format!("all is back under {algorithm}, {consistency}"), async || {
        found = used(&cluster, &loaded);
        found == expected
    })
    .await;
    println!("{algorithm}, {consistency}: {refusals} refusals, all back after {back:?}");
}

#[test]
fn a_refusal_leaves_the_other_limits_as_they_were() {
    alone(async || {
        all_or_nothing("fixed_window", "strict").await;
        all_or_nothing("fixed_window", "leased").await;
        all_or_nothing("token_bucket", "strict").await;
        all_or_nothing("token_bucket", "leased").await;
    });
}

/// A log stands beside the hash of its client, and gives back what it counted last.
#[test]
fn a_refusal_leaves_a_log_as_it_was() {
    const RULES: &str = "
rules:
  - { id: user, key: user, limit: 3/day }
  - { id: address, key: ip, limit: 100/day, algorithm: sliding_window_log }
";
    alone(async || {
        let cluster = RedisCluster::start(3, 0);
        let nodes = patient_nodes(&cluster.url(), RULES, 2).await;
        let (mut admitted, mut refused) = (0, 0);
        for number in 0..12 * 5 {
            let user = format!("user-{}", number % 12);
            // One node spends what the users have. The other does not know: the log counts before it hears.
            let node = &nodes[number / (12 * 3)];
            let ip = Some("192.0.2.1".parse().unwrap());
            let request = Request { user: Some(&user), ip, endpoint: "/", ..Request::default() };
            match node.check(&request).await {
                (true, false) => admitted += 1,
                (false, false) => refused += 1,
                decision => panic!("{decision:?}"),
            }
        }
        assert_eq!((admitted, refused), (36, 24));
        eventually("the log holds what passed", async || {
            let logged: u32 = cluster.primaries.iter().map(logged).sum();
            logged == admitted
        })
        .await;
    });
}

/// The costs in all logs of a server: the last four bytes of each entry.
fn logged(server: &RedisServer) -> u32 {
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("tg:{*}:*").query(&mut connection).unwrap();
    let entries = keys.iter().flat_map(|key| {
        let entries: Vec<Vec<u8>> =
            redis::cmd("LRANGE").arg(key).arg(0).arg(-1).query(&mut connection).unwrap();
        entries
    });
    entries.map(|entry| u32::from_be_bytes(*entry.last_chunk().unwrap())).sum()
}

/// A node whose clock, and that of the store, a test moves.
struct NodeOnClocks {
    limiter: Limiter,
    store: RedisStore,
    clock: ManualClock,
}

impl NodeOnClocks {
    async fn start(server: &RedisServer, text: &str, time: &ManualClock) -> Self {
        let clock = ManualClock::new(START_US);
        let url = server.url().parse().unwrap();
        let opening = RedisStore::open_on_clock(&url, patient(), clock.clone(), time.clone());
        let store = opening.await.unwrap();
        let limiter = Limiter::new(MemoryStore::new(PLENTY), Clock::Manual(time.clone()))
            .sharing(store.shared_store(), FailureSettings::default());
        let loaded = load(text);
        limiter.install(loaded.rules, loaded.lists).unwrap();
        Self { limiter, store, clock }
    }

    /// Which rule refuses a request and for how many seconds, if one does; and whether the store was asked.
    async fn ask(&self, user: &str, address: &str) -> (Option<(String, u64)>, bool) {
        let calls = self.store.calls();
        let request = Request { user: Some(user), ip: from(address), endpoint: "/", ..Request::default() };
        let decision = self.limiter.check(&request).unwrap().decision().await;
        assert!(!decision.degraded, "{decision:?}");
        self.store.settled().await;
        let told = told(&decision).map(|(wait_us, rule)| (rule, wait_us / SECOND_US));
        (told, self.store.calls() > calls)
    }
}

/// The wait that is promised is the longest of those that are known, and what is not known is not asked for.
#[test]
fn refusals_by_several_limits_promise_the_longest_wait_that_is_known() {
    const RULES: &str = "
defaults: { consistency: strict, on_store_failure: deny }
rules:
  - { id: user, key: user, limit: 1/min }
  - { id: address, key: ip, limit: 1/h }
";
    beside_others(async || {
        let server = RedisServer::start(&[]);
        let time = ManualClock::new(START_US);
        let one = NodeOnClocks::start(&server, RULES, &time).await;
        let other = NodeOnClocks::start(&server, RULES, &time).await;
        // The other node uses up limits of which this one knows nothing.
        assert_eq!(other.ask("ben", "192.0.2.2").await, (None, true));
        assert_eq!(one.ask("ann", "192.0.2.1").await, (None, true));
        let (minute, hour) = (Some(("user".to_owned(), 60)), Some(("address".to_owned(), 3_600)));
        let forget = || one.clock.advance_us(10 * SECOND_US);
        let table = [
            ("both are asked", true, "ann", "192.0.2.1", &hour, true),
            ("both are cached", false, "ann", "192.0.2.1", &hour, false),
            ("the shorter is cached, the longer unknown", false, "ann", "192.0.2.2", &minute, false),
            ("the longer is cached, the shorter unknown", false, "ben", "192.0.2.1", &hour, false),
            ("both are asked again", true, "ann", "192.0.2.2", &hour, true),
            ("now the longer is known as well", false, "ann", "192.0.2.2", &hour, false),
        ];
        for (what, forgets, user, address, expected, asks) in table {
            if forgets {
                forget();
            }
            assert_eq!(one.ask(user, address).await, (expected.clone(), asks), "{what}");
        }
        // A quarter of a minute later the shorter wait is shorter by that, cached or not.
        for is_new in [true, false] {
            if is_new {
                time.advance_us(15 * SECOND_US);
                forget();
            }
            assert_eq!(one.ask("ben", "192.0.2.3").await, (Some(("user".to_owned(), 45)), is_new));
        }
    });
}
