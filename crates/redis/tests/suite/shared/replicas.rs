//! A failover to a replica that lags, or has another time, and a primary that is cut off and does not know it: what is lost is
//! bounded.

use super::fleet::{Node, alone, bucket, patient_nodes};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tollgate_core::lending::EPOCH_US;
use tollgate_limiter::Request;
use tollgate_redis::{RedisSettings, StoreErrorKind};
use tollgate_simulate::{Ledger, LedgerEntry, StoreFaults};
use tollgate_testbed::judging::could_not_judge;
use tollgate_testbed::{NetworkMode, NetworkProxy, RedisServer, StallMonitor, eventually};

const RULES: &str = "
rules: [{ id: one, key: api_key, params: { capacity: 100, refill_rate: 50 }, on_store_failure: deny }]";
const CAPACITY: i64 = 100;
const PER_SECOND: f64 = 50.0;
const NODES: usize = 3;
/// The longest that a node waits for the store.
const TIMEOUT: Duration = Duration::from_millis(200);
/// How far the replica is behind, if the machine is quiet.
const LAG: Duration = Duration::from_millis(300);
/// Every node asks for as much as comes in for all.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// A key that is set to the time again and again: what the replica has of it tells how far it is behind.
const MARKER: &str = "marker";
const MARK_EVERY: Duration = Duration::from_millis(5);
const BEFORE: Duration = Duration::from_millis(2_500);
/// Longer than credit lives, so that some of it is judged without any allowance.
const AFTER: Duration = Duration::from_secs(6);
/// A replica that has not acknowledged for more than two seconds is missed, both in whole seconds, once a second.
const STOPS_WITHIN: Duration = Duration::from_secs(4);

/// One decision.
#[derive(Clone, Copy, Debug)]
struct Decided {
    entry: LedgerEntry,
    degraded: bool,
}

/// When the replica became a primary, and when what it had heard last was written.
#[derive(Clone, Copy, Debug)]
struct Failover {
    at_us: u64,
    heard_us: u64,
}

/// A primary and a replica that lags, each node with a network of its own.
struct Setting {
    primary: RedisServer,
    replica: RedisServer,
    /// Between the two.
    replication: NetworkProxy,
    fronts: Vec<NetworkProxy>,
    nodes: Vec<Arc<Node>>,
    decided: Arc<Mutex<Vec<Decided>>>,
    start: Instant,
    is_over: Arc<AtomicBool>,
    load: JoinSet<()>,
}

impl Setting {
    /// The replica's clock is `ahead_ms` milliseconds ahead.
    async fn start(primary: &[&str], ahead_ms: i64) -> Self {
        let (primary, replica, replication) = replicated(primary, ahead_ms).await;
        replication.set(NetworkMode::Delay(LAG));
        let (mut fronts, mut nodes) = (Vec::new(), Vec::new());
        for _ in 0..NODES {
            let front = NetworkProxy::start(&primary.address()).await;
            let settings =
                RedisSettings { secret: Some([7; 16]), timeout: TIMEOUT, ..RedisSettings::default() };
            nodes.push(Node::start_with(&front.url(), RULES, settings).await);
            fronts.push(front);
        }
        eventually("the nodes know each other", async || {
            nodes.iter().all(|node| node.store.node_count() as usize == NODES)
        })
        .await;
        let (start, is_over) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let decided = Arc::<Mutex<Vec<Decided>>>::default();
        let mut load = JoinSet::new();
        for (number, node) in nodes.iter().enumerate() {
            let (node, decided, is_over) = (Arc::clone(node), Arc::clone(&decided), Arc::clone(&is_over));
            load.spawn(ask_evenly(node, number as u16, start, decided, is_over));
        }
        let mut marker = redis::Client::open(primary.url()).unwrap().get_connection().unwrap();
        let marking_is_over = Arc::clone(&is_over);
        load.spawn_blocking(move || {
            while !marking_is_over.load(Ordering::Relaxed) {
                let marked =
                    redis::cmd("SET").arg(MARKER).arg(start.elapsed().as_micros() as u64).exec(&mut marker);
                if marked.is_err() {
                    return;
                }
                std::thread::sleep(MARK_EVERY);
            }
        });
        let setting = Self { primary, replica, replication, fronts, nodes, decided, start, is_over, load };
        sleep(BEFORE).await;
        setting
    }

    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// The replica becomes a primary, and these nodes are led to it.
    fn fail_over(&self, nodes: &[usize]) -> Failover {
        let heard_us = tokio::task::block_in_place(|| {
            assert_eq!(self.replica.cli(&["REPLICAOF", "NO", "ONE"]), "OK");
            self.replica.cli(&["GET", MARKER]).parse().unwrap()
        });
        for node in nodes {
            self.fronts[*node].set_target(&self.replica.address());
            self.fronts[*node].set(NetworkMode::Reset);
        }
        let at_us = self.now_us();
        for node in nodes {
            self.fronts[*node].set(NetworkMode::Pass);
        }
        Failover { at_us, heard_us }
    }

    async fn end(mut self) -> Vec<Decided> {
        self.is_over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.load.join_next().await {
            ended.unwrap();
        }
        std::mem::take(&mut *self.decided.lock())
    }
}

/// A primary and a replica whose clock is `ahead_ms` milliseconds ahead, and the network between the two.
async fn replicated(primary: &[&str], ahead_ms: i64) -> (RedisServer, RedisServer, NetworkProxy) {
    let primary = RedisServer::start(primary);
    let replication = NetworkProxy::start(&primary.address()).await;
    let port = replication.address().port().to_string();
    let replica = tokio::task::block_in_place(|| {
        RedisServer::start_with_clock_ahead(ahead_ms, &["--replicaof", "127.0.0.1", &port])
    });
    eventually("the replica follows", async || {
        tokio::task::block_in_place(|| {
            replica.cli(&["INFO", "replication"]).contains("master_link_status:up")
                && primary.cli(&["INFO", "replication"]).contains("state=online")
        })
    })
    .await;
    (primary, replica, replication)
}

async fn ask_evenly(
    node: Arc<Node>,
    number: u16,
    start: Instant,
    decided: Arc<Mutex<Vec<Decided>>>,
    is_over: Arc<AtomicBool>,
) {
    let mut ticks = interval(ASK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    while !is_over.load(Ordering::Relaxed) {
        ticks.tick().await;
        ask(Arc::clone(&node), number, start, Arc::clone(&decided)).await;
    }
}

/// One request.
async fn ask(node: Arc<Node>, number: u16, start: Instant, decided: Arc<Mutex<Vec<Decided>>>) {
    let request = Request { api_key: Some("one"), endpoint: "/", ..Request::default() };
    let sent_us = start.elapsed().as_micros() as u64;
    let (admitted, degraded) = node.check(&request).await;
    let received_us = start.elapsed().as_micros() as u64;
    let entry = LedgerEntry { key: 0, node: number, admitted, cost: 1, sent_us, received_us };
    decided.lock().push(Decided { entry, degraded });
}

/// What these nodes were admitted by the store.
fn ledger_of(decided: &[Decided], nodes: &[u16]) -> Ledger {
    let mut ledger = Ledger::default();
    for one in decided.iter().filter(|one| !one.degraded && nodes.contains(&one.entry.node)) {
        ledger.note(one.entry);
    }
    ledger
}

/// No more than what the replica had not heard of is admitted twice, and later nothing.
fn assert_lost_writes(what: &str, ledger: &Ledger, failover: Failover) {
    let Failover { at_us: lost_us, heard_us } = failover;
    let bucket = bucket(RULES);
    let over = ledger.excess(0, &bucket);
    // A decision that was sent before may have been made after the last mark that the replica has heard of.
    let unheard_us = heard_us.saturating_sub(TIMEOUT.as_micros() as u64);
    let lost = ledger.admitted(0, unheard_us..lost_us) as i64;
    let faults = StoreFaults { losses_us: &[lost_us], credit_us: 2 * EPOCH_US, ..StoreFaults::default() };
    let later = ledger.excess_after(0, &bucket, &faults);
    println!("{what}: {over} over, {lost} may be lost; {later} over but for one capacity");
    assert!(over <= lost.min(CAPACITY), "{what}: {over} over, {lost} may be lost");
    assert!(later <= 0, "{what}: {later} over after the failover");
}

/// Of what was sent to these nodes within `sent_us`: how many were decided by the store, and how many without it.
fn counts(decided: &[Decided], nodes: &[u16], sent_us: Range<u64>) -> (usize, usize) {
    let is_meant = |one: &&Decided| nodes.contains(&one.entry.node) && sent_us.contains(&one.entry.sent_us);
    let of = decided.iter().filter(is_meant);
    let (degraded, by_store): (Vec<&Decided>, Vec<&Decided>) = of.partition(|one| one.degraded);
    (by_store.len(), degraded.len())
}

async fn fail_over_to_a_replica_that_lags() {
    let mut setting = Setting::start(&[], 0).await;
    setting.primary.kill();
    let failover = setting.fail_over(&[0, 1, 2]);
    sleep(AFTER).await;
    let decided = setting.end().await;
    assert_lost_writes("lagging replica", &ledger_of(&decided, &[0, 1, 2]), failover);
    let (by_store, degraded) = counts(&decided, &[0, 1, 2], failover.at_us + 1_500_000..u64::MAX);
    assert!(by_store > 300 && degraded == 0, "{degraded} of {by_store} degraded after the failover");
}

/// The third node alone still reaches the old primary, which loses its replica at once.
async fn both_sides_keep_to_the_limit() {
    let setting = Setting::start(&[], 0).await;
    let failover = setting.fail_over(&[0, 1]);
    sleep(AFTER).await;
    let refused = setting.nodes[2].store.errors(StoreErrorKind::Replicas);
    let decided = setting.end().await;
    assert_lost_writes("split brain, the new primary", &ledger_of(&decided, &[0, 1]), failover);
    // The old primary has lost nothing.
    let isolated = ledger_of(&decided, &[2]).excess(0, &bucket(RULES));
    let (by_store, degraded) = counts(&decided, &[2], failover.at_us..u64::MAX);
    println!("split brain, the old primary: {isolated} over, {by_store} decided, {degraded} degraded");
    assert!(isolated <= 0, "{isolated} over at the old primary");
    assert!(by_store > 100 && degraded == 0 && refused == 0, "{by_store} decided, {degraded} degraded");
}

/// Nothing passes between the two, and their connection stays open: only the missing acknowledgements tell the old
/// primary.
async fn a_primary_that_is_cut_off_stops_after_the_greatest_lag() {
    let stalls = StallMonitor::start();
    let setting = Setting::start(&["--min-replicas-to-write", "1", "--min-replicas-max-lag", "2"], 0).await;
    setting.replication.set(NetworkMode::BlackHole);
    let failover = setting.fail_over(&[0, 1]);
    let stopped = || setting.nodes[2].store.errors(StoreErrorKind::Replicas) > 0;
    eventually("the old primary refuses writes", async || stopped()).await;
    let (start, stopped_us) = (setting.start, setting.now_us());
    sleep(AFTER).await;
    let decided = setting.end().await;
    let took = Duration::from_micros(stopped_us - failover.at_us);
    let (before, _) = counts(&decided, &[2], failover.at_us..stopped_us);
    let (after, degraded) = counts(&decided, &[2], stopped_us + 2 * EPOCH_US..u64::MAX);
    println!("cut off: refuses after {took:?}, {before} decided before; then {after}, {degraded} degraded");
    let span = start + Duration::from_micros(failover.at_us)..start + Duration::from_micros(stopped_us);
    let stalled = stalls.stalled_within(span);
    assert!(
        took <= STOPS_WITHIN + stalled,
        "the old primary stopped after {took:?}, stalled for {stalled:?}"
    );
    assert!(before > 10, "the old primary has decided only {before} in {took:?}");
    assert!(after == 0 && degraded > 50, "{after} decided, {degraded} degraded");
    assert_lost_writes("cut off, the new primary", &ledger_of(&decided, &[0, 1]), failover);
    let isolated = ledger_of(&decided, &[2]).excess(0, &bucket(RULES));
    assert!(isolated <= 0, "{isolated} over at the old primary");
    // Both together: one capacity more, and what the old primary has refilled until it stopped.
    let over = ledger_of(&decided, &[0, 1, 2]).excess(0, &bucket(RULES));
    let most = CAPACITY + (PER_SECOND * took.as_secs_f64()).ceil() as i64;
    println!("cut off: {over} over on both sides, {most} may be");
    assert!(over <= most, "{over} over on both sides, {most} may be");
}

/// For how long decisions may be degraded after a failover to a server with another time: until its breaker has closed, and until
/// the nodes have agreed on its clock.
const DEGRADED_FOR: Duration = Duration::from_millis(500 + 700);
/// The correction of a clock shrinks by a hundredth of the time that passes: limits refill so much faster or more slowly.
const SLEW: f64 = 0.01;

/// The clock of the replica is `ahead_ms` milliseconds ahead of that of the primary.
async fn fail_over_to_a_server_with_another_time(ahead_ms: i64) {
    let stalls = StallMonitor::start();
    let mut setting = Setting::start(&[], ahead_ms).await;
    let start = setting.start;
    setting.primary.kill();
    let failover = setting.fail_over(&[0, 1, 2]);
    sleep(AFTER).await;
    let refused: u64 = setting.nodes.iter().map(|node| node.store.errors(StoreErrorKind::ClockStep)).sum();
    let decided = setting.end().await;
    let bucket = bucket(RULES);
    let ledger = ledger_of(&decided, &[0, 1, 2]);
    let faults =
        StoreFaults { losses_us: &[failover.at_us], credit_us: 2 * EPOCH_US, ..StoreFaults::default() };
    let (over, later) = (ledger.excess(0, &bucket), ledger.excess_after(0, &bucket, &faults));
    let slewed = (PER_SECOND * AFTER.as_secs_f64() * SLEW).ceil() as i64;
    let after = decided.iter().filter(|one| one.entry.sent_us > failover.at_us);
    let degraded_us = after.filter(|one| one.degraded).map(|one| one.entry.received_us).max().unwrap_or(0);
    let degraded_for = Duration::from_micros(degraded_us.saturating_sub(failover.at_us));
    let since_us = failover.at_us + DEGRADED_FOR.as_micros() as u64;
    let last_us = decided.iter().map(|one| one.entry.sent_us).max().unwrap();
    let due = PER_SECOND * (last_us - since_us) as f64 / 1e6;
    let admitted = ledger.admitted(0, since_us..last_us) as f64;
    println!(
        "{ahead_ms} ms ahead: {refused} calls refused, degraded for {degraded_for:?}; {over} over, {later} but for one \
         capacity; then {admitted} of {due:.0}"
    );
    assert!(refused > 0, "{ahead_ms} ms ahead: no call has met the other time");
    assert!(over <= CAPACITY + slewed, "{ahead_ms} ms ahead: {over} over");
    assert!(later <= slewed, "{ahead_ms} ms ahead: {later} over but for one capacity");
    let span = start + Duration::from_micros(failover.at_us)..start + Duration::from_micros(degraded_us);
    let stalled = stalls.stalled_within(span);
    assert!(
        degraded_for <= DEGRADED_FOR + stalled,
        "{ahead_ms} ms ahead: degraded for {degraded_for:?}, stalled for {stalled:?}"
    );
    assert!(admitted >= 0.9 * due, "{ahead_ms} ms ahead: {admitted} of {due:.0} after the failover");
}

const WORST_RULES: &str = "
rules: [{ id: one, key: api_key, params: { capacity: 1000, refill_rate: 10 }, on_store_failure: deny }]";
const WORST_CAPACITY: i64 = 1_000;
/// All that is admitted before the failover is lost with it.
const WORST_LAG: Duration = Duration::from_millis(1_500);

/// More than the capacity, at all nodes at once.
async fn burst(nodes: &[Arc<Node>], start: Instant, decided: &Arc<Mutex<Vec<Decided>>>) {
    let mut sent = JoinSet::new();
    for number in 0..WORST_CAPACITY as usize * 5 / 4 {
        let (node, decided) = (Arc::clone(&nodes[number % nodes.len()]), Arc::clone(decided));
        sent.spawn(ask(node, (number % NODES) as u16, start, decided));
    }
    while let Some(ended) = sent.join_next().await {
        ended.unwrap();
    }
}

/// A burst of the capacity of which the replica hears nothing, and another after the failover.
async fn burst_fail_over_and_burst_again() {
    let (mut primary, replica, replication) = replicated(&[], 0).await;
    let front = NetworkProxy::start(&primary.address()).await;
    let nodes = patient_nodes(&front.url(), WORST_RULES, NODES).await;
    let (start, decided) = (Instant::now(), Arc::<Mutex<Vec<Decided>>>::default());
    replication.set(NetworkMode::Delay(WORST_LAG));
    burst(&nodes, start, &decided).await;
    primary.kill();
    if start.elapsed() >= WORST_LAG {
        could_not_judge(format!(
            "the burst took {:?}, and the replica may have heard of it",
            start.elapsed()
        ));
    }
    assert_eq!(tokio::task::block_in_place(|| replica.cli(&["REPLICAOF", "NO", "ONE"])), "OK");
    front.set_target(&replica.address());
    front.set(NetworkMode::Reset);
    front.set(NetworkMode::Pass);
    eventually("the replica decides", async || {
        burst(&nodes, start, &decided).await;
        nodes.iter().all(|node| node.store.shards().iter().all(|shard| !shard.is_away))
    })
    .await;
    // By now no node uses a refusal from before.
    for _ in 0..3 {
        sleep(Duration::from_millis(150)).await;
        burst(&nodes, start, &decided).await;
    }
    let over = ledger_of(&decided.lock(), &[0, 1, 2]).excess(0, &bucket(WORST_RULES));
    println!("a burst within the lag, and another: {over} over");
    assert!(over <= WORST_CAPACITY, "{over} over");
    assert!(over > WORST_CAPACITY * 9 / 10, "only {over} over: the failover has lost nothing");
}

#[test]
fn a_failover_to_another_time_or_within_a_burst_costs_one_capacity() {
    alone(async || {
        tokio::join!(
            fail_over_to_a_server_with_another_time(60_000),
            fail_over_to_a_server_with_another_time(-20_000),
            burst_fail_over_and_burst_again(),
        );
    });
}

#[test]
fn what_a_lagging_replica_or_a_split_brain_loses_is_bounded() {
    alone(async || {
        tokio::join!(
            fail_over_to_a_replica_that_lags(),
            both_sides_keep_to_the_limit(),
            a_primary_that_is_cut_off_stops_after_the_greatest_lag(),
        );
    });
}
