//! The way to the servers, with real ones: outages, restarts, failovers.

use super::super::connection::Failure;
use super::super::shard::RedisShard;
use super::slot_map::slot;
use super::{ServerSettings, Servers};
use redis::cmd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
use tollgate_testbed::{
    NetworkMode, NetworkProxy, RedisCluster, RedisServer, SentinelGroup, eventually, primary_state,
};

/// What a busy machine may add to any time.
const SLACK: Duration = Duration::from_millis(150);

async fn open(url: &str) -> Arc<Servers> {
    Servers::open(&url.parse().unwrap(), ServerSettings::default())
        .await
        .unwrap_or_else(|error| panic!("{error}"))
}

/// What is wrong with `url`, at the start.
async fn refusal(url: &str) -> String {
    match Servers::open(&url.parse().unwrap(), ServerSettings::default()).await {
        Ok(_) => panic!("{url} was accepted"),
        Err(error) => error.to_string(),
    }
}

/// Whether the shard of `key` takes a write now.
async fn writes(servers: &Servers, key: &str) -> bool {
    set(&servers.shard_of(key.as_bytes()), key).await.is_ok()
}

async fn set(shard: &RedisShard, key: &str) -> Result<redis::Value, Failure> {
    shard.call(cmd("SET").arg(key).arg("1")).await
}

fn only(servers: &Servers) -> Arc<RedisShard> {
    let shards = servers.shards();
    assert_eq!(shards.len(), 1);
    Arc::clone(&shards[0])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_is_asked_by_tcp_socket_and_database() {
    let server = RedisServer::start(&[]);
    let socket = format!("unix://{}", server.socket().display());
    for url in [server.url(), socket, format!("{}/2", server.url())] {
        let servers = open(&url).await;
        assert!(writes(&servers, "a").await);
        assert_eq!(only(&servers).version().map(|version| version >= (6, 2)), Some(true));
        assert_eq!(servers.own_tag(&only(&servers)), "0");
        servers.close().await;
        eventually("the shard is closed", async || !writes(&servers, "a").await).await;
    }
    assert_eq!(server.cli(&["DBSIZE"]), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shard_reconnects_after_a_restart() {
    let mut server = RedisServer::start(&[]);
    let servers = open(&server.url()).await;
    let shard = only(&servers);
    assert!(writes(&servers, "a").await);
    server.kill();
    let opened = eventually("the breaker opens", async || shard.is_open()).await;
    assert!(opened < Duration::from_millis(200) + SLACK, "{opened:?}");
    assert_eq!(set(&shard, "a").await, Err(Failure::Unavailable));
    server.restart_empty();
    let back = eventually("the server is back", async || writes(&servers, "a").await).await;
    assert!(back < Duration::from_secs(1) + SLACK, "{back:?}");
    assert_eq!(shard.counters().opened.load(Ordering::Relaxed), 1);
    assert_eq!(shard.counters().closed.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_at_the_start_is_no_error() {
    let mut server = RedisServer::start(&[]);
    server.kill();
    let servers = open(&server.url()).await;
    assert!(only(&servers).is_open());
    assert_eq!(set(&only(&servers), "a").await, Err(Failure::Unavailable));
    server.restart_empty();
    eventually("the server is there", async || writes(&servers, "a").await).await;

    for url in ["redis-sentinel://127.0.0.1:1,127.0.0.1:2/x", "redis-cluster://127.0.0.1:1"] {
        let servers = open(url).await;
        assert!(only(&servers).is_open(), "{url}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_logins_are_explained() {
    let server = RedisServer::start_with_password("right");
    let address = server.address();
    let servers = open(&server.url()).await;
    assert!(writes(&servers, "a").await);
    let error = refusal(&format!("redis://:wrong@{address}")).await;
    assert!(error.contains("the password is wrong") && !error.contains("wrong@"), "{error}");
    let error = refusal(&format!("redis://{address}")).await;
    assert!(error.contains("it requires a password"), "{error}");
    server.cli(&["ACL", "SETUSER", "poor", "on", ">right", "~*", "+set"]);
    let error = refusal(&format!("redis://poor:right@{address}")).await;
    assert!(error.contains("NOPERM permission denied") && error.contains("ACL SETUSER"), "{error}");
    let error = refusal(&format!("redis://:right@{address}/99")).await;
    assert!(error.contains("does not have this database"), "{error}");
    let error = refusal(&format!("redis-cluster://:right@{address}")).await;
    assert!(error.contains("not what the address says"), "{error}");
    let open_server = RedisServer::start(&[]);
    let error = refusal(&format!("redis://:secret@{}", open_server.address())).await;
    assert!(error.contains("has no password") && !error.contains("secret"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_needs_an_authority_that_is_trusted() {
    let server = RedisServer::start_tls(&[]);
    let servers = open(&server.tls_url()).await;
    assert!(writes(&servers, "a").await);
    // Not one that the system trusts: as good as unreachable, and the log says why.
    let servers = open(&format!("rediss://localhost:{}", server.tls_port())).await;
    assert!(only(&servers).is_open());
    let error = refusal("rediss://localhost?ca=/does/not/exist").await;
    assert!(error.contains("/does/not/exist cannot be used"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_no_primary() {
    let server = RedisServer::start(&[]);
    let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &server.port().to_string()]);
    let servers = open(&replica.url()).await;
    assert!(only(&servers).is_open());
    replica.cli(&["REPLICAOF", "NO", "ONE"]);
    eventually("it is a primary", async || writes(&servers, "a").await).await;
    // Demoted, it says READONLY on the connection that it had.
    replica.cli(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
    eventually("it is given up", async || !writes(&servers, "a").await && only(&servers).is_open()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_opens_the_breaker_without_load_and_within_200_ms() {
    let server = RedisServer::start(&[]);
    let servers = open(&server.url()).await;
    let shard = only(&servers);
    server.freeze();
    let opened = eventually("the breaker opens", async || shard.is_open()).await;
    assert!(opened < Duration::from_millis(200) + SLACK, "{opened:?}");
    // Calls fail at once now.
    let start = Instant::now();
    assert_eq!(set(&shard, "a").await, Err(Failure::Unavailable));
    assert!(start.elapsed() < Duration::from_millis(20));
    server.thaw();
    let back = eventually("the server is back", async || writes(&servers, "a").await).await;
    assert!(back < Duration::from_secs(1) + SLACK, "{back:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_opens_the_breaker_and_calls_under_way_are_lost() {
    let server = RedisServer::start(&[]);
    let proxy = NetworkProxy::start(&server.address()).await;
    let servers = open(&proxy.url()).await;
    let shard = only(&servers);
    proxy.set(NetworkMode::BlackHole);
    let patient = tokio::spawn(shard.start(cmd("SET").arg("a").arg("1").take()));
    assert_eq!(set(&shard, "b").await, Err(Failure::Lost));
    eventually("the breaker opens", async || shard.is_open()).await;
    assert_eq!(patient.await.unwrap(), Err(Failure::Lost), "no call waits for ever");
    proxy.set(NetworkMode::Pass);
    eventually("the server is back", async || writes(&servers, "a").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_answers_arrive_and_broken_connections_are_made_anew() {
    let server = RedisServer::start(&[]);
    let proxy = NetworkProxy::start(&server.address()).await;
    let servers = open(&proxy.url()).await;
    let shard = only(&servers);
    proxy.set(NetworkMode::Delay(Duration::from_millis(30)));
    let late = shard.start(cmd("SET").arg("late").arg("1").take());
    assert_eq!(late.await, Ok(redis::Value::Okay), "60 ms, and nothing cut it off");
    for mode in [NetworkMode::Reset, NetworkMode::HalfClose, NetworkMode::Refuse] {
        proxy.set(mode);
        eventually("it is noticed", async || !writes(&servers, "a").await).await;
        proxy.set(NetworkMode::Pass);
        eventually("the server is back", async || writes(&servers, "a").await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_name_the_new_primary() {
    let mut setting = SentinelGroup::start(1);
    let servers = open(&setting.url()).await;
    assert!(writes(&servers, "a").await);
    let shard = only(&servers);
    setting.sentinels[0].freeze();
    setting.servers[0].kill();
    eventually("the breaker opens", async || shard.is_open()).await;
    let back = eventually("the new primary serves", async || writes(&servers, "a").await).await;
    println!("Sentinel failover after a kill: {back:?}");
    assert_eq!(shard.address().unwrap().to_string(), setting.servers[1].address());
    assert!(Arc::ptr_eq(&shard, &only(&servers)), "the shard stays");
    setting.sentinels[0].thaw();

    let error = refusal(&setting.url().replace("/tollgate", "/other")).await;
    assert!(error.contains("no primary by the name `other`"), "{error}");
    let error = refusal(&format!("redis://{}", setting.sentinels[1].address())).await;
    assert!(error.contains("write redis-sentinel://"), "{error}");
}

/// Until the other replicas follow, the Sentinel that leads the failover has the new epoch and, in one of its replies, the old
/// address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_that_takes_its_time_is_followed_once() {
    let setting = SentinelGroup::start(2);
    let servers = open(&setting.url()).await;
    let shard = only(&servers);
    let address = || shard.address().unwrap().to_string();
    assert_eq!(address(), setting.servers[0].address());
    tokio::task::block_in_place(|| setting.begin_slow_failover());
    let promoted = setting.servers[1].address();
    eventually("the new primary serves", async || address() == promoted && writes(&servers, "a").await).await;
    // The one that leads it is the only one to reply from now on.
    setting.sentinels[1..].iter().for_each(RedisServer::freeze);
    let ports = [0, 1].map(|number: usize| setting.servers[number].port().to_string());
    let mut unfinished = 0;
    eventually("the failover is over", async || {
        let state = tokio::task::block_in_place(|| primary_state(&setting.sentinels[0]));
        assert_eq!(address(), promoted, "{state:?}");
        unfinished += u32::from(state["port"] == ports[0]);
        state["port"] == ports[1] && state["flags"] == "master"
    })
    .await;
    assert!(unfinished > 10, "the failover was over at once");
    setting.sentinels[1..].iter().for_each(RedisServer::thaw);
}

/// A key of each shard, in the order of the slots.
fn keys(servers: &Servers) -> Vec<String> {
    servers.shards().iter().map(|shard| format!("{{{}}}key", servers.own_tag(shard))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_fails_over_after_a_crash_and_under_a_frozen_primary() {
    let mut cluster = RedisCluster::start(3, 1);
    let servers = open(&cluster.url()).await;
    let shards = servers.shards();
    assert_eq!(shards.len(), 3);
    for key in keys(&servers) {
        assert!(writes(&servers, &key).await, "{key}");
    }
    let shard_at = |server: &RedisServer| {
        let address = server.address();
        let is_it =
            |shard: &&Arc<RedisShard>| shard.address().is_some_and(|known| known.to_string() == address);
        Arc::clone(shards.iter().find(is_it).unwrap())
    };
    let crashed = shard_at(&cluster.primaries[0]);
    let frozen = shard_at(&cluster.primaries[1]);
    let well = shard_at(&cluster.primaries[2]);
    let key_of = |shard: &RedisShard| format!("{{{}}}key", servers.own_tag(shard));
    let well_key = key_of(&well);

    let crashed_key = key_of(&crashed);
    cluster.primaries[0].kill();
    eventually("the crash is noticed", async || crashed.is_open()).await;
    let back = eventually("the replica serves", async || {
        assert!(writes(&servers, &well_key).await, "another shard's keys are not affected");
        writes(&servers, &crashed_key).await
    });
    println!("Cluster failover after a kill: {:?}", back.await);

    let frozen_key = key_of(&frozen);
    cluster.primaries[1].freeze();
    eventually("the silence is noticed", async || frozen.is_open()).await;
    let back = eventually("the replica serves", async || {
        assert!(writes(&servers, &well_key).await, "another shard's keys are not affected");
        writes(&servers, &frozen_key).await
    });
    println!("Cluster failover under a frozen primary: {:?}", back.await);
    assert!(!well.is_open() && well.counters().opened.load(Ordering::Relaxed) == 0);
    for (shard, key) in [(&crashed, &crashed_key), (&frozen, &frozen_key)] {
        assert!(Arc::ptr_eq(shard, &servers.shard_of(key.as_bytes())), "the shard stays");
    }

    // After the thaw the old primary still reports its old slots, with a lower epoch.
    cluster.primaries[1].thaw();
    let until = Instant::now() + Duration::from_secs(1);
    eventually("a second passed", async || {
        assert!(writes(&servers, &frozen_key).await);
        Instant::now() > until
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_are_followed() {
    let cluster = RedisCluster::start(2, 0);
    let servers = open(&cluster.url()).await;
    let (from, to) = (&cluster.primaries[0], &cluster.primaries[1]);
    // One of the first node's.
    let number = 4_711;
    let key = (0..).map(|n: u64| n.to_string()).find(|key| slot(key.as_bytes()) == number).unwrap();
    let before = servers.shard_of(key.as_bytes());
    assert!(writes(&servers, &key).await);
    from.cli(&["DEL", &key]);
    let (new, slot) = (to.cli(&["CLUSTER", "MYID"]), number.to_string());
    to.cli(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from.cli(&["CLUSTER", "MYID"])]);
    from.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &new]);
    match set(&before, &key).await {
        Err(Failure::Ask { address, .. }) => {
            let other = servers.shard_at(&address, &before).unwrap();
            let answer = other.start_asking(cmd("SET").arg(&key).arg("1").take()).await;
            assert_eq!(answer, Ok(redis::Value::Okay));
        }
        other => panic!("{other:?}"),
    }
    for node in [to, from] {
        node.cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &new]);
    }
    assert!(matches!(set(&before, &key).await, Err(Failure::Moved { .. })));
    eventually("the move is known", async || writes(&servers, &key).await).await;
    assert!(!Arc::ptr_eq(&before, &servers.shard_of(key.as_bytes())));
    assert_eq!(servers.shards().len(), 2);

    let error = refusal(&format!("redis://{}", from.address())).await;
    assert!(error.contains("write redis-cluster://"), "{error}");
}
