//! Looks at the counters of a node once a second.

use super::change_watch::{ChangeWatch, FoundEvent};
use super::fleet_top::{KEYS_IN_STATUS, NodeTop};
use super::live_figures::{DecisionGroups, LatencyCounts, LiveFigures};
use super::live_series::LONGEST_SPREAD;
use super::node_status::{NodeCounters, NodeLatency, NodeRates, NodeStatus, ShardStatus};
use crate::past_text::past_text;
use crate::rule_installer::RuleStatus;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;
use tollgate_core::time::UnixTime;
use tollgate_limiter::Limiter;
use tollgate_limiter::metrics::{DecisionMeter, MetricSamples, MetricSource};
use tollgate_redis::{ShardFigures, StoreObserver};

/// Rates and latencies in the status are those of so many seconds.
const RECENT_SECONDS: usize = 10;
/// Credit is added up once in so many seconds, as that locks the lease table.
const CREDIT_EVERY: u64 = 10;
/// The top keys are listed once in so many seconds.
const TOP_EVERY: u64 = 2;

/// What a node tells of itself that does not change.
#[derive(Clone, Debug, Default)]
pub struct NodeProfile {
    /// Its name, for people; normally that of its host.
    pub name: String,
    /// Where its first door is.
    pub address: String,
    /// Its version.
    pub version: String,
}

/// The parts of a node that are looked at.
#[derive(Clone)]
pub struct LiveParts {
    /// What it tells of itself.
    pub profile: NodeProfile,
    /// Its limiter.
    pub limiter: Arc<Limiter>,
    /// Its shared store, if it has one.
    pub store: Option<StoreObserver>,
    /// The state of its rule source.
    pub rules: watch::Receiver<RuleStatus>,
    /// The metrics of its gateway, once it is open.
    pub gateway: Arc<OnceLock<Arc<dyn MetricSource>>>,
}

impl std::fmt::Debug for LiveParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveParts").field("profile", &self.profile).finish_non_exhaustive()
    }
}

/// What was found in one look.
#[derive(Debug)]
pub(crate) struct NodeReading {
    pub(crate) time: UnixTime,
    /// The seconds that the figures belong to; empty if that is not known, as after a step of the clock.
    pub(crate) seconds: Range<u64>,
    pub(crate) figures: LiveFigures,
    pub(crate) rules: BTreeMap<Arc<str>, DecisionGroups>,
    pub(crate) events: Vec<FoundEvent>,
    /// The status of the node, without its rules.
    pub(crate) status: NodeStatus,
}

/// See the module.
pub(crate) struct NodeMonitor {
    parts: LiveParts,
    id: String,
    started: UnixTime,
    meter: DecisionMeter,
    watch: ChangeWatch,
    /// The second of the last look.
    second: u64,
    looks: u64,
    added: LatencyCounts,
    /// By shard.
    store: HashMap<u32, LatencyCounts>,
    totals: LiveFigures,
    recent: VecDeque<LiveFigures>,
    top: NodeTop,
    credit_tokens: Option<u64>,
    fingerprint_seed: Option<[u64; 2]>,
}

impl NodeMonitor {
    pub(crate) fn new(parts: LiveParts) -> Self {
        let now = parts.limiter.clock().now();
        let id = match &parts.store {
            Some(store) => store.node_id().to_owned(),
            None => format!("{:016x}", RandomState::new().hash_one(now)),
        };
        let mut monitor = Self {
            id,
            started: now,
            meter: DecisionMeter::new(Arc::clone(&parts.limiter)),
            watch: ChangeWatch::default(),
            second: now.as_us() / 1_000_000,
            looks: 0,
            added: LatencyCounts::default(),
            store: HashMap::new(),
            totals: LiveFigures::default(),
            recent: VecDeque::with_capacity(RECENT_SECONDS),
            top: NodeTop::default(),
            credit_tokens: None,
            fingerprint_seed: None,
            parts,
        };
        // What was counted before is no news.
        monitor.added = LatencyCounts::of(&monitor.meter.take().durations);
        monitor.store_since_last(&monitor.shards());
        monitor
    }

    pub(crate) fn now(&self) -> UnixTime {
        self.parts.limiter.clock().now()
    }

    pub(crate) fn node_count(&self) -> u32 {
        self.parts.store.as_ref().map_or(1, StoreObserver::node_count)
    }

    fn shards(&self) -> Vec<ShardFigures> {
        self.parts.store.as_ref().map(StoreObserver::shards).unwrap_or_default()
    }

    /// What happened since the last look.
    pub(crate) fn read(&mut self) -> NodeReading {
        let time = self.now();
        let second = time.as_us() / 1_000_000;
        let increments = self.meter.take();
        let durations = LatencyCounts::of(&increments.durations);
        let shards = self.shards();
        let figures = LiveFigures {
            groups: DecisionGroups::of(&increments.outcomes),
            added: durations.since(&self.added),
            store: self.store_since_last(&shards),
        };
        self.added = durations;
        self.totals += &figures;
        let rules =
            increments.rules.iter().map(|(rule, outcomes)| (Arc::clone(rule), DecisionGroups::of(outcomes)));
        let rules = rules.collect();
        let seconds = self.seconds_until(second);
        self.remember(&figures, &seconds);
        let mut events = Vec::new();
        self.watch.look_at_rules(&self.parts.rules.borrow(), &mut events);
        self.watch.look_at_shards(&shards, &mut events);
        if let Some(gateway) = self.parts.gateway.get() {
            let mut samples = MetricSamples::default();
            gateway.collect(&mut samples);
            self.watch.look_at_upstreams(&samples, &mut events);
        }
        self.look_at_keys();
        self.looks += 1;
        let status = self.status(time, &shards);
        NodeReading { time, seconds, figures, rules, events, status }
    }

    /// The seconds since the last look; none after a suspension of the machine or a step of the clock.
    fn seconds_until(&mut self, second: u64) -> Range<u64> {
        let last = std::mem::replace(&mut self.second, second);
        match second.checked_sub(last) {
            // The timer fired early: what was counted belongs to the second that has begun.
            Some(0) => second..second + 1,
            Some(elapsed) if elapsed <= LONGEST_SPREAD => last..second,
            _ => second..second,
        }
    }

    fn remember(&mut self, figures: &LiveFigures, seconds: &Range<u64>) {
        if seconds.is_empty() {
            self.recent.clear();
            return;
        }
        let count = seconds.end - seconds.start;
        for index in 0..count {
            if self.recent.len() == RECENT_SECONDS {
                self.recent.pop_front();
            }
            self.recent.push_back(figures.share(index, count));
        }
    }

    /// The durations of calls to all shards since the last look.
    fn store_since_last(&mut self, shards: &[ShardFigures]) -> LatencyCounts {
        let mut sum = LatencyCounts::default();
        let known = std::mem::take(&mut self.store);
        for shard in shards {
            let counts = LatencyCounts::of(&shard.durations);
            sum += &counts.since(&known.get(&shard.number).copied().unwrap_or_default());
            self.store.insert(shard.number, counts);
        }
        sum
    }

    fn look_at_keys(&mut self) {
        if let Some(store) = &self.parts.store {
            // Until the secret of the fleet is known, and if it changes.
            let seed = store.fingerprint_seed();
            if seed != self.fingerprint_seed
                && let Some(seed) = seed
            {
                self.parts.limiter.set_fingerprint_seed(seed);
                self.fingerprint_seed = Some(seed);
            }
            if self.looks.is_multiple_of(CREDIT_EVERY) {
                self.credit_tokens = Some(store.credit_tokens());
            }
        }
        if self.looks.is_multiple_of(TOP_EVERY) {
            self.top = self.parts.limiter.top(KEYS_IN_STATUS).into();
        }
    }

    fn status(&self, now: UnixTime, shards: &[ShardFigures]) -> NodeStatus {
        let mut recent = LiveFigures::default();
        self.recent.iter().for_each(|figures| recent += figures);
        let seconds = self.recent.len() as f64;
        let per_second = (!self.recent.is_empty()).then(|| NodeRates {
            decisions: recent.groups.total() as f64 / seconds,
            limited: recent.groups.limited as f64 / seconds,
            degraded: recent.groups.degraded as f64 / seconds,
        });
        let rules = self.parts.rules.borrow();
        let NodeProfile { name, address, version } = self.parts.profile.clone();
        NodeStatus {
            id: self.id.clone(),
            name,
            address,
            version,
            started: past_text(self.started),
            uptime_seconds: now.since(self.started) / 1_000_000,
            sequence: self.looks,
            revision: rules.revision,
            digest: (!rules.digest.is_empty()).then(|| rules.digest.clone()),
            rules_error: rules.error.as_ref().map(|error| error.to_string()),
            counters: NodeCounters::new(&self.totals),
            per_second,
            latency: NodeLatency::of(&recent),
            shards: shards.iter().map(ShardStatus::new).collect(),
            credit_tokens: self.credit_tokens,
            top: self.top.clone(),
            ..NodeStatus::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::events::LiveEventKind;
    use tollgate_limiter::{Clock, ManualClock, MemoryStore, Request};

    const START_US: u64 = 1_800_000_000_000_000;

    struct TestNode {
        clock: ManualClock,
        limiter: Arc<Limiter>,
        monitor: NodeMonitor,
        rules: watch::Sender<RuleStatus>,
    }

    impl TestNode {
        fn new(text: &str) -> Self {
            let clock = ManualClock::new(START_US);
            let limiter = Arc::new(Limiter::new(MemoryStore::new(1 << 20), Clock::Manual(clock.clone())));
            let (rules, status) = watch::channel(RuleStatus { revision: 1, ..RuleStatus::default() });
            let parts = LiveParts {
                profile: NodeProfile { address: "127.0.0.1:8080".to_owned(), ..NodeProfile::default() },
                limiter: Arc::clone(&limiter),
                store: None,
                rules: status,
                gateway: Arc::default(),
            };
            let node = Self { clock, limiter, monitor: NodeMonitor::new(parts), rules };
            node.install(text);
            node
        }

        fn install(&self, text: &str) {
            let loaded = tollgate_core::rules::load("rules.yaml", text).unwrap();
            self.limiter.install(loaded.rules, loaded.lists).unwrap();
        }

        fn send(&self, user: &str, requests: usize) {
            for _ in 0..requests {
                let request = Request { user: Some(user), endpoint: "/", ..Request::default() };
                self.limiter.check(&request).unwrap();
            }
        }

        fn read_after(&mut self, seconds: u64) -> NodeReading {
            self.clock.advance_us(seconds * 1_000_000);
            self.monitor.read()
        }
    }

    #[test]
    fn each_second_has_its_decisions_and_no_others() {
        let mut node = TestNode::new("rules: [{ id: a, key: user, limit: 5/h }]");
        node.send("ann", 8);
        let reading = node.read_after(1);
        assert_eq!((reading.figures.groups.allowed, reading.figures.groups.limited), (5, 3));
        assert_eq!(reading.seconds, START_US / 1_000_000..START_US / 1_000_000 + 1);
        assert_eq!(reading.rules["a"].limited, 3);
        assert_eq!(reading.events, [(LiveEventKind::RulesInForce, "revision 1 is in force".to_owned())]);
        let reading = node.read_after(1);
        assert_eq!(reading.figures, LiveFigures::default());
        assert!(reading.rules.is_empty() && reading.events.is_empty());
        node.send("bob", 2);
        let reading = node.read_after(3);
        assert_eq!((reading.figures.groups.allowed, reading.seconds.end - reading.seconds.start), (2, 3));
        let status = reading.status;
        assert_eq!(status.counters.groups.total(), 10);
        assert_eq!((status.uptime_seconds, status.started.as_str()), (5, "2027-01-15T08:00:00Z"));
        assert_eq!(status.per_second.unwrap().decisions, 2.0);
        assert_eq!(status.latency.store_p50_us, None, "it has no shared store");
    }

    #[test]
    fn a_rule_that_is_removed_takes_no_decisions_back() {
        let mut node = TestNode::new("rules: [{ id: a, key: user, limit: 5/h }]");
        node.send("ann", 3);
        assert_eq!(node.read_after(1).figures.groups.allowed, 3);
        node.send("ann", 2);
        node.install("rules: [{ id: b, key: user, limit: 5/h }]");
        node.rules.send_modify(|status| status.revision = 2);
        node.send("ann", 4);
        let reading = node.read_after(1);
        assert_eq!(
            (reading.figures.groups.allowed, reading.rules["a"].allowed, reading.rules["b"].allowed),
            (6, 2, 4)
        );
        assert_eq!(reading.events.len(), 1);
        assert_eq!(reading.status.counters.groups.allowed, 9);
    }

    #[test]
    fn a_suspension_or_a_step_of_the_clock_belongs_to_no_second() {
        let mut node = TestNode::new("rules: [{ id: a, key: user, limit: 5/h }]");
        node.send("ann", 1);
        assert!(node.read_after(100).seconds.is_empty());
        node.clock.set_us(START_US);
        node.send("ann", 1);
        let reading = node.monitor.read();
        assert!(reading.seconds.is_empty());
        assert_eq!(reading.status.counters.groups.allowed, 2, "it is counted all the same");
        assert_eq!(node.read_after(1).seconds.end - node.monitor.second, 0);
    }
}
