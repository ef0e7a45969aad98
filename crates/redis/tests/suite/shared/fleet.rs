//! Nodes that share a store, the load on them, and what came of it.

use super::node::SECRET;
pub use super::node::{Node, nodes, patient_nodes};
use crate::log::{Log, logged_on_threads};
use crate::setting::load;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tollgate_core::algorithm::Bucket;
use tollgate_core::state_address::{FleetSecret, StateAddresses};
use tollgate_limiter::Request;
use tollgate_redis::{RedisSettings, ShardState};
use tollgate_simulate::{self, Ledger};
use tollgate_testbed::judging::{could_not_judge, judged, must_be_judgeable};
use tollgate_testbed::{CpuPressureMonitor, PATIENCE, StallMonitor, covered_length, eventually};

/// What the store may take, plus what a decision takes.
const LONGEST: Duration = Duration::from_millis(60);

/// Tests under load run one at a time: each is to suffer from its own fault only.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs `test` on a runtime of its own, as often as `TOLLGATE_ROUNDS` says.
pub fn campaign(test: impl AsyncFn()) {
    for _ in 0..rounds() {
        alone(&test);
    }
}

/// The same for a test that reads the log; each is run again if it could not be judged.
pub fn logged_campaign(test: impl AsyncFn(&Log)) {
    for _ in 0..rounds() {
        let _alone = ALONE.lock();
        judged(|| logged_on_threads(2, &test));
    }
}

/// How often a fault is repeated, or a walk lengthened.
pub fn rounds() -> u32 {
    std::env::var("TOLLGATE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1)
}

/// How long after a stall of the machine a breaker that it opened may stay open.
const RECOVERY_US: u64 = 500_000;
/// A decision that a shorter stall delays is in time all the same,
const SHORTEST_STALL: Duration = Duration::from_millis(5);
/// and one that a longer stall delays may be too late for the store's timeout.
const LONG_STALL_US: u64 = 20_000;
const CONTENDED_BEFORE_US: u64 = 100_000;

/// Runs `test` while no other that needs the machine for itself does; again if it could not be judged.
pub fn alone(test: impl AsyncFn()) {
    let _alone = ALONE.lock();
    beside_others(test);
}

/// The same for a test that takes its time and is not about any: others run meanwhile.
pub fn beside_others(test: impl AsyncFn()) {
    judged(|| {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(test());
    });
}

/// What a rule says about the time without a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Allow,
    Deny,
    Local,
    /// Denies, and takes nothing ahead.
    Strict,
}

const POLICIES: [Policy; 4] = [Policy::Allow, Policy::Deny, Policy::Local, Policy::Strict];
const CLIENTS: usize = 40;
/// Some clients ask for more than they may, most for less.
const RULES: &str = "
rules:
  - { id: allow, endpoint: /allow, params: { capacity: 30, refill_rate: 15 }, on_store_failure: allow }
  - { id: deny, endpoint: /deny, params: { capacity: 30, refill_rate: 15 }, on_store_failure: deny }
  - { id: local, endpoint: /local, params: { capacity: 30, refill_rate: 15 }, on_store_failure: local }
  - id: strict
    endpoint: /strict
    params: { capacity: 30, refill_rate: 15 }
    on_store_failure: deny
    consistency: strict
";
const CAPACITY: u64 = 30;
const PER_SECOND: u64 = 15;

/// A client of the load, by its number.
#[derive(Debug)]
pub struct Client {
    key: String,
    pub policy: Policy,
}

impl Client {
    fn all() -> Vec<Self> {
        let client = |number: usize| Self {
            key: format!("client-{number}"),
            policy: POLICIES[number % POLICIES.len()],
        };
        (0..CLIENTS).map(client).collect()
    }

    fn request(&self) -> Request<'_> {
        let endpoint = match self.policy {
            Policy::Allow => "/allow",
            Policy::Deny => "/deny",
            Policy::Local => "/local",
            Policy::Strict => "/strict",
        };
        Request { api_key: Some(&self.key), endpoint, ..Request::default() }
    }
}

/// One decision.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub node: usize,
    pub client: usize,
    pub sent_us: u64,
    pub received_us: u64,
    pub allowed: bool,
    pub degraded: bool,
}

/// A breaker that opened or closed.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    pub node: usize,
    pub at_us: u64,
    pub is_away: bool,
}

/// Nodes under steady load.
pub struct Fleet {
    pub nodes: Vec<Arc<Node>>,
    start: Instant,
    witness: StallMonitor,
    pressure: CpuPressureMonitor,
    entries: Arc<Mutex<Vec<Entry>>>,
    turns: Arc<Mutex<Vec<Turn>>>,
    /// Each ends with the requests that it sent.
    load: Vec<JoinHandle<JoinSet<()>>>,
    watch: JoinHandle<()>,
    is_over: Arc<std::sync::atomic::AtomicBool>,
}

impl Fleet {
    /// `count` nodes on the store at `url`, each with 400 requests a second; hands over once all is well.
    pub async fn start(url: &str, count: usize) -> Self {
        let nodes = nodes(url, RULES, count).await;
        let start = Instant::now();
        let (entries, turns) = (Arc::<Mutex<Vec<Entry>>>::default(), Arc::<Mutex<Vec<Turn>>>::default());
        let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let clients: Arc<[Client]> = Client::all().into();
        let load = nodes.iter().enumerate().map(|(number, node)| {
            let (node, clients, entries) = (Arc::clone(node), Arc::clone(&clients), Arc::clone(&entries));
            let is_over = Arc::clone(&is_over);
            tokio::spawn(async move {
                let mut rng = fastrand::Rng::with_seed(number as u64);
                let mut under_way = JoinSet::new();
                let mut ticks = interval(Duration::from_micros(2_500));
                ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    ticks.tick().await;
                    while under_way.try_join_next().is_some_and(|ended| ended.is_ok()) {}
                    let client = (rng.f64().powi(2) * CLIENTS as f64) as usize;
                    let (node, clients, entries) =
                        (Arc::clone(&node), Arc::clone(&clients), Arc::clone(&entries));
                    under_way.spawn(async move {
                        let sent_us = start.elapsed().as_micros() as u64;
                        let (allowed, degraded) = node.check(&clients[client].request()).await;
                        let received_us = start.elapsed().as_micros() as u64;
                        let entry = Entry { node: number, client, sent_us, received_us, allowed, degraded };
                        entries.lock().push(entry);
                    });
                }
                under_way
            })
        });
        let load = load.collect();
        let watch = tokio::spawn(watch(nodes.clone(), start, Arc::clone(&turns)));
        let witness = StallMonitor::start_recording(SHORTEST_STALL);
        let pressure = CpuPressureMonitor::start();
        let fleet = Self { nodes, start, witness, pressure, entries, turns, load, watch, is_over };
        fleet.wait(Duration::from_millis(800)).await;
        fleet
    }

    /// Lets the load go on.
    pub async fn wait(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    pub fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// Waits until every shard that should be there is, for every node; tells when that was.
    pub async fn until_well(&self) -> u64 {
        let is_well = |state: &ShardState| !state.is_away;
        eventually("the store is back", async || {
            self.nodes.iter().all(|node| node.store.shards().iter().all(is_well))
        })
        .await;
        self.now_us()
    }

    /// Waits until every node has given up a shard.
    pub async fn until_away(&self) -> u64 {
        eventually("the shard is given up", async || {
            self.nodes.iter().all(|node| node.store.shards().iter().any(|state| state.is_away))
        })
        .await;
        self.now_us()
    }

    /// Ends the load; everything that was asked must be answered. A run in which the machine stood still for too long
    /// is not judged.
    pub async fn end(self) -> Findings {
        let length = self.start.elapsed();
        self.is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        for load in self.load {
            let mut under_way = load.await.unwrap();
            let rest = async { while under_way.join_next().await.is_some_and(|ended| ended.is_ok()) {} };
            tokio::time::timeout(PATIENCE, rest).await.expect("every request is answered");
            assert!(under_way.is_empty(), "a request ended in a panic");
        }
        self.watch.abort();
        let entries = std::mem::take(&mut *self.entries.lock());
        let turns = std::mem::take(&mut *self.turns.lock());
        let nodes = self.nodes.len() as u64;
        for node in &self.nodes {
            node.store.close().await;
        }
        let since_start_us = |at: Instant| at.saturating_duration_since(self.start).as_micros() as u64;
        let stalls = self.witness.stalls().into_iter();
        let stalls = stalls.map(|stall| since_start_us(stall.start)..since_start_us(stall.end)).collect();
        let (start, pressure) = (self.start, self.pressure);
        let found = Findings { entries, turns, start, stalls, pressure, nodes, clients: Client::all() };
        must_be_judgeable(found.disturbed_for(0..length.as_micros() as u64), length);
        found
    }
}

/// Notes when breakers open and close.
async fn watch(nodes: Vec<Arc<Node>>, start: Instant, turns: Arc<Mutex<Vec<Turn>>>) {
    let mut known: BTreeMap<(usize, u32), bool> = BTreeMap::new();
    let mut ticks = interval(Duration::from_millis(1));
    loop {
        ticks.tick().await;
        for (node, shards) in nodes.iter().map(|node| node.store.shards()).enumerate() {
            for shard in shards {
                let before = known.insert((node, shard.number), shard.is_away).unwrap_or(false);
                if before != shard.is_away {
                    let at_us = start.elapsed().as_micros() as u64;
                    turns.lock().push(Turn { node, at_us, is_away: shard.is_away });
                }
            }
        }
    }
}

/// What came of a run.
pub struct Findings {
    pub entries: Vec<Entry>,
    pub turns: Vec<Turn>,
    start: Instant,
    /// When the machine stood still.
    stalls: Vec<Range<u64>>,
    pressure: CpuPressureMonitor,
    nodes: u64,
    pub clients: Vec<Client>,
}

impl Findings {
    /// For how long the machine stood still in that time.
    fn stalled(&self, us: Range<u64>) -> Duration {
        Duration::from_micros(covered_length(&self.stalls, &us, |end, start| end - start))
    }

    /// What was sent in these times may have suffered from the machine alone.
    fn disturbances(&self) -> impl Iterator<Item = Range<u64>> {
        let before_us = LONGEST.as_micros() as u64;
        self.long_stalls().map(move |stall| stall.start.saturating_sub(before_us)..stall.end + RECOVERY_US)
    }

    fn long_stalls(&self) -> impl DoubleEndedIterator<Item = &Range<u64>> {
        self.stalls.iter().filter(|stall| stall.end - stall.start > LONG_STALL_US)
    }

    pub fn is_disturbed(&self, at_us: u64) -> bool {
        self.disturbances().any(|times| times.contains(&at_us))
    }

    /// How much of that time is disturbed.
    fn disturbed_for(&self, us: Range<u64>) -> Duration {
        let disturbances: Vec<Range<u64>> = self.disturbances().collect();
        Duration::from_micros(covered_length(&disturbances, &us, |end, start| end - start))
    }

    /// From the start of the load to its last decision.
    pub fn length_us(&self) -> u64 {
        self.entries.iter().map(|entry| entry.received_us).max().unwrap_or(0)
    }

    /// No decision took longer than the store may take, but for stalls of the machine meanwhile.
    pub fn assert_quick(&self) {
        let late = |entry: &Entry| {
            let took = Duration::from_micros(entry.received_us - entry.sent_us);
            took.saturating_sub(LONGEST + self.stalled(entry.sent_us..entry.received_us))
        };
        let slowest = self.entries.iter().max_by_key(|entry| late(entry)).unwrap();
        let (took_us, by) = (slowest.received_us - slowest.sent_us, late(slowest));
        assert!(by.is_zero(), "{slowest:?} took {took_us} µs, {by:?} too long");
    }

    pub fn degraded(&self, sent_us: Range<u64>) -> usize {
        self.entries.iter().filter(|entry| entry.degraded && sent_us.contains(&entry.sent_us)).count()
    }

    /// All was well in that time.
    pub fn assert_well(&self, sent_us: Range<u64>) {
        let sent = self.entries.iter().filter(|entry| sent_us.contains(&entry.sent_us));
        let (sent, degraded) = self.count_undisturbed(sent);
        assert!(sent > 0 && degraded == 0, "{degraded} of {sent} degraded in {sent_us:?}");
    }

    /// How many of `entries` there are, and how many of them are degraded, but for those in which the machine stood still for as long
    /// as the store may take: it is no witness against the store.
    pub fn count_undisturbed<'e>(&self, entries: impl Iterator<Item = &'e Entry>) -> (usize, usize) {
        let (disturbed, calm): (Vec<&Entry>, Vec<&Entry>) =
            entries.partition(|entry| self.is_disturbed(entry.sent_us));
        if disturbed.len() > calm.len() {
            could_not_judge(format!("{} of {} are disturbed", disturbed.len(), disturbed.len() + calm.len()));
        }
        let degraded: Vec<&Entry> = calm.iter().copied().filter(|entry| entry.degraded).collect();
        if !degraded.is_empty() && degraded.iter().all(|entry| self.is_contended(entry)) {
            could_not_judge(format!(
                "{} of {} are degraded while processes wait for cores",
                degraded.len(),
                calm.len()
            ));
        }
        (calm.len(), degraded.len())
    }

    /// Whether processes waited for cores most of the time when the entry was decided and just before. Then a server may have waited
    /// as well.
    fn is_contended(&self, entry: &Entry) -> bool {
        let at = |us| self.start + Duration::from_micros(us);
        let span = at(entry.sent_us.saturating_sub(CONTENDED_BEFORE_US))..at(entry.received_us);
        2 * self.pressure.waited_within(span.clone()) > span.end - span.start
    }

    /// When each node gave a shard up after `fault_us`, as the time that had passed.
    pub fn opened(&self, fault_us: u64) -> Vec<Duration> {
        let of_node = |node: usize| {
            let turns = || self.turns.iter().filter(|turn| turn.node == node);
            // A machine that stood still just before the fault may have opened it already.
            let before = turns().take_while(|turn| turn.at_us < fault_us).last();
            if before.is_some_and(|turn| turn.is_away && self.is_disturbed(turn.at_us)) {
                could_not_judge(format!("a stall before {fault_us} µs opened a breaker"));
            }
            let first = turns().find(|turn| turn.is_away && turn.at_us >= fault_us);
            first.map(|turn| Duration::from_micros(turn.at_us - fault_us))
        };
        (0..self.nodes as usize).filter_map(of_node).collect()
    }

    /// Every node gave the shard up within 200 ms.
    pub fn assert_opened(&self, fault_us: u64) {
        let opened = self.opened(fault_us);
        assert_eq!(opened.len() as u64, self.nodes, "{:?}", self.turns);
        for after in opened {
            let stalled = self.stalled(fault_us..fault_us + after.as_micros() as u64);
            assert!(after <= Duration::from_millis(200) + stalled, "{after:?}, stalled for {stalled:?}");
        }
    }

    /// Whatever was decided without the store was decided as the rule says.
    pub fn assert_policies(&self) {
        self.assert_policies_of(self.nodes);
    }

    /// The same, if a node may believe that there are only so many.
    pub fn assert_policies_of(&self, nodes: u64) {
        let mut local: BTreeMap<(usize, usize), Vec<&Entry>> = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| entry.degraded) {
            match self.clients[entry.client].policy {
                Policy::Allow => assert!(entry.allowed, "{entry:?}"),
                Policy::Deny | Policy::Strict => assert!(!entry.allowed, "{entry:?}"),
                Policy::Local => local.entry((entry.node, entry.client)).or_default().push(entry),
            }
        }
        for (whose, mut entries) in local {
            entries.sort_by_key(|entry| entry.sent_us);
            let span_us = entries[entries.len() - 1].received_us - entries[0].sent_us;
            let share = CAPACITY.div_ceil(nodes);
            let most = share + (PER_SECOND.div_ceil(nodes) * span_us).div_ceil(1_000_000);
            let allowed = entries.iter().filter(|entry| entry.allowed).count() as u64;
            assert!(allowed <= most, "{whose:?}: {allowed} passed, {most} may");
        }
    }

    /// By how many tokens the worst of the clients of these policies was over-admitted by the store, not
    /// counting what passed by a policy.
    pub fn excess(&self, policies: &[Policy]) -> i64 {
        let excesses = self.excesses().into_iter().zip(&self.clients);
        let of_policies = excesses.filter(|(_, client)| policies.contains(&client.policy));
        of_policies.map(|(excess, _)| excess).max().unwrap_or(0)
    }

    /// The same for each client.
    pub fn excesses(&self) -> Vec<i64> {
        let bucket = bucket(RULES);
        let mut ledger = Ledger::default();
        for entry in self.entries.iter().filter(|entry| !entry.degraded) {
            ledger.note(tollgate_simulate::LedgerEntry {
                key: entry.client as u32,
                node: entry.node as u16,
                admitted: entry.allowed,
                cost: 1,
                sent_us: entry.sent_us,
                received_us: entry.received_us,
            });
        }
        (0..CLIENTS as u32).map(|client| ledger.excess(client, &bucket)).collect()
    }

    /// What each client got from the store in the last `us` before `end_us`, at most: what a replica may not
    /// have heard of yet. Stalls of the machine in that time make it longer.
    pub fn fresh(&self, end_us: u64, us: u64) -> [i64; CLIENTS] {
        let mut begin_us = end_us.saturating_sub(us);
        for stall in self.long_stalls().rev().filter(|stall| stall.start < end_us) {
            if stall.end >= begin_us {
                begin_us = begin_us.min(stall.start.saturating_sub(us));
            }
        }
        let mut by_client = [0_i64; CLIENTS];
        for entry in self.entries.iter().filter(|entry| entry.allowed && !entry.degraded) {
            if entry.received_us > begin_us && entry.sent_us <= end_us {
                by_client[entry.client] += 1;
            }
        }
        by_client
    }
}

/// The keys of the clients at the store, by their number.
pub fn client_keys() -> Vec<String> {
    let loaded = load(RULES);
    let addresses = StateAddresses::new(&RedisSettings::default().prefix, FleetSecret(SECRET));
    let (rule, limit) = loaded.rules.limits().next().unwrap();
    Client::all().iter().map(|client| addresses.locate(rule, limit, &client.request(), 0).key).collect()
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slowest_us = self.entries.iter().map(|entry| entry.received_us - entry.sent_us).max();
        let longest_stall_us = self.stalls.iter().map(|stall| stall.end - stall.start).max();
        write!(
            f,
            "{} decisions, {} degraded, slowest {} ms, longest stall {} ms, over-admitted {} allow, {} deny, {} local",
            self.entries.len(),
            self.degraded(0..u64::MAX),
            slowest_us.unwrap_or(0) as f64 / 1e3,
            longest_stall_us.unwrap_or(0) as f64 / 1e3,
            self.excess(&[Policy::Allow]),
            self.excess(&[Policy::Deny, Policy::Strict]),
            self.excess(&[Policy::Local]),
        )
    }
}

/// The bucket of the first limit of the rules.
pub fn bucket(text: &str) -> Bucket {
    let loaded = load(text);
    let (_, limit) = loaded.rules.limits().next().unwrap();
    *limit.meter().bucket().unwrap()
}
