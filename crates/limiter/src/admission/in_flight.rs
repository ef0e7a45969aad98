//! The requests in flight on this node, by key.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tollgate_core::algorithm::LimitStep;
use tollgate_core::algorithm::concurrency::HeldSlots;
use tollgate_core::key::StateKey;
use tollgate_core::time::{StoreTime, UnixTime};

const SHARDS: usize = 64;

/// Every entry belongs to a request in flight, so the requests bound the table.
#[derive(Debug)]
pub(crate) struct InFlight {
    shards: Box<[Mutex<HashMap<StateKey, HeldSlots>>]>,
    next: AtomicU64,
    next_to_tidy: AtomicUsize,
}

impl Default for InFlight {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            next: AtomicU64::new(1),
            next_to_tidy: AtomicUsize::new(0),
        }
    }
}

impl InFlight {
    fn shard(&self, key: StateKey) -> &Mutex<HashMap<StateKey, HeldSlots>> {
        &self.shards[(key.as_bits() >> 32) as usize % SHARDS]
    }

    /// A number that no other request of this node has.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes a slot for the request `number`.
    pub(crate) fn take(
        &self,
        key: StateKey,
        limit: u32,
        longest_us: u64,
        number: u64,
        now: UnixTime,
    ) -> LimitStep {
        self.shard(key).lock().entry(key).or_default().take(
            limit,
            longest_us,
            number,
            StoreTime::of_embedded_store(now),
        )
    }

    /// Returns the slot of the request `number`.
    pub(crate) fn release(&self, key: StateKey, number: u64) {
        let mut shard = self.shard(key).lock();
        if let Some(held) = shard.get_mut(&key) {
            held.release(number);
            if held.is_empty() {
                shard.remove(&key);
            }
        }
    }

    /// How many slots of `key` are held.
    pub(crate) fn held(&self, key: StateKey, now: UnixTime) -> u32 {
        let mut shard = self.shard(key).lock();
        let Some(held) = shard.get_mut(&key) else { return 0 };
        held.expire(StoreTime::of_embedded_store(now));
        held.len().min(u32::MAX as usize) as u32
    }

    /// Removes expired slots of the next shard.
    pub(crate) fn tidy(&self, now: UnixTime) {
        let index = self.next_to_tidy.fetch_add(1, Ordering::Relaxed) % SHARDS;
        self.shards[index].lock().retain(|_, held| {
            held.expire(StoreTime::of_embedded_store(now));
            !held.is_empty()
        });
    }
}
