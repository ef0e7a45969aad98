//! The store itself: its settings, what its tasks have in common, and its life.

use crate::control_channel::ControlChannel;
use crate::dispatch::ShardQueues;
use crate::fleet::{self, FleetMembership, NodeAddress, NodeDescription};
use crate::handle::StoreHandle;
use crate::in_flight_slots;
use crate::lease::{self, LeaseTable, StoreCall};
use crate::lease_clock::LeaseClock;
use crate::node_count::NodeCount;
use crate::reset_markers::ResetMarkers;
use crate::servers::{self, Servers};
use crate::shard::{RedisShard, ShardChange, log_change};
use crate::{OpenError, StoreErrorKind, StoreUrl, VerdictSender};
use arc_swap::{ArcSwapOption, Guard};
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tollgate_core::heartbeat;
use tollgate_core::rules::RuleSet;
use tollgate_core::rules::written::OnStoreFailure;
use tollgate_core::state_address::{FleetSecret, StateAddresses};
use tollgate_core::time::BootTime;
use tollgate_limiter::SharedStore;
use tollgate_limiter::metrics::SpanSink;
use tollgate_limiter::{Clock, ManualClock};

/// How the store is used.
#[derive(Clone)]
pub struct RedisSettings {
    /// The longest time that a decision waits for the store.
    pub timeout: Duration,
    /// Prefix of all keys.
    pub prefix: String,
    /// The key with which the fleet hashes identities; by default the first node writes one to the store.
    pub secret: Option<[u8; 16]>,
    /// The number of nodes, instead of counting heartbeats.
    pub expected_nodes: Option<u32>,
    /// A folder of this node's own that keeps the number of nodes, for a start while the store is unavailable.
    pub data: Option<PathBuf>,
    /// Where this node can be reached, for operators.
    pub node: NodeAddress,
    /// How often spent tokens are reported and idle credit is returned.
    pub lease_interval: Duration,
    /// How far ahead of its use a busy key takes tokens.
    pub lease_horizon: Duration,
    /// The most keys for which a node keeps leases.
    pub most_leases: usize,
    /// Receives spans of script calls.
    pub spans: Option<Arc<dyn SpanSink>>,
}

/// All but the secret.
impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { timeout, prefix, secret, expected_nodes, data, node, .. } = self;
        f.debug_struct("RedisSettings")
            .field("timeout", timeout)
            .field("prefix", prefix)
            .field("secret", &secret.map(FleetSecret))
            .field("expected_nodes", expected_nodes)
            .field("data", data)
            .field("node", node)
            .field("lease_interval", &self.lease_interval)
            .field("lease_horizon", &self.lease_horizon)
            .field("most_leases", &self.most_leases)
            .finish()
    }
}

impl Default for RedisSettings {
    fn default() -> Self {
        let lease = lease::LeaseSettings::default();
        Self {
            timeout: Duration::from_millis(50),
            prefix: "tg:".to_owned(),
            secret: None,
            expected_nodes: None,
            data: None,
            node: NodeAddress::default(),
            lease_interval: Duration::from_micros(lease.interval_us),
            lease_horizon: Duration::from_micros(lease.horizon_us),
            most_leases: lease.most_leases,
            spans: None,
        }
    }
}

/// A store that nodes share. Its tasks end when it is dropped; [`RedisStore::close`] also returns all credit.
#[derive(Debug)]
pub struct RedisStore {
    core: Arc<StoreCore>,
    tasks: Vec<JoinHandle<()>>,
}

/// What the tasks of a store have in common.
pub(crate) struct StoreCore {
    pub(crate) servers: Arc<Servers>,
    pub(crate) leases: LeaseTable<VerdictSender>,
    pub(crate) fleet: FleetMembership,
    pub(crate) known_nodes: NodeCount,
    /// None until the fleet's secret is known: before that, no state can be located.
    pub(crate) addresses: ArcSwapOption<StateAddresses>,
    pub(crate) queues: ShardQueues,
    pub(crate) holdings: in_flight_slots::NodeSlots,
    pub(crate) markers: ResetMarkers,
    pub(crate) runtime: Handle,
    pub(crate) clock: Clock,
    /// Tests move the store's time by hand.
    pub(crate) given_time: Option<ManualClock>,
    pub(crate) settings: RedisSettings,
    /// The next tick may have to come sooner than was thought.
    pub(crate) ticks_sooner: Arc<Notify>,
    /// The next heartbeat has to come at once.
    pub(crate) heartbeat_sooner: Arc<Notify>,
    lease_clock: LeaseClock,
    /// Whether the warning about a restart without a node count was logged.
    pub(crate) has_warned_of_node_count: AtomicBool,
}

impl RedisStore {
    /// Connects to the store at `url`. That it cannot be reached is no error: until it can, every rule's
    /// failure policy holds. Needs a tokio runtime, here and as long as it lives.
    pub async fn open(url: &StoreUrl, settings: RedisSettings, clock: Clock) -> Result<Self, OpenError> {
        Self::open_at(url, settings, clock, None).await
    }

    /// A store whose time is `time`, for tests. `clock` is this node's own: credit and
    /// cached refusals expire by it.
    pub async fn open_on_clock(
        url: &StoreUrl,
        settings: RedisSettings,
        clock: ManualClock,
        time: ManualClock,
    ) -> Result<Self, OpenError> {
        Self::open_at(url, settings, Clock::Manual(clock), Some(time)).await
    }

    async fn open_at(
        url: &StoreUrl,
        settings: RedisSettings,
        clock: Clock,
        given_time: Option<ManualClock>,
    ) -> Result<Self, OpenError> {
        let known: Arc<OnceLock<Weak<StoreCore>>> = Arc::default();
        let hook = {
            let known = Arc::clone(&known);
            move |shard: &RedisShard, change, after, failures| {
                let core = known.get().and_then(Weak::upgrade);
                if let (ShardChange::Restored, Some(core)) = (change, &core) {
                    // It may have lost its data, or be another server.
                    core.heartbeat_sooner.notify_one();
                }
                log_change(shard, change, after, failures, core.map_or(0, |core| core.keys_of_one_shard()));
            }
        };
        let server_settings = servers::ServerSettings {
            timeout: settings.timeout,
            prefix: settings.prefix.clone(),
            hook: Some(Box::new(hook)),
            ..servers::ServerSettings::default()
        };
        let servers = Servers::open(url, server_settings).await?;
        let lease_settings = lease::LeaseSettings {
            interval_us: settings.lease_interval.as_micros() as u64,
            horizon_us: settings.lease_horizon.as_micros() as u64,
            most_leases: settings.most_leases,
            ..lease::LeaseSettings::default()
        };
        let addresses = settings
            .secret
            .map(|secret| Arc::new(StateAddresses::new(&settings.prefix, FleetSecret(secret))));
        let lease_clock = LeaseClock::new((clock.boot(), clock.now()));
        let core = Arc::new(StoreCore {
            servers,
            leases: LeaseTable::new(lease_settings),
            fleet: FleetMembership::new(&clock, settings.node.clone()),
            known_nodes: NodeCount::open(settings.data.as_deref(), url, &settings.prefix),
            addresses: ArcSwapOption::new(addresses),
            queues: ShardQueues::default(),
            holdings: in_flight_slots::NodeSlots::default(),
            markers: ResetMarkers::default(),
            runtime: Handle::current(),
            clock,
            given_time,
            settings,
            ticks_sooner: Arc::default(),
            heartbeat_sooner: Arc::default(),
            lease_clock,
            has_warned_of_node_count: AtomicBool::new(false),
        });
        core.leases.set_nodes(core.settings.expected_nodes.unwrap_or(core.known_nodes.nodes()));
        let _ = known.set(Arc::downgrade(&core));
        // The first round, so that a store that is there is used from the first request on.
        core.send_heartbeats().await;
        let tasks = vec![
            tokio::spawn(keep_sending_heartbeats(Arc::downgrade(&core), Arc::clone(&core.heartbeat_sooner))),
            tokio::spawn(keep_ticking(Arc::downgrade(&core), Arc::clone(&core.ticks_sooner))),
            tokio::spawn(in_flight_slots::keep_renewing(Arc::downgrade(&core))),
        ];
        Ok(Self { core, tasks })
    }

    pub(crate) fn core(&self) -> &Arc<StoreCore> {
        &self.core
    }

    /// The store as [`Limiter::sharing`](tollgate_limiter::Limiter::sharing) takes it.
    pub fn shared_store(&self) -> Arc<dyn SharedStore> {
        Arc::new(StoreHandle(Arc::clone(&self.core)))
    }

    /// The way of the control plane to the store.
    pub fn control_channel(&self) -> ControlChannel {
        ControlChannel::new(Arc::clone(&self.core))
    }

    /// Fetches the descriptions of the nodes that share the store, this one first. A shard that does not reply lists
    /// none; while no shard replies there is only this node. See [`node_count`](Self::node_count) for the number alone.
    pub async fn nodes(&self) -> Vec<NodeDescription> {
        self.core.list_nodes().await
    }

    /// How many nodes share the store, this one included, as the last heartbeat told.
    pub fn node_count(&self) -> u32 {
        self.core.fleet.node_count()
    }

    /// The state of each shard.
    pub fn shards(&self) -> Vec<ShardState> {
        let state = |shard: &Arc<RedisShard>| ShardState {
            number: shard.number(),
            address: shard.address().map(|address| address.to_string()),
            is_away: shard.is_open(),
            times_away: shard.counters().opened.load(std::sync::atomic::Ordering::Relaxed),
            timeouts: shard.counters().timeouts.load(std::sync::atomic::Ordering::Relaxed),
        };
        self.core.servers.shards().iter().map(state).collect()
    }

    /// How many errors of this kind the store answered with. What meets one is decided without the store.
    pub fn errors(&self, kind: StoreErrorKind) -> u64 {
        self.core.servers.errors(kind)
    }

    /// How many calls were made to the store, reports included.
    pub fn calls(&self) -> u64 {
        self.core.queues.calls()
    }

    /// The number of the rules in force, for the other nodes to see.
    pub fn set_rules_version(&self, version: u64) {
        self.core.fleet.set_rules_version(version);
    }

    /// Waits until no call to the store is pending, no longer than the timeout.
    pub async fn settled(&self) {
        self.core.queues.wait_until_drained(self.core.settings.timeout).await;
    }

    /// Returns all credit, removes this node from the fleet and closes all connections.
    pub async fn close(&self) {
        // A heartbeat after this would add the node again.
        self.tasks.iter().for_each(JoinHandle::abort);
        self.core.leases.return_all(self.core.lease_time(), |call| self.core.send(call));
        self.settled().await;
        self.core.leave_fleet().await;
        self.core.servers.close().await;
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// The state of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardState {
    /// Its number.
    pub number: u32,
    /// Where it is, if that is known.
    pub address: Option<String>,
    /// Whether its breaker is open, and failure policies apply to its keys.
    pub is_away: bool,
    /// How often the breaker opened.
    pub times_away: u64,
    /// How often it did not reply in time.
    pub timeouts: u64,
}

impl StoreCore {
    /// The time that leases count in.
    pub(crate) fn lease_time(&self) -> BootTime {
        let reread = || (self.clock.boot(), self.clock.reread());
        self.lease_clock.now((self.clock.boot(), self.clock.now()), reread)
    }

    /// The addresses of states; none until the fleet's secret is known.
    pub(crate) fn addresses(&self) -> Guard<Option<Arc<StateAddresses>>> {
        self.addresses.load()
    }

    /// Applies what `rules` require of this node.
    pub(crate) fn apply_rules(&self, rules: &RuleSet) {
        if self.leases.follow_interval_of(rules) {
            self.ticks_sooner.notify_one();
        }
        let has_local_rule = rules.rules().iter().any(|rule| rule.on_store_failure == OnStoreFailure::Local);
        let knows_nodes = self.settings.expected_nodes.is_some() || self.known_nodes.is_kept();
        if has_local_rule && !knows_nodes && !self.has_warned_of_node_count.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a rule has `on_store_failure: local`, and the number of nodes is not stored: restarted while the \
                 store is unavailable, this node would admit the whole limit (set `data`, or `redis.expected_nodes`)"
            );
        }
    }

    /// About how many keys that are in use here belong to one shard.
    fn keys_of_one_shard(&self) -> usize {
        self.leases.lease_count() / self.servers.shards().len().max(1)
    }

    /// Whether all shards are unavailable.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.servers.shards().iter().all(|shard| shard.is_open())
    }
}

impl std::fmt::Debug for StoreCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreCore").field("url", self.servers.url()).finish_non_exhaustive()
    }
}

/// Sends heartbeats to every shard: each second, or less often in a large fleet.
async fn keep_sending_heartbeats(core: Weak<StoreCore>, sooner: Arc<Notify>) {
    loop {
        let last = Instant::now();
        let Some(interval_us) = core.upgrade().map(|core| heartbeat::interval_us(core.fleet.node_count()))
        else {
            return;
        };
        tokio::select! {
            () = tokio::time::sleep_until(last + Duration::from_micros(interval_us)) => {}
            () = sooner.notified() => tokio::time::sleep_until(last + fleet::SHORTEST_INTERVAL).await,
        }
        let Some(core) = core.upgrade() else { return };
        core.send_heartbeats().await;
    }
}

/// Reports spent tokens and returns idle credit.
async fn keep_ticking(core: Weak<StoreCore>, sooner: Arc<Notify>) {
    let mut last = Instant::now();
    loop {
        let tick_us = match core.upgrade() {
            Some(core) => core.leases.tick_us(),
            None => return,
        };
        tokio::select! {
            () = tokio::time::sleep_until(last + Duration::from_micros(tick_us)) => {}
            () = sooner.notified() => continue,
        }
        let Some(core) = core.upgrade() else { return };
        last = Instant::now();
        core.leases.tick(core.lease_time(), |call: StoreCall<VerdictSender>| core.send(call));
    }
}
