//! The walks of `walks.rs` on Redis: every decision, what is left, the wait and the reset are those of
//! the virtual node, to the microsecond. Time is the test's, at the store as well; only lifetimes are the
//! server's, and virtual time runs ahead of it: what the server has forgotten was fresh long ago.

use super::fleet::rounds;
use crate::conformance::{key_states, parts, walks};
use crate::on_redis::on_redis;
use crate::setting::Setting;
use std::sync::atomic::{AtomicU32, Ordering};
use tollgate_testbed::{RedisCluster, RedisServer};

/// Engines on the store at `url`, each under a prefix of its own.
fn engines(url: &str) -> impl Fn(&str) -> Setting {
    let number = AtomicU32::new(0);
    move |text| {
        let number = number.fetch_add(1, Ordering::Relaxed);
        on_redis(url, &format!("walk{number}:"), text)
    }
}

/// Each step is a round trip or more. `TOLLGATE_ROUNDS` lengthens the walks.
fn walk_on(url: &str) {
    let (engine, rounds) = (engines(url), rounds() as usize);
    walks::walk_everything(&engine, 2_000 * rounds);
    walks::walk_changing_rules(&engine, 4_000 * rounds);
    walks::walk_a_clock_that_goes_back(&engine, 10, &walks::APART);
    key_states::walk_readings(&engine, 1_000 * rounds);
    key_states::walk_resets(&engine);
    key_states::resets_end_cooldowns(&engine);
    parts::walk_parts(&engine, 750 * rounds);
    parts::walk_algorithms(&engine);
    parts::numbers_of_a_key_may_change(&engine);
}

#[test]
fn one_server_decides_as_the_embedded_store_does() {
    let server = RedisServer::start(&[]);
    walk_on(&server.url());
    walks::walk_the_shipped_files(&engines(&server.url()), 2_000);
}

#[test]
fn a_cluster_decides_as_the_embedded_store_does() {
    let cluster = RedisCluster::start(3, 0);
    walk_on(&cluster.url());
}
