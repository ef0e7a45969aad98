//! What breaks under load, one thing at a time. In each case: no decision takes longer than the store's
//! timeout, none hangs, what is decided without the store follows the rule's policy, and the store's own
//! decisions exceed a limit by no more than the fault explains.

use super::fleet::{Findings, Fleet, Policy, campaign, client_keys, logged_campaign};
use crate::log::Log;
use std::collections::BTreeMap;
use std::time::Duration;
use tollgate_redis::StoreErrorKind;
use tollgate_testbed::judging::could_not_judge;
use tollgate_testbed::{NetworkMode, NetworkProxy, RedisCluster, RedisServer, SentinelGroup, eventually};

const NODES: usize = 3;
const CAPACITY: i64 = 30;
const ALL: [Policy; 4] = [Policy::Allow, Policy::Deny, Policy::Local, Policy::Strict];
/// Credit of all nodes for one client: each may hold what is refilled in 100 ms.
const MOST_CREDIT: i64 = 2 * NODES as i64;
/// One byte in a refusal makes it a pass, and then nothing tells that it was damaged. That is one in some ten thousand
/// replies.
const MISREAD: i64 = 2;
/// How long a server stands still.
const FROZEN: Duration = Duration::from_secs(6);
/// A replica on the same machine is hardly ever further behind.
const REPLICA_LAG_US: u64 = 100_000;

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// What must hold after an outage that began at `fault_us`, and after which all was well again at `back_us`.
fn assert_outage(what: &str, found: &Findings, fault_us: u64, back_us: u64) {
    println!("{what}: {found}");
    println!("{what}: given up after {:?}", found.opened(fault_us));
    found.assert_quick();
    found.assert_policies();
    found.assert_opened(fault_us);
    // What was under way when the fault came is lost with it.
    found.assert_well(0..fault_us.saturating_sub(60_000));
    found.assert_well(back_us + 20_000..u64::MAX);
    assert!(found.degraded(fault_us..back_us) > 0, "nothing was decided without the store");
}

/// After a failover the store may have forgotten what no replica had heard of: what each client got last, and what nodes
/// held for it.
fn assert_lost_writes(found: &Findings, fault_us: u64) {
    let fresh = found.fresh(fault_us, REPLICA_LAG_US);
    for ((excess, fresh), client) in found.excesses().into_iter().zip(fresh).zip(&found.clients) {
        let held = if client.policy == Policy::Strict { 0 } else { MOST_CREDIT };
        let lost = (fresh + held).min(CAPACITY);
        assert!(excess <= lost, "{client:?}: {excess} over, {fresh} and {held} may be lost");
    }
}

fn is_primary(server: &RedisServer) -> bool {
    server.cli(&["INFO", "replication"]).contains("role:master")
}

/// Waits for the failover and then for the nodes; tells how long those took, and when all was well.
async fn until_failed_over(fleet: &Fleet, replica: &RedisServer, what: &str, fault_us: u64) -> u64 {
    eventually("the replica takes over", async || tokio::task::block_in_place(|| is_primary(replica))).await;
    let failover_us = fleet.now_us();
    let back_us = fleet.until_well().await;
    let (failover, back) = (failover_us - fault_us, back_us.saturating_sub(failover_us));
    println!("{what}: failover after {} ms, back {} ms later", failover / 1_000, back / 1_000);
    assert!(back < 5_000_000, "back {back} µs after the failover");
    back_us
}

#[test]
fn the_primary_is_killed_under_sentinel() {
    campaign(async || {
        let mut servers = SentinelGroup::start(1);
        let fleet = Fleet::start(&servers.url(), NODES).await;
        let fault_us = fleet.now_us();
        servers.servers[0].kill();
        fleet.until_away().await;
        let what = "kill -9 under Sentinel";
        let back_us = until_failed_over(&fleet, &servers.servers[1], what, fault_us).await;
        fleet.wait(ms(1_000)).await;
        let found = fleet.end().await;
        assert_outage(what, &found, fault_us, back_us);
        assert_lost_writes(&found, fault_us);
    });
}

/// The slot of each client.
fn slots(server: &RedisServer) -> Vec<usize> {
    let slot_of = |key: &String| server.cli(&["CLUSTER", "KEYSLOT", key]).parse().unwrap();
    client_keys().iter().map(slot_of).collect()
}

/// Which of three primaries serves a slot.
fn home(slot: usize) -> usize {
    (0..3).rfind(|number| 16_384 * number / 3 <= slot).unwrap()
}

/// Clients of the shards that nothing happened to never notice.
fn assert_others_unaffected(found: &Findings, cluster: &RedisCluster, broken: usize) {
    let slots = slots(&cluster.primaries[(broken + 1) % 3]);
    let others = found.entries.iter().filter(|entry| home(slots[entry.client]) != broken);
    let (sent, degraded) = found.count_undisturbed(others);
    assert!(sent > 1_000 && degraded == 0, "{degraded} of {sent} degraded on other shards");
}

#[test]
fn a_primary_of_a_cluster_is_killed() {
    campaign(async || {
        let mut cluster = RedisCluster::start(3, 1);
        let fleet = Fleet::start(&cluster.url(), NODES).await;
        let fault_us = fleet.now_us();
        cluster.primaries[0].kill();
        fleet.until_away().await;
        let what = "kill -9 in a Cluster";
        let back_us = until_failed_over(&fleet, &cluster.replicas[0], what, fault_us).await;
        fleet.wait(ms(1_000)).await;
        let found = fleet.end().await;
        assert_outage(what, &found, fault_us, back_us);
        assert_lost_writes(&found, fault_us);
        assert_others_unaffected(&found, &cluster, 0);
    });
}

#[test]
fn a_primary_of_a_cluster_freezes() {
    campaign(async || {
        let cluster = RedisCluster::start(3, 1);
        let fleet = Fleet::start(&cluster.url(), NODES).await;
        let fault_us = fleet.now_us();
        cluster.primaries[1].freeze();
        fleet.until_away().await;
        let what = "SIGSTOP in a Cluster";
        let back_us = until_failed_over(&fleet, &cluster.replicas[1], what, fault_us).await;
        fleet.wait(FROZEN.saturating_sub(Duration::from_micros(fleet.now_us() - fault_us))).await;
        // Back from the past, it must not be believed.
        cluster.primaries[1].thaw();
        fleet.wait(ms(1_500)).await;
        let found = fleet.end().await;
        assert_outage(what, &found, fault_us, back_us);
        assert_lost_writes(&found, fault_us);
        assert_others_unaffected(&found, &cluster, 1);
    });
}

/// `length` of a fault that begins with `begin` and ends with `end`, on a server of which nothing is lost.
async fn outage(what: &str, url: &str, length: Duration, begin: impl Fn(), end: impl Fn()) -> Findings {
    let fleet = Fleet::start(url, NODES).await;
    let fault_us = fleet.now_us();
    begin();
    fleet.until_away().await;
    fleet.wait(length).await;
    let ended_us = fleet.now_us();
    end();
    let back_us = fleet.until_well().await;
    println!("{what}: back after {} ms", (back_us - ended_us) / 1_000);
    assert!(back_us - ended_us < 5_000_000, "back after {} µs", back_us - ended_us);
    fleet.wait(ms(1_000)).await;
    let found = fleet.end().await;
    assert_outage(what, &found, fault_us, back_us);
    // What a policy let pass may have been paid for as well, but nothing is admitted that was not there.
    assert!(found.excess(&ALL) <= 0, "{} over-admitted", found.excess(&ALL));
    found
}

#[test]
fn a_server_freezes() {
    campaign(async || {
        let server = RedisServer::start(&[]);
        outage("SIGSTOP", &server.url(), FROZEN, || server.freeze(), || server.thaw()).await;
    });
}

#[test]
fn the_network_swallows_everything() {
    campaign(async || {
        let server = RedisServer::start(&[]);
        let proxy = NetworkProxy::start(&server.address()).await;
        let (begin, end) = (|| proxy.set(NetworkMode::BlackHole), || proxy.set(NetworkMode::Pass));
        outage("black hole", &proxy.url(), ms(2_000), begin, end).await;
    });
}

#[test]
fn the_network_is_slow() {
    campaign(async || {
        let server = RedisServer::start(&[]);
        let proxy = NetworkProxy::start(&server.address()).await;
        let (begin, end) = (|| proxy.set(NetworkMode::Delay(ms(100))), || proxy.set(NetworkMode::Pass));
        let found = outage("200 ms slower", &proxy.url(), ms(3_000), begin, end).await;
        let opened = || found.turns.iter().filter(|turn| turn.is_away);
        println!("200 ms slower: {} breakers opened on {NODES} nodes", opened().count());
        // A server that is only slow can be connected to; that alone must not close the breaker.
        if opened().count() > NODES && opened().any(|turn| found.is_disturbed(turn.at_us)) {
            could_not_judge(format!("a stall may have opened a breaker: {:?}", found.turns));
        }
        assert_eq!(opened().count(), NODES, "{:?}", found.turns);
    });
}

#[test]
fn the_network_closes_one_half() {
    campaign(async || {
        let server = RedisServer::start(&[]);
        let proxy = NetworkProxy::start(&server.address()).await;
        let (begin, end) = (|| proxy.set(NetworkMode::HalfClose), || proxy.set(NetworkMode::Pass));
        outage("half closed", &proxy.url(), ms(1_000), begin, end).await;
    });
}

#[test]
fn the_network_resets_everything() {
    campaign(async || {
        let server = RedisServer::start(&[]);
        let proxy = NetworkProxy::start(&server.address()).await;
        let (begin, end) = (|| proxy.set(NetworkMode::Reset), || proxy.set(NetworkMode::Pass));
        outage("reset", &proxy.url(), ms(1_000), begin, end).await;
    });
}

/// Whatever comes back, each request is decided in time, nothing breaks for good, and no reply that cannot be true is
/// believed: the store's own decisions keep to the limits.
#[test]
fn answers_are_nonsense() {
    logged_campaign(async |log| {
        let server = RedisServer::start(&[]);
        let proxy = NetworkProxy::start(&server.address()).await;
        let fleet = Fleet::start(&proxy.url(), NODES).await;
        proxy.set(NetworkMode::Garble);
        fleet.wait(ms(3_000)).await;
        proxy.set(NetworkMode::Pass);
        let (over_us, back_us) = (fleet.now_us(), fleet.until_well().await);
        fleet.wait(ms(1_500)).await;
        let nodes = fleet.nodes.clone();
        let found = fleet.end().await;
        println!("nonsense: back after {} ms: {found}", (back_us - over_us) / 1_000);
        found.assert_quick();
        // Nonsense may also hide the other nodes.
        found.assert_policies_of(1);
        assert!(found.degraded(0..over_us) > 100, "nothing was decided without the store");
        found.assert_well(back_us + 200_000..u64::MAX);
        let excess = found.excess(&ALL);
        assert!(excess <= MISREAD, "{excess} over-admitted by decisions that are not degraded");
        let errors = nodes.iter().map(|node| node.store.errors(StoreErrorKind::InvalidAnswer)).sum::<u64>();
        println!("nonsense: {errors} invalid answers");
        assert!(errors > 0, "no invalid answer was counted");
        assert_logged_seldom(log, Duration::from_micros(found.length_us()));
    });
}

/// Each node logs a reason once in ten seconds.
fn assert_logged_seldom(log: &Log, length: Duration) {
    let mut lines_of = BTreeMap::<String, usize>::new();
    for line in log.errors() {
        let reason = line.split_once(" reason=").map_or(line.as_str(), |(_, reason)| reason);
        let reason = reason.rsplit_once(" errors=").map_or(reason, |(reason, _)| reason);
        *lines_of.entry(reason.to_owned()).or_default() += 1;
    }
    let most = NODES * (1 + length.as_secs() as usize / 10);
    assert!(lines_of.values().all(|lines| *lines <= most), "more than {most}: {lines_of:?}");
    assert!(lines_of.keys().any(|reason| reason.contains("invalid answer")), "{lines_of:?}");
}

#[test]
fn scripts_are_flushed_all_the_time() {
    campaign(async || {
        let server = RedisServer::start(&[]);
        let fleet = Fleet::start(&server.url(), NODES).await;
        for _ in 0..25 {
            tokio::task::block_in_place(|| server.cli(&["SCRIPT", "FLUSH"]));
            fleet.wait(ms(100)).await;
        }
        let found = fleet.end().await;
        println!("SCRIPT FLUSH: {found}");
        found.assert_quick();
        found.assert_well(0..u64::MAX);
        assert!(found.excess(&ALL) <= 0, "{} over-admitted", found.excess(&ALL));
    });
}

#[test]
fn a_server_comes_back_empty() {
    campaign(async || {
        let mut server = RedisServer::start(&[]);
        let fleet = Fleet::start(&server.url(), NODES).await;
        let fault_us = fleet.now_us();
        server.kill();
        fleet.until_away().await;
        fleet.wait(ms(500)).await;
        server.restart_empty();
        let up_us = fleet.now_us();
        let back_us = fleet.until_well().await;
        println!("empty restart: back {} ms after it is up", back_us.saturating_sub(up_us) / 1_000);
        fleet.wait(ms(1_000)).await;
        let found = fleet.end().await;
        assert_outage("empty restart", &found, fault_us, back_us);
        assert!(found.excess(&ALL) <= CAPACITY, "{} over-admitted", found.excess(&ALL));
    });
}

#[test]
fn a_server_runs_out_of_memory() {
    campaign(async || {
        let server = RedisServer::start(&[]);
        let fleet = Fleet::start(&server.url(), NODES).await;
        let set =
            |value: &str| tokio::task::block_in_place(|| server.cli(&["CONFIG", "SET", "maxmemory", value]));
        let fault_us = fleet.now_us();
        set("1");
        fleet.wait(ms(1_500)).await;
        set("0");
        let over_us = fleet.now_us();
        fleet.wait(ms(1_500)).await;
        let found = fleet.end().await;
        println!("out of memory: {found}");
        found.assert_quick();
        found.assert_policies();
        found.assert_well(0..fault_us.saturating_sub(60_000));
        assert!(found.degraded(fault_us..over_us) > 100, "nothing was decided without the store");
        found.assert_well(over_us + 1_000_000..u64::MAX);
        assert!(found.excess(&ALL) <= 0, "{} over-admitted", found.excess(&ALL));
    });
}

/// Moves slots one by one, with their keys, while they are in use.
fn reshard(from: &RedisServer, to: &RedisServer, slots: &[usize]) {
    let (source, target) = (from.cli(&["CLUSTER", "MYID"]), to.cli(&["CLUSTER", "MYID"]));
    let port = to.port().to_string();
    for (number, slot) in slots.iter().map(usize::to_string).enumerate() {
        assert_eq!(to.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]), "OK");
        assert_eq!(from.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]), "OK");
        loop {
            let keys = from.cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]);
            if keys.is_empty() {
                break;
            }
            let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "1000", "KEYS"];
            command.extend(keys.lines());
            let answer = from.cli(&command);
            assert!(answer == "OK" || answer == "NOKEY", "{answer}");
        }
        if number == 0 {
            // The first takes its time: whoever asks meanwhile is sent from one to the other.
            std::thread::sleep(ms(500));
        }
        for server in [to, from] {
            assert_eq!(server.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &target]), "OK");
        }
    }
}

/// Moves a hundred slots, those of clients first, from the first primary to another under load.
async fn move_slots(cluster: &RedisCluster, to: usize) {
    let (from, to) = (&cluster.primaries[0], &cluster.primaries[to]);
    let of_clients = slots(from);
    let mut moving = of_clients.clone();
    moving.retain(|slot| home(*slot) == 0);
    let busy = moving.len();
    assert!(busy > 5, "the clients are spread");
    moving.extend((0..16_384 / 3).step_by(50).filter(|slot| !of_clients.contains(slot)));
    moving.truncate(100);
    let fleet = Fleet::start(&cluster.url(), NODES).await;
    let start_us = fleet.now_us();
    tokio::task::block_in_place(|| reshard(from, to, &moving));
    let end_us = fleet.now_us();
    fleet.wait(ms(1_000)).await;
    let found = fleet.end().await;
    println!("100 slots, {busy} of them in use, moved in {} ms: {found}", (end_us - start_us) / 1_000);
    found.assert_quick();
    found.assert_policies();
    found.assert_well(0..u64::MAX);
    assert!(found.turns.is_empty(), "a breaker opened: {:?}", found.turns);
    assert!(found.excess(&ALL) <= 0, "{} over-admitted", found.excess(&ALL));
}

#[test]
fn a_hundred_slots_move() {
    campaign(async || move_slots(&RedisCluster::start(3, 0), 1).await);
}

#[test]
fn a_hundred_slots_move_to_an_added_server() {
    campaign(async || {
        let mut cluster = RedisCluster::start(3, 0);
        cluster.join();
        move_slots(&cluster, 3).await;
    });
}
