//! Which server serves which key: one server, the primary that Sentinels name, or the nodes of a Cluster.
//!
//! The result is a [`SlotMap`], replaced as a whole. One task keeps it current: it asks again when a shard fails, when
//! a server reports that a slot has moved, and periodically; and it never relies on the server that fails.
//! (The client library's own router waits for a frozen primary to reply; this one asks the others.)

mod cluster;
mod sentinel;
mod slot_map;
#[cfg(test)]
mod tests;

use super::connection::{DialError, Dialer, Failure, OpenError, PushSink, RedisConnection, ServerRole};
use super::errors::{StoreErrorKind, StoreErrors};
use super::shard::{RedisShard, ShardContext, ShardHook, log_change, supervise};
use super::url::{ServerAddress, StoreKind, StoreUrl};
use arc_swap::ArcSwap;
use cluster::ClusterDiscovery;
use parking_lot::Mutex;
use sentinel::SentinelDiscovery;
use slot_map::SlotMap;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// While a shard is down.
const DISCOVER_WHEN_DOWN: Duration = Duration::from_millis(200);
/// Between two discoveries, however many are requested.
const DISCOVER_PAUSE: Duration = Duration::from_millis(100);

/// How to talk to the servers.
pub(crate) struct ServerSettings {
    /// For each call.
    pub(crate) timeout: Duration,
    /// For a new connection, from the first packet to the last check.
    pub(crate) connect_timeout: Duration,
    /// How keys begin, also those of the self-test.
    pub(crate) prefix: String,
    /// Called when a shard becomes unavailable and when it is reconnected; the default logs it.
    pub(crate) hook: Option<Box<ShardHook>>,
}

impl Default for ServerSettings {
    fn default() -> Self {
        let (timeout, connect_timeout) = (Duration::from_millis(50), Duration::from_millis(500));
        Self { timeout, connect_timeout, prefix: "tg:".to_owned(), hook: None }
    }
}

/// See the module.
pub(crate) struct Servers {
    url: StoreUrl,
    common: Arc<ShardContext>,
    map: ArcSwap<SlotMap>,
    discovery: Discovery,
    next_number: AtomicU32,
    /// Servers that have no slots yet, and are getting their first.
    added_servers: Mutex<BTreeMap<ServerAddress, Arc<RedisConnection>>>,
    /// Not before the first connections are made: those are looked at here.
    is_supervised: AtomicBool,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// How the map is found.
enum Discovery {
    /// It is known.
    Fixed,
    Sentinel(SentinelDiscovery),
    Cluster(ClusterDiscovery),
}

impl Servers {
    /// Connects. An authentication error is fatal; a connection error is retried, and the breakers of the shards are open
    /// meanwhile. Needs a tokio runtime, here and until it is dropped.
    pub(crate) async fn open(url: &StoreUrl, settings: ServerSettings) -> Result<Arc<Self>, OpenError> {
        let role = if url.kind == StoreKind::Cluster { ServerRole::ClusterNode } else { ServerRole::Primary };
        let common = Arc::new(ShardContext {
            nodes: AtomicU32::new(1),
            dialer: Dialer::new(url, role, settings.connect_timeout)?,
            timeout: settings.timeout,
            hook: settings.hook.unwrap_or_else(|| {
                Box::new(|shard, change, after, failures| log_change(shard, change, after, failures, 0))
            }),
            rediscover: Notify::new(),
            prefix: settings.prefix,
            errors: StoreErrors::default(),
            tested: Mutex::default(),
            refuses_cross_slots: AtomicBool::new(false),
        });
        let discovery = match &url.kind {
            StoreKind::Standalone => Discovery::Fixed,
            StoreKind::Sentinel(name) => {
                let dialer = Dialer::new(url, ServerRole::Sentinel, settings.connect_timeout)?;
                Discovery::Sentinel(SentinelDiscovery::new(name, &url.addresses, dialer))
            }
            StoreKind::Cluster => Discovery::Cluster(ClusterDiscovery::new(&url.addresses)),
        };
        let known = match discovery {
            Discovery::Fixed => url.addresses.first().cloned(),
            _ => None,
        };
        let first = RedisShard::new(0, Arc::clone(&common), known);
        let servers = Arc::new(Self {
            url: url.clone(),
            common,
            map: ArcSwap::from_pointee(SlotMap::single(Arc::clone(&first))),
            discovery,
            next_number: AtomicU32::new(1),
            added_servers: Mutex::default(),
            is_supervised: AtomicBool::new(false),
            tasks: Mutex::default(),
        });
        first.set_tags(servers.map.load().own_tags(&first));
        servers.discover().await?;
        servers.connect().await?;
        servers.is_supervised.store(true, Ordering::Release);
        for shard in servers.shards() {
            tokio::spawn(supervise(shard));
        }
        let task = tokio::spawn(follow(Arc::downgrade(&servers), Arc::clone(&servers.common)));
        servers.tasks.lock().push(task);
        Ok(servers)
    }

    /// Standalone, Sentinel or Cluster.
    pub(crate) fn kind(&self) -> &StoreKind {
        &self.url.kind
    }

    /// Their URL; shows no password.
    pub(crate) fn url(&self) -> &StoreUrl {
        &self.url
    }

    /// The shard that serves `key`.
    pub(crate) fn shard_of(&self, key: &[u8]) -> Arc<RedisShard> {
        Arc::clone(self.map.load().shard_of(key))
    }

    /// All shards.
    pub(crate) fn shards(&self) -> Vec<Arc<RedisShard>> {
        self.map.load().shards().to_vec()
    }

    /// The shard whose primary is at `address`, as [`Failure::Moved`](super::connection::Failure::Moved) and
    /// `Ask` name it; `asked` is the shard that replied so.
    pub(crate) fn shard_at(&self, address: &str, asked: &RedisShard) -> Option<Arc<RedisShard>> {
        let address = self.address_of(address, asked)?;
        self.shards().into_iter().find(|shard| shard.address().is_some_and(|known| *known == address))
    }

    /// What [`shard_at`](Self::shard_at) reads.
    pub(crate) fn address_of(&self, address: &str, asked: &RedisShard) -> Option<ServerAddress> {
        let asked = asked.address()?;
        match address.strip_prefix(':') {
            Some(port) => Some(ServerAddress::Tcp(cluster::host(&asked).to_owned(), port.parse().ok()?)),
            None => cluster::address(address),
        }
    }

    /// A connection to a server that is no shard yet: its first slots are on their way to it, or have just arrived.
    pub(crate) async fn added_server(
        &self,
        address: &ServerAddress,
    ) -> Result<Arc<RedisConnection>, Failure> {
        if let Some(connection) =
            self.added_servers.lock().get(address).filter(|connection| !connection.is_closed())
        {
            return Ok(Arc::clone(connection));
        }
        let dialed = self.common.dialer.dial(address).await;
        let connection = Arc::new(dialed.map_err(|_| Failure::Unavailable)?);
        self.added_servers.lock().insert(address.clone(), Arc::clone(&connection));
        Ok(connection)
    }

    /// A connection of the caller's own to the primary at `address`.
    pub(crate) async fn dial_primary(&self, address: &ServerAddress) -> Result<RedisConnection, DialError> {
        self.common.dialer.dial_primary(address).await
    }

    /// A connection of the caller's own on which the server pushes messages, as in [`Dialer::dial_with`].
    pub(crate) async fn dial_subscriber(
        &self,
        address: &ServerAddress,
        pushed: PushSink,
    ) -> Result<RedisConnection, DialError> {
        self.common.dialer.dial_with(address, Some(pushed)).await
    }

    /// So many nodes share the store: the more there are, the less often each pings an idle server.
    pub(super) fn set_nodes(&self, nodes: u32) {
        self.common.nodes.store(nodes, Ordering::Relaxed);
    }

    /// How many errors of this kind the servers answered with.
    pub(crate) fn errors(&self, kind: StoreErrorKind) -> u64 {
        self.common.errors.count(kind)
    }

    /// How many errors of this kind the shard of this number answered with.
    pub(crate) fn shard_errors(&self, shard: u32, kind: StoreErrorKind) -> u64 {
        self.common.errors.count_of(shard, kind)
    }

    /// A short text whose slot `shard` serves: `{text}` in a key brings it there. Empty if it serves none.
    pub(crate) fn own_tag(&self, shard: &RedisShard) -> String {
        self.map.load().own_tag(shard)
    }

    /// Requests a new slot map. Requests are merged: the servers are asked a few times a second at most.
    pub(crate) fn refresh(&self) {
        self.common.rediscover.notify_one();
    }

    /// Ends every task and connection. Calls under way are lost.
    pub(crate) async fn close(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            task.abort();
            let _ = task.await;
        }
        for shard in self.shards() {
            shard.retire();
        }
        self.added_servers.lock().clear();
    }

    /// Asks which server serves which slot, and applies the replies.
    async fn discover(&self) -> Result<(), OpenError> {
        match &self.discovery {
            Discovery::Fixed => {}
            Discovery::Sentinel(sentinel) => {
                let shards = self.shards();
                let primary = sentinel.primary(&self.common).await?;
                if let (Some(shard), Some(primary)) = (shards.first(), primary)
                    && shard.address().is_none_or(|known| *known != primary)
                {
                    shard.move_to(primary);
                }
            }
            Discovery::Cluster(cluster) => {
                let map = self.map.load_full();
                if let Some(topology) = cluster.topology(&map, &self.common).await? {
                    self.connect_added_servers(&map, &topology).await;
                    self.apply(&map, topology);
                }
            }
        }
        Ok(())
    }

    /// Connects to servers that were added to the Cluster, so that no call finds their shard without a connection. After a
    /// failover the shard is moved at once: its old connection serves nothing any more.
    async fn connect_added_servers(&self, map: &SlotMap, topology: &[cluster::ClusterPrimary]) {
        let is_listed = |shard: &Arc<RedisShard>| {
            let address = shard.address();
            address.is_some_and(|known| topology.iter().any(|primary| primary.address == *known))
        };
        if !self.is_supervised.load(Ordering::Acquire) || !map.shards().iter().all(is_listed) {
            return;
        }
        let is_known = |address: &ServerAddress| {
            map.shards().iter().any(|shard| shard.address().is_some_and(|known| *known == *address))
        };
        let added = topology.iter().map(|primary| &primary.address).filter(|address| !is_known(address));
        let connecting = async {
            for address in added {
                let _ = self.added_server(address).await;
            }
        };
        // A server that cannot be reached becomes a shard all the same, and its supervisor retries.
        let _ = timeout(self.common.dialer.within(), connecting).await;
    }

    fn apply(&self, old: &SlotMap, topology: Vec<cluster::ClusterPrimary>) {
        let mut created = Vec::new();
        let new = old.changed(topology, |address| {
            let number = self.next_number.fetch_add(1, Ordering::Relaxed);
            let known = self.added_servers.lock().remove(&address);
            let shard = RedisShard::new(number, Arc::clone(&self.common), Some(address));
            // So that no call finds it without a connection.
            if let Some(connection) = known.filter(|connection| !connection.is_closed()) {
                shard.adopt(&connection);
            }
            created.push(Arc::clone(&shard));
            shard
        });
        let Some(new) = new else { return };
        for shard in new.shards() {
            shard.set_tags(new.own_tags(shard));
        }
        if self.is_supervised.load(Ordering::Acquire) {
            for shard in created {
                tokio::spawn(supervise(shard));
            }
        }
        for shard in old.shards() {
            if !new.has(shard) {
                tracing::info!(shard = shard.number(), "shard has no slots left; closing it");
                shard.retire();
            }
        }
        self.map.store(Arc::new(new));
        // Each is a shard now, or is connected again when it is needed.
        self.added_servers.lock().clear();
    }

    /// The first connection to every shard.
    async fn connect(&self) -> Result<(), OpenError> {
        let mut dials = JoinSet::new();
        for shard in self.shards() {
            dials.spawn(async move {
                let result = match shard.address() {
                    Some(address) => shard.dial(&address).await,
                    None => Err(DialError::Unreachable("its address is unknown".to_owned())),
                };
                (shard, result)
            });
        }
        while let Some(done) = dials.join_next().await {
            match done {
                Ok((shard, Ok(connection))) => shard.adopt(&Arc::new(connection)),
                Ok((_, Err(DialError::Refused(error)))) => return Err(error),
                Ok((shard, Err(DialError::Unreachable(reason) | DialError::NotReady(reason)))) => {
                    tracing::warn!(store = %self.url, reason, "store unavailable; retrying");
                    shard.trip();
                }
                Err(error) => tracing::error!(%error, "task that opens the first connection panicked"),
            }
        }
        Ok(())
    }

    fn pause(&self) -> Duration {
        let is_down = self.map.load().shards().iter().any(|shard| shard.is_open());
        match &self.discovery {
            Discovery::Fixed => Duration::from_secs(3600),
            _ if is_down => DISCOVER_WHEN_DOWN,
            Discovery::Sentinel(_) => sentinel::DISCOVER_EVERY,
            Discovery::Cluster(_) => cluster::DISCOVER_EVERY,
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for task in self.tasks.lock().iter() {
            task.abort();
        }
        for shard in self.shards() {
            shard.retire();
        }
    }
}

/// Keeps the map current until the servers are dropped.
async fn follow(servers: Weak<Servers>, common: Arc<ShardContext>) {
    let mut last_error = String::new();
    loop {
        let Some(pause) = servers.upgrade().map(|servers| servers.pause()) else { return };
        // Requested, or due: both lead to discovery.
        let _ = timeout(pause, common.rediscover.notified()).await;
        let Some(servers) = servers.upgrade() else { return };
        match servers.discover().await {
            Ok(()) => last_error.clear(),
            Err(error) if error.to_string() != last_error => {
                last_error = error.to_string();
                tracing::error!("{last_error}");
            }
            Err(_) => {}
        }
        drop(servers);
        sleep(DISCOVER_PAUSE).await;
    }
}
