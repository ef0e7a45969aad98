//! A client disconnects while the store decides its request: what becomes of the tokens that were taken for it.

use super::fleet::{Node, alone};
use super::node::patient;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tollgate_limiter::Request;
use tollgate_testbed::judging::could_not_judge;
use tollgate_testbed::{NetworkMode, NetworkProxy, RedisServer, eventually};

const LIMIT: u32 = 10;
/// How long the reply is under way: in this time the client goes away.
const DELAY: Duration = Duration::from_millis(200);

/// The algorithm, the consistency, how many keys a request has, and how many of ten requests pass beside the one whose
/// client has gone.
const CASES: [(&str, &str, usize, u32); 10] = [
    ("token_bucket", "leased", 1, LIMIT - 1),
    ("token_bucket", "strict", 1, LIMIT - 1),
    ("fixed_window", "leased", 1, LIMIT),
    ("fixed_window", "strict", 1, LIMIT),
    ("sliding_window_counter", "leased", 1, LIMIT),
    ("sliding_window_log", "leased", 1, LIMIT),
    ("token_bucket", "leased", 2, LIMIT),
    ("token_bucket", "strict", 2, LIMIT),
    ("fixed_window", "leased", 2, LIMIT),
    ("sliding_window_log", "leased", 2, LIMIT),
];

fn rules(algorithm: &str, consistency: &str, keys: usize) -> String {
    let rules = ["{ id: user, key: user, limit: 10/day }", "{ id: address, key: ip, limit: 10/day }"];
    let defaults =
        format!("{{ algorithm: {algorithm}, consistency: {consistency}, on_store_failure: deny }}");
    format!("defaults: {defaults}\nrules: [{}]", rules[..keys].join(", "))
}

/// How many states the store has.
fn states(server: &RedisServer) -> usize {
    let keys = tokio::task::block_in_place(|| server.cli(&["KEYS", "tg:{*"]));
    // A log stands beside a hash that may be empty.
    keys.lines().filter_map(|key| key.split('}').next()).collect::<std::collections::BTreeSet<_>>().len()
}

async fn disconnect(algorithm: &str, consistency: &str, keys: usize, expected: u32) {
    let what = format!("{algorithm}, {consistency}, {keys} keys");
    let server = RedisServer::start(&[]);
    let proxy = NetworkProxy::start(&server.address()).await;
    let node = Node::start_with(&proxy.url(), &rules(algorithm, consistency, keys), patient()).await;
    let ip = Some("192.0.2.1".parse().unwrap());
    let request = Request { user: Some("alice"), ip, endpoint: "/", ..Request::default() };
    let others = states(&server);
    proxy.set(NetworkMode::Delay(DELAY));
    {
        let mut check = pin!(node.check(&request));
        let mut is_decided = async || {
            std::future::poll_fn(|context| Poll::Ready(check.as_mut().poll(context).is_ready())).await
        };
        assert!(!is_decided().await, "{what}: decided without a call");
        eventually("the store has charged the request", async || states(&server) == others + keys).await;
        if is_decided().await {
            could_not_judge(format!("{what}: the reply has come before the client went"));
        }
    }
    proxy.set(NetworkMode::Pass);
    // The reply is still under way: after it the next call is answered at once.
    let mut admitted = 0;
    let mut ask = async || {
        let (is_allowed, is_degraded) = node.check(&request).await;
        assert!(!is_degraded, "{what}: the store answers");
        admitted += u32::from(is_allowed);
        admitted
    };
    eventually(&format!("{what}: {expected} are admitted"), async || ask().await >= expected).await;
    node.store.settled().await;
    for _ in 0..LIMIT {
        assert_eq!(ask().await, expected, "{what}");
    }
    node.store.close().await;
}

#[test]
fn a_request_whose_client_has_gone_is_charged_only_under_one_bucket() {
    alone(async || {
        for (algorithm, consistency, keys, expected) in CASES {
            disconnect(algorithm, consistency, keys, expected).await;
        }
    });
}
