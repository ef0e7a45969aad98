//! The queues in which requests wait, one for each key on this node.
//!
//! Each request draws a number. While the queue is empty, it is charged at once; if it is refused, it takes the place of
//! its number. Otherwise it waits at the end. Only the first of a queue is charged. A request that leaves the queue,
//! because it is admitted, gives up or its client disconnects, wakes the next.

use crate::decision::Decision;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::sync::Notify;
use tollgate_core::key::StateKey;

const SHARDS: usize = 64;

/// The queues of all keys.
#[derive(Debug)]
pub(crate) struct WaitQueues {
    shards: Box<[Mutex<HashMap<StateKey, WaitQueue>>]>,
}

impl Default for WaitQueues {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

/// Kept as long as a request has a turn in it.
#[derive(Debug, Default)]
struct WaitQueue {
    waiting: BTreeMap<u64, QueueWaiter>,
    next: u64,
    turns: usize,
    /// The last refusal.
    refusal: Option<Decision>,
}

#[derive(Debug)]
struct QueueWaiter {
    cost: u64,
    wake: Arc<Notify>,
}

/// A number in a queue. Dropped, it leaves the queue.
#[derive(Debug)]
pub(super) struct QueueTurn<'l> {
    queues: &'l WaitQueues,
    key: StateKey,
    number: u64,
    wake: Arc<Notify>,
}

/// The requests before a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestsAhead {
    pub(super) count: usize,
    /// The sum of their costs.
    pub(super) cost: u64,
    /// The last refusal.
    pub(super) refusal: Option<Decision>,
}

impl WaitQueues {
    fn shard(&self, key: StateKey) -> &Mutex<HashMap<StateKey, WaitQueue>> {
        &self.shards[(key.as_bits() >> 32) as usize % SHARDS]
    }

    /// Draws the next number of the queue of `key`.
    pub(super) fn arrive(&self, key: StateKey) -> QueueTurn<'_> {
        let mut shard = self.shard(key).lock();
        let queue = shard.entry(key).or_default();
        queue.turns += 1;
        queue.next += 1;
        QueueTurn { queues: self, key, number: queue.next, wake: Arc::new(Notify::new()) }
    }

    /// The number of requests that wait.
    pub(crate) fn waiting(&self) -> usize {
        let of_shard = |shard: &Mutex<HashMap<StateKey, WaitQueue>>| {
            shard.lock().values().map(|queue| queue.waiting.len()).sum::<usize>()
        };
        self.shards.iter().map(of_shard).sum()
    }

    /// Wakes the first of the queue of `key`: a slot may be free.
    pub(crate) fn wake_first(&self, key: StateKey) {
        if let Some(queue) = self.shard(key).lock().get(&key) {
            queue.wake_first();
        }
    }
}

impl WaitQueue {
    fn wake_first(&self) {
        if let Some((_, first)) = self.waiting.first_key_value() {
            first.wake.notify_one();
        }
    }
}

impl QueueTurn<'_> {
    fn with<T>(&self, with: impl FnOnce(&mut WaitQueue) -> T) -> T {
        with(self.queues.shard(self.key).lock().entry(self.key).or_default())
    }

    /// The requests that wait before it.
    pub(super) fn ahead(&self) -> RequestsAhead {
        self.with(|queue| {
            let before = queue.waiting.range(..self.number);
            let (count, cost) = before.fold((0, 0), |(count, cost), (_, one)| (count + 1, cost + one.cost));
            RequestsAhead { count, cost, refusal: queue.refusal }
        })
    }

    /// Starts to wait, if fewer than `length` wait.
    pub(super) fn wait(&self, cost: u64, length: u64) -> bool {
        self.with(|queue| {
            let has_room = (queue.waiting.len() as u64) < length;
            if has_room {
                queue.waiting.insert(self.number, QueueWaiter { cost, wake: Arc::clone(&self.wake) });
            }
            has_room
        })
    }

    /// Whether no request waits before it.
    pub(super) fn is_first(&self) -> bool {
        self.with(|queue| queue.waiting.first_key_value().is_none_or(|(first, _)| *first >= self.number))
    }

    /// Records its refusal for the requests behind it.
    pub(super) fn record_refusal(&self, refusal: Decision) {
        self.with(|queue| queue.refusal = Some(refusal));
    }

    /// Resolves when it is woken.
    pub(super) async fn woken(&self) {
        self.wake.notified().await;
    }
}

impl Drop for QueueTurn<'_> {
    fn drop(&mut self) {
        let mut shard = self.queues.shard(self.key).lock();
        let Some(queue) = shard.get_mut(&self.key) else { return };
        queue.turns -= 1;
        let waited = queue.waiting.remove(&self.number).is_some();
        if queue.turns == 0 {
            shard.remove(&self.key);
        } else if waited {
            queue.wake_first();
        }
    }
}
