//! One request under several limits in different slots: it is charged against all of them or none.

use super::fleet::{Node, alone, patient_nodes};
use crate::setting::load;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::task::JoinSet;
use tollgate_core::limit::Limit;
use tollgate_core::place::Field;
use tollgate_core::rules::Loaded;
use tollgate_limiter::Request;
use tollgate_testbed::{Cluster, Server, eventually};

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
fn used(cluster: &Cluster, loaded: &Loaded) -> Vec<u32> {
    let mut used: Vec<u32> = cluster.primaries.iter().flat_map(|server| used_at(server, loaded)).collect();
    used.retain(|used| *used > 0);
    used.sort_unstable();
    used
}

fn used_at(server: &Server, loaded: &Loaded) -> Vec<u32> {
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("tg:{*").query(&mut connection).unwrap();
    let states = keys.iter().flat_map(|key| {
        let fields: Vec<(Vec<u8>, Vec<u8>)> = redis::cmd("HGETALL").arg(key).query(&mut connection).unwrap();
        fields
    });
    states
        .map(|(field, state)| {
            // A format, a class, an instant of 7 bytes, a grain of 2, then the whole tokens or the count.
            let number = u32::from_be_bytes(state[11..15].try_into().unwrap());
            let is_of = |limit: &Limit| field.starts_with(Field::new(limit.identity, None).as_bytes());
            let (_, limit) = loaded.rules.limits().find(|(_, limit)| is_of(limit)).unwrap();
            if limit.meter().bucket().is_some() { limit.quota - number } else { number }
        })
        .collect()
}

/// Everybody asks for everything at once, on two nodes.
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
    let cluster = Cluster::start(3, 0);
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
