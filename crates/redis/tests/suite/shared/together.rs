//! Nodes that start and stop: how they are counted, what they share, and what is left of them.

use super::fleet::{Node, alone, nodes};
use std::time::Duration;
use tollgate_limiter::{Outcome, Request};
use tollgate_redis::RedisSettings;
use tollgate_testbed::{PATIENCE, RedisServer, eventually};

const RULES: &str = "rules: [{ id: one, key: api_key, limit: 100/h, on_store_failure: deny }]";
const BUSY: &str = "rules: [{ id: one, key: api_key, limit: 1000/h }]";

fn request() -> Request<'static> {
    Request { api_key: Some("shared"), endpoint: "/", ..Request::default() }
}

/// Spends all there is, and tells how much that was.
async fn spend(node: &Node, most: usize) -> usize {
    let mut spent = 0;
    while spent < most && node.check(&request()).await.0 {
        spent += 1;
    }
    spent
}

fn own_secret() -> RedisSettings {
    // However slow the machine is, the store decides.
    RedisSettings { timeout: PATIENCE / 10, ..RedisSettings::default() }
}

#[test]
fn nodes_see_each_other_come_and_go() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let two = nodes(&server.url(), RULES, 2).await;
        let third = Node::start(&server.url(), RULES).await;
        let count = |node: &Node| node.store.node_count();
        eventually("all three are known", async || two.iter().all(|node| count(node) == 3)).await;
        // One that says goodbye is gone with the next heartbeat.
        third.store.close().await;
        let gone = eventually("it is gone", async || two.iter().all(|node| count(node) == 2)).await;
        assert!(gone < Duration::from_secs(3), "{gone:?}");
        // One that just ends is missed after five seconds.
        let mut two = two.into_iter();
        let (stays, ends) = (two.next().unwrap(), two.next());
        drop(ends);
        let missed = eventually("it is missed", async || count(&stays) == 1).await;
        println!("goodbye known after {gone:?}, silence after {missed:?}");
        assert!((Duration::from_secs(3)..Duration::from_secs(8)).contains(&missed), "{missed:?}");
    });
}

#[test]
fn nodes_that_start_together_share_one_secret_and_keep_it_through_an_empty_restart() {
    alone(async || {
        let mut server = RedisServer::start(&[]);
        let url = server.url();
        let (one, two) = tokio::join!(
            Node::start_with(&url, RULES, own_secret()),
            Node::start_with(&url, RULES, own_secret())
        );
        assert!(one.check(&request()).await.0 && two.check(&request()).await.0);
        assert_eq!(server.cli(&["KEYS", "tg:{*"]).lines().count(), 1, "both count in one state");
        let (secret, key) = (server.cli(&["GET", "tg:secret"]), server.cli(&["KEYS", "tg:{*"]));
        assert_eq!(secret.len(), 32);

        server.restart_empty();
        let kept = async || server.cli(&["GET", "tg:secret"]) == secret;
        eventually("the secret is back", kept).await;
        eventually("counting goes on", async || !two.check(&request()).await.1).await;
        assert_eq!(server.cli(&["KEYS", "tg:{*"]), key, "in the same state");
        // A node that comes later finds the same.
        let three = Node::start_with(&url, RULES, own_secret()).await;
        assert_eq!(three.check(&request()).await, (true, false));
        assert_eq!(server.cli(&["KEYS", "tg:{*"]), key);
    });
}

#[test]
fn a_node_that_starts_beside_an_emptied_store_takes_the_secret_of_the_others() {
    alone(async || {
        let mut server = RedisServer::start(&[]);
        let url = server.url();
        let old = Node::start_with(&url, RULES, own_secret()).await;
        assert_eq!(old.check(&request()).await, (true, false));
        let (secret, key) = (server.cli(&["GET", "tg:secret"]), server.cli(&["KEYS", "tg:{*"]));
        server.restart_empty();
        let new = Node::start_with(&url, RULES, own_secret()).await;
        assert_eq!(new.check(&request()).await, (true, false));
        eventually("the old node counts", async || !old.check(&request()).await.1).await;
        assert_eq!(server.cli(&["GET", "tg:secret"]), secret);
        assert_eq!(server.cli(&["KEYS", "tg:{*"]), key, "both count in one state");
    });
}

/// The rest of the data is there, so that no node notices by its heartbeat that something was lost.
#[test]
fn a_secret_that_alone_is_lost_or_damaged_is_restored_for_a_node_that_starts() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let old = Node::start_with(&server.url(), RULES, own_secret()).await;
        assert_eq!(old.check(&request()).await, (true, false));
        let (secret, key) = (server.cli(&["GET", "tg:secret"]), server.cli(&["KEYS", "tg:{*"]));
        for damage in [&["DEL", "tg:secret"][..], &["SET", "tg:secret", "x"], &["LPUSH", "tg:secret", "x"]] {
            if damage[0] == "LPUSH" {
                server.cli(&["DEL", "tg:secret"]);
            }
            server.cli(damage);
            let new = Node::start_with(&server.url(), RULES, own_secret()).await;
            eventually("the store decides", async || !new.check(&request()).await.1).await;
            assert_eq!(server.cli(&["GET", "tg:secret"]), secret, "{damage:?}");
            assert_eq!(server.cli(&["KEYS", "tg:{*"]), key, "{damage:?}: both count in one state");
            new.store.close().await;
        }
    });
}

#[test]
fn a_store_that_is_not_there_at_the_start_is_used_once_it_is() {
    alone(async || {
        let mut server = RedisServer::start(&[]);
        server.kill();
        let node = Node::start_with(&server.url(), RULES, own_secret()).await;
        assert_eq!(node.check(&request()).await, (false, true), "as the policy says");
        server.restart_empty();
        let back = eventually("it is used", async || node.check(&request()).await == (true, false)).await;
        println!("used {back:?} after it came up");
        assert!(back < Duration::from_secs(5), "{back:?}");
    });
}

#[test]
fn a_node_that_stops_leaves_nothing_behind() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let two = nodes(&server.url(), BUSY, 2).await;
        // Busy enough to take ahead.
        let spent = spend(&two[0], 100).await;
        assert_eq!(spent, 100);
        two[0].store.close().await;
        let rest = spend(&two[1], 2_000).await;
        assert_eq!(spent + rest, 1_000, "what it held is there again at once");
    });
}

#[test]
fn what_the_store_refused_is_refused_at_once_and_nothing_else() {
    alone(async || {
        let server = RedisServer::start(&[]);
        let one = Node::start(&server.url(), RULES).await;
        assert!(one.limiter.refuse(&request()).is_none(), "nothing is known yet");
        assert_eq!(spend(&one, 1_000).await, 100);
        let calls = one.store.calls();
        let refusal = one.limiter.refuse(&request()).expect("the store has just refused it");
        let Outcome::Limited(standing) = refusal.outcome else { panic!("{refusal:?}") };
        assert!(
            standing.wait_us().is_some_and(|wait_us| (30_000_000..=36_100_000).contains(&wait_us)),
            "{standing:?}"
        );
        let other = Request { api_key: Some("another"), ..request() };
        assert!(one.limiter.refuse(&other).is_none());
        assert_eq!(one.store.calls(), calls, "no server was called");
        assert_eq!(one.check(&other).await, (true, false));
    });
}
