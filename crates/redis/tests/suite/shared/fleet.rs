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
use tollgate_testbed::{PATIENCE, StallMonitor, eventually};

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

/// Runs `test` while no other that needs the machine for itself does; again if it could not be judged.
pub fn alone(test: impl AsyncFn()) {
    let _alone = ALONE.lock();
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
        let fleet =
            Self { nodes, start, witness: StallMonitor::start(), entries, turns, load, watch, is_over };
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
        let disturbed = |stall: Range<Instant>| {
            since_start_us(stall.start).saturating_sub(LONGEST.as_micros() as u64)
                ..since_start_us(stall.end) + RECOVERY_US
        };
        let disturbed: Vec<Range<u64>> = self.witness.stalls().into_iter().map(disturbed).collect();
        must_be_judgeable(total(&disturbed), length);
        Findings { entries, turns, stall: self.witness.longest(), disturbed, nodes, clients: Client::all() }
    }
}

/// How long these times are together; they are in order, and may overlap.
fn total(times: &[Range<u64>]) -> Duration {
    let (mut total_us, mut end_us) = (0, 0);
    for time in times {
        total_us += time.end.saturating_sub(time.start.max(end_us));
        end_us = end_us.max(time.end);
    }
    Duration::from_micros(total_us)
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
    /// The longest that the machine stood still.
    pub stall: Duration,
    /// What was sent in these times may have suffered from the machine alone.
    disturbed: Vec<Range<u64>>,
    nodes: u64,
    pub clients: Vec<Client>,
}

impl Findings {
    fn stall_us(&self) -> u64 {
        self.stall.as_micros() as u64
    }

    /// From the start of the load to its last decision.
    pub fn length_us(&self) -> u64 {
        self.entries.iter().map(|entry| entry.received_us).max().unwrap_or(0)
    }

    /// No decision took longer than the store may take.
    pub fn assert_quick(&self) {
        let slowest = self.entries.iter().max_by_key(|entry| entry.received_us - entry.sent_us).unwrap();
        let took = Duration::from_micros(slowest.received_us - slowest.sent_us);
        assert!(took <= LONGEST + self.stall, "{slowest:?} took {took:?}, stall {:?}", self.stall);
    }

    pub fn degraded(&self, sent_us: Range<u64>) -> usize {
        self.entries.iter().filter(|entry| entry.degraded && sent_us.contains(&entry.sent_us)).count()
    }

    /// All was well in that time. A machine that stands still for as long as the store may take is no
    /// witness against it.
    pub fn assert_well(&self, sent_us: Range<u64>) {
        let counts = |at_us: u64| sent_us.contains(&at_us) && !self.is_disturbed(at_us);
        let entries = || self.entries.iter().filter(|entry| counts(entry.sent_us));
        let (sent, degraded) = (entries().count(), entries().filter(|entry| entry.degraded).count());
        let most = if self.stall > Duration::from_millis(20) { sent / 50 } else { 0 };
        if sent == 0 && !self.disturbed.is_empty() {
            could_not_judge(format!("all of {sent_us:?} is disturbed"));
        }
        assert!(
            sent > 0 && degraded <= most,
            "{degraded} of {sent} degraded in {sent_us:?}; stall {:?}",
            self.stall
        );
    }

    fn is_disturbed(&self, at_us: u64) -> bool {
        self.disturbed.iter().any(|times| times.contains(&at_us))
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
        let most = Duration::from_millis(200) + self.stall;
        assert!(opened.iter().all(|after| *after <= most), "{opened:?}, stall {:?}", self.stall);
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
    /// have heard of yet.
    pub fn fresh(&self, end_us: u64, us: u64) -> [i64; CLIENTS] {
        let mut by_client = [0_i64; CLIENTS];
        for entry in self.entries.iter().filter(|entry| entry.allowed && !entry.degraded) {
            if entry.received_us + us > end_us && entry.sent_us <= end_us {
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
        write!(
            f,
            "{} decisions, {} degraded, slowest {} ms, stall {} ms, over-admitted {} allow, {} deny, {} local",
            self.entries.len(),
            self.degraded(0..u64::MAX),
            slowest_us.unwrap_or(0) as f64 / 1e3,
            self.stall_us() as f64 / 1e3,
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
