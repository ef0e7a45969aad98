//! One primary: its connection, its breaker, and the task that keeps both true.
//!
//! A shard outlives its server: when a failover gives its keys to another, the address changes and the
//! shard, its breaker and its counters stay. Calls go out on the current connection; what they meet feeds the
//! breaker. The supervisor (see [`supervisor`]) connects, pings an idle server, and probes.

mod supervisor;

pub(super) use supervisor::supervise;

use super::breaker::{Breaker, BreakerState, BreakerTransition};
use super::connection::{DialError, Dialer, Failure, RedisConnection, timer_time};
use super::errors::{StoreErrorKind, StoreErrors};
use super::metrics::ShardCounters;
use super::self_test::{self, KeyTags};
use super::shard_clock::ShardClock;
use super::url::ServerAddress;
use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::{Cmd, Value};
use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;
use tollgate_core::time::TimerTime;

/// Redis knows scripts that touch several slots from this version on.
const CROSSES_SLOTS: (u32, u32) = (7, 0);
/// Servers that passed the self-test; so many are remembered.
const MOST_TESTED: usize = 1024;

/// A change of a shard's availability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardChange {
    /// Unavailable: failure policies apply to its keys.
    Degraded,
    /// Available again.
    Restored,
}

/// Called for every [`ShardChange`]: the shard, the change, how long and how often calls failed.
pub(crate) type ShardHook = dyn Fn(&RedisShard, ShardChange, Duration, u32) + Send + Sync;

/// How a call fared, for [`RedisShard::report`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// A reply came.
    Answered,
    /// None came in time.
    TimedOut,
}

/// What all shards of a store have in common.
pub(crate) struct ShardContext {
    pub(crate) dialer: Dialer,
    /// For each call.
    pub(crate) timeout: Duration,
    pub(crate) hook: Box<ShardHook>,
    /// How many nodes share the store.
    pub(crate) nodes: AtomicU32,
    /// Requests a new slot map.
    pub(crate) rediscover: Notify,
    /// How keys begin.
    pub(crate) prefix: String,
    /// Errors that the servers replied with.
    pub(crate) errors: StoreErrors,
    /// The servers that passed the self-test.
    pub(crate) tested: Mutex<BTreeSet<ServerAddress>>,
    /// A server was found that refuses scripts on several slots.
    pub(crate) refuses_cross_slots: AtomicBool,
}

/// See the module.
pub(crate) struct RedisShard {
    number: u32,
    common: Arc<ShardContext>,
    /// None while the primary is unknown.
    address: ArcSwapOption<ServerAddress>,
    connection: ArcSwapOption<RedisConnection>,
    /// Where the self-test puts its keys.
    tags: ArcSwapOption<KeyTags>,
    breaker: Breaker,
    clock: ShardClock,
    counters: ShardCounters,
    /// When the breaker opened, while it is not closed.
    unavailable_since: Mutex<Option<TimerTime>>,
    /// When the server last answered.
    answered_us: AtomicU64,
    is_retired: AtomicBool,
    /// Wakes the supervisor: another address, a connection that was dropped, the end.
    wake: Notify,
}

impl RedisShard {
    pub(super) fn new(number: u32, common: Arc<ShardContext>, address: Option<ServerAddress>) -> Arc<Self> {
        Arc::new(Self {
            number,
            common,
            address: ArcSwapOption::new(address.map(Arc::new)),
            connection: ArcSwapOption::empty(),
            tags: ArcSwapOption::empty(),
            breaker: Breaker::new(),
            clock: ShardClock::default(),
            counters: ShardCounters::default(),
            unavailable_since: Mutex::new(None),
            answered_us: AtomicU64::new(0),
            is_retired: AtomicBool::new(false),
            wake: Notify::new(),
        })
    }

    /// Its number; it keeps it through failovers.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Where its primary is, as far as known.
    pub(crate) fn address(&self) -> Option<Arc<ServerAddress>> {
        self.address.load_full()
    }

    /// Whether no call is attempted now. Takes no lock.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.breaker.is_open()
    }

    /// What its breaker does.
    pub(crate) fn state(&self) -> BreakerState {
        self.breaker.state()
    }

    /// The time that it is expected to have.
    pub(crate) fn clock(&self) -> &ShardClock {
        &self.clock
    }

    /// What was counted.
    pub(crate) fn counters(&self) -> &ShardCounters {
        &self.counters
    }

    /// The server's version, while there is a connection and if it says it: (7, 0).
    #[cfg(test)]
    pub(crate) fn version(&self) -> Option<(u32, u32)> {
        self.connection.load().as_ref().and_then(|connection| connection.version())
    }

    /// Whether one script call may serve clients of several slots, in a Cluster.
    pub(crate) fn crosses_slots(&self) -> bool {
        let is_new = self.connection.load().as_ref().is_some_and(|connection| crosses_slots(connection));
        is_new && !self.common.refuses_cross_slots.load(Ordering::Relaxed)
    }

    /// Counts an error that the server answered, and logs it unless the same was logged just now. Whatever was asked is
    /// decided without the store.
    pub(crate) fn note_error(&self, failure: &Failure) {
        if let Some(kind) = failure.kind() {
            self.note(kind, &failure.to_string());
        }
    }

    /// The same for an error inside a script, which the reply as a whole does not show.
    pub(crate) fn note_error_inside(&self, failure: &Failure) {
        self.note_error(failure);
        if let (Failure::ReadOnly, Some(connection)) = (failure, self.connection.load_full()) {
            self.record_result(&connection, &Err(Failure::ReadOnly));
        }
    }

    fn note(&self, kind: StoreErrorKind, reason: &str) {
        if let Some(errors) = self.common.errors.note(self.number, kind, reason, timer_time()) {
            let address = self.address().map_or_else(|| "unknown".to_owned(), |address| address.to_string());
            tracing::error!(
                shard = self.number,
                address,
                reason,
                errors,
                "store error; decisions that need it are degraded"
            );
        }
    }

    /// As [`call`](Self::call); an error reply is also counted and logged.
    pub(crate) async fn call_noting_errors(&self, command: &Cmd) -> Result<Value, Failure> {
        self.call(command).await.inspect_err(|failure| self.note_error(failure))
    }

    pub(super) fn set_tags(&self, tags: KeyTags) {
        self.tags.store(Some(Arc::new(tags)));
    }

    /// Connects to the primary at `address`. The first time, everything that will be needed of it is tried.
    pub(super) async fn dial(&self, address: &ServerAddress) -> Result<RedisConnection, DialError> {
        let common = &self.common;
        let connection = common.dialer.dial_primary(address).await?;
        let tags = self.tags.load_full();
        let Some(tags) = tags.filter(|_| !common.tested.lock().contains(address)) else {
            return Ok(connection);
        };
        let test = self_test::run(&connection, common.dialer.role(), address, &common.prefix, &tags);
        let late = |_| DialError::Unreachable("timeout in the self-test".to_owned());
        let found = timeout(common.dialer.within(), test).await.map_err(late)??;
        found.failures.iter().for_each(|failure| self.note_error(failure));
        if found.crosses_slots == Some(false) && crosses_slots(&connection) {
            common.refuses_cross_slots.store(true, Ordering::Relaxed);
            tracing::warn!(
                shard = self.number, %address,
                "server refuses scripts on keys of several slots; each client is sent in a call of its own"
            );
        }
        let mut tested = common.tested.lock();
        if tested.len() >= MOST_TESTED {
            tested.clear();
        }
        if !found.is_partial {
            tested.insert(address.clone());
        }
        drop(tested);
        Ok(connection)
    }

    /// Sends a command; no reply within the timeout is [`Failure::Lost`].
    pub(crate) async fn call(&self, command: &Cmd) -> Result<Value, Failure> {
        let connection = self.usable_connection()?;
        match timeout(self.common.timeout, connection.send(command)).await {
            Ok(result) => {
                self.record_result(&connection, &result);
                result
            }
            Err(_) => {
                self.report(CallOutcome::TimedOut);
                Err(Failure::Lost)
            }
        }
    }

    /// Sends a command and waits for the reply however late; when the server is given up, it is
    /// [`Failure::Lost`]. A caller that stops waiting earlier reports it with [`report`](Self::report), and should keep
    /// the future going: if it is dropped before the command was written, the command is not sent.
    pub(crate) fn start(
        self: &Arc<Self>,
        command: Cmd,
    ) -> impl Future<Output = Result<Value, Failure>> + Send + 'static {
        let shard = Arc::clone(self);
        async move {
            let connection = shard.usable_connection()?;
            let result = connection.send(&command).await;
            shard.record_result(&connection, &result);
            result
        }
    }

    /// As [`start`](Self::start), for a slot that is on its way here ([`Failure::Ask`]).
    pub(crate) fn start_asking(
        self: &Arc<Self>,
        command: Cmd,
    ) -> impl Future<Output = Result<Value, Failure>> + Send + 'static {
        let shard = Arc::clone(self);
        async move {
            let connection = shard.usable_connection()?;
            let result = connection.send_asking(command).await;
            shard.record_result(&connection, &result);
            result
        }
    }

    /// Has everything written that was started, if the connection can take it.
    pub(super) fn write_now(&self) {
        if let Some(connection) = &*self.connection.load() {
            connection.write_now();
        }
    }

    fn usable_connection(&self) -> Result<Arc<RedisConnection>, Failure> {
        if self.breaker.is_open() {
            return Err(Failure::Unavailable);
        }
        self.connection.load_full().ok_or(Failure::Unavailable)
    }

    /// Counts a script call that was answered after so long.
    pub(crate) fn count_duration(&self, took: Duration) {
        self.counters.durations.observe(took.as_nanos().min(u64::MAX.into()) as u64);
    }

    /// The time during which the breaker was not closed.
    pub(crate) fn unavailable_us(&self) -> u64 {
        let since = self.unavailable_since.lock();
        let current_us = since.map_or(0, |since| timer_time().since(since));
        self.counters.unavailable_us.load(Ordering::Relaxed) + current_us
    }

    /// Records the outcome of a call that the shard did not see, such as a timeout in the caller.
    pub(crate) fn report(&self, outcome: CallOutcome) {
        match outcome {
            CallOutcome::Answered => {
                self.answered_us.store(timer_time().as_us(), Ordering::Relaxed);
                self.breaker.record_success();
            }
            CallOutcome::TimedOut => {
                self.counters.timeouts.fetch_add(1, Ordering::Relaxed);
                self.record_failure();
            }
        }
    }

    /// Records the result of a call.
    fn record_result(&self, connection: &Arc<RedisConnection>, result: &Result<Value, Failure>) {
        match result {
            Err(Failure::Unavailable) => {}
            // Many calls are lost with one connection, and that is one failure: the supervisor's to count.
            Err(Failure::Lost) => self.wake.notify_one(),
            // It is not, or no longer, the primary.
            Err(Failure::ReadOnly | Failure::Loading) => {
                self.record_failure();
                self.drop_connection(connection);
                self.common.rediscover.notify_one();
            }
            Err(failure) if failure.is_outage() => self.record_failure(),
            Err(Failure::Moved { .. }) => {
                self.report(CallOutcome::Answered);
                self.common.rediscover.notify_one();
            }
            Ok(_) | Err(_) => self.report(CallOutcome::Answered),
        }
    }

    fn record_failure(&self) {
        self.counters.failures.fetch_add(1, Ordering::Relaxed);
        let turn = self.breaker.record_failure(timer_time());
        self.degrade(turn);
    }

    /// After the breaker opened: the connection is dropped, as it may never reply again, and the primary is searched for.
    fn degrade(&self, turn: Option<BreakerTransition>) {
        let Some(turn) = turn else { return };
        self.counters.opened.fetch_add(1, Ordering::Relaxed);
        self.unavailable_since.lock().get_or_insert(timer_time());
        if let Some(connection) = self.connection.swap(None) {
            connection.sever();
        }
        self.call_hook(ShardChange::Degraded, turn);
        self.wake.notify_one();
        self.common.rediscover.notify_one();
    }

    fn restore(&self, turn: Option<BreakerTransition>) {
        let Some(turn) = turn else { return };
        self.counters.closed.fetch_add(1, Ordering::Relaxed);
        if let Some(since) = self.unavailable_since.lock().take() {
            self.counters.unavailable_us.fetch_add(timer_time().since(since), Ordering::Relaxed);
        }
        self.call_hook(ShardChange::Restored, turn);
    }

    fn call_hook(&self, change: ShardChange, turn: BreakerTransition) {
        (self.common.hook)(self, change, Duration::from_micros(turn.after_us), turn.failures);
    }

    /// Gives up `connection`, unless another has replaced it.
    fn drop_connection(&self, connection: &Arc<RedisConnection>) {
        self.connection.rcu(|current| match current {
            Some(current) if Arc::ptr_eq(current, connection) => None,
            other => other.clone(),
        });
        connection.sever();
        self.wake.notify_one();
    }

    /// The primary is elsewhere now: its connection is dropped, and the new one is tried at once.
    pub(super) fn move_to(&self, address: ServerAddress) {
        let old = self.address.swap(Some(Arc::new(address)));
        if let Some(connection) = self.connection.swap(None) {
            connection.sever();
        }
        self.breaker.probe_now(timer_time());
        self.wake.notify_one();
        if let (Some(old), Some(new)) = (old, self.address()) {
            tracing::info!(shard = self.number, %old, %new, "primary of a shard has changed");
        }
    }

    /// Uses a new connection from now on.
    pub(super) fn adopt(&self, connection: &Arc<RedisConnection>) {
        self.answered_us.store(timer_time().as_us(), Ordering::Relaxed);
        self.connection.store(Some(Arc::clone(connection)));
    }

    /// A connection to a server that replies, for questions about the whole.
    pub(super) fn live_connection(&self) -> Option<Arc<RedisConnection>> {
        self.usable_connection().ok()
    }

    /// Opens the breaker at the start, when the server could not be reached.
    pub(super) fn trip(&self) {
        let turn = self.breaker.trip(timer_time());
        self.degrade(turn);
    }

    /// A shard that is on no server, and not in the slot map.
    #[cfg(test)]
    pub(super) fn not_in_the_map(&self, number: u32) -> Arc<Self> {
        Self::new(number, Arc::clone(&self.common), None)
    }

    /// No keys are left for it: everything stops.
    pub(super) fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
        if let Some(connection) = self.connection.swap(None) {
            connection.sever();
        }
        self.wake.notify_one();
    }
}

impl fmt::Debug for RedisShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisShard")
            .field("number", &self.number)
            .field("address", &self.address())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// Whether the server should know scripts on several slots. One that hides its version is tried.
fn crosses_slots(connection: &RedisConnection) -> bool {
    connection.version().is_none_or(|version| version >= CROSSES_SLOTS)
}

/// The line in the log for a [`ShardChange`]; `keys` is about how many keys in use here are the shard's.
pub(crate) fn log_change(
    shard: &RedisShard,
    change: ShardChange,
    after: Duration,
    failures: u32,
    keys: usize,
) {
    let address = shard.address().map_or_else(|| "unknown".to_owned(), |address| address.to_string());
    let shard = shard.number();
    match change {
        ShardChange::Degraded => {
            tracing::error!(
                shard,
                address,
                ?after,
                failures,
                keys,
                "shard unavailable; failure policies apply to its keys"
            );
        }
        ShardChange::Restored => {
            tracing::info!(shard, address, ?after, failures, keys, "shard reconnected")
        }
    }
}
