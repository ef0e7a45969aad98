//! Slots among the requests in flight of the whole fleet.
//!
//! A slot at the store expires after a few seconds. The node that holds it renews it every second, so that the slots of a
//! node that crashes expire soon, and slots that the store has lost are taken again, because the requests are still in
//! flight. Slots are never taken in advance.

use super::StoreCore;
use super::connection::Failure;
use super::script_call::NamedScript;
use super::shard::RedisShard;
use parking_lot::Mutex;
use redis::Value;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;
use tollgate_core::algorithm::concurrency::SCRIPT;
use tollgate_core::state_address::StateAddress;
use tollgate_core::time::BootTime;
use tollgate_limiter::{SharedSlot, SlotFuture, SlotTaken, StoreUnavailable};

/// A slot expires after this time unless it is renewed.
const EXPIRES_US: u64 = 4_000_000;
/// Between two renewals.
const KEEP: Duration = Duration::from_secs(1);
/// Slots in one call: more would delay other commands of the server.
const MOST_AT_ONCE: usize = 500;

static SLOTS: LazyLock<NamedScript> = LazyLock::new(|| NamedScript::new(SCRIPT));

/// The number of a slot, and when it ends at the latest.
type HeldSlot = (u64, BootTime);

/// The slots of this node.
#[derive(Debug, Default)]
pub(super) struct NodeSlots {
    held: Mutex<HashMap<Arc<str>, HashMap<u64, BootTime>>>,
    /// Slots that ended and are not removed at the store yet. The next call for the key removes them first: a client
    /// that sends one request after the other is never refused because of its own last one.
    ended: Mutex<HashMap<Arc<str>, Vec<u64>>>,
}

/// A slot, or an attempt to take one. Dropped, it is released.
#[derive(Debug)]
pub(crate) struct InFlightSlot {
    core: Arc<StoreCore>,
    key: Arc<str>,
    number: u64,
    longest_us: u64,
    /// Whether the store may count it.
    may_be_stored: AtomicBool,
}

impl InFlightSlot {
    /// The key of the slots of a limit and a client: beside the client's other state.
    pub(crate) fn key(address: &StateAddress) -> String {
        let field: String = address.field.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}:f:{field}", address.key)
    }

    pub(crate) fn new(core: &Arc<StoreCore>, key: Arc<str>, number: u64, longest_us: u64) -> Self {
        Self { core: Arc::clone(core), key, number, longest_us, may_be_stored: AtomicBool::new(false) }
    }

    /// Takes it at the store.
    async fn request(&self, limit: u32) -> Result<SlotTaken, Failure> {
        let member = self.core.member(self.number);
        let expires_us = self.longest_us.min(EXPIRES_US);
        self.may_be_stored.store(true, Ordering::Relaxed);
        let mut removed = RemovedSlots::take(&self.core, &self.key);
        let mut args = vec![text(limit), member.into_bytes(), text(expires_us)];
        args.extend(removed.numbers.iter().map(|number| self.core.member(*number).into_bytes()));
        let answer = self.core.run_slots(&self.key, "take", &args).await;
        if answer.is_ok() {
            removed.numbers.clear();
        }
        if matches!(answer, Err(Failure::Unavailable)) {
            self.may_be_stored.store(false, Ordering::Relaxed);
        }
        let taken = read_taken(&answer?, limit).inspect_err(|failure| {
            self.core.servers.shard_of(self.key.as_bytes()).note_error(failure);
        })?;
        if taken.admitted {
            self.mark_held();
        } else {
            self.may_be_stored.store(false, Ordering::Relaxed);
        }
        Ok(taken)
    }

    fn mark_held(&self) {
        self.may_be_stored.store(true, Ordering::Relaxed);
        let until = self.core.clock.boot() + self.longest_us;
        self.core.holdings.held.lock().entry(Arc::clone(&self.key)).or_default().insert(self.number, until);
    }
}

/// Slots that ended, removed at the store by the call for another slot. If it fails, or is not waited for, they are removed by a
/// call of their own.
struct RemovedSlots<'s> {
    core: &'s Arc<StoreCore>,
    key: &'s Arc<str>,
    numbers: Vec<u64>,
}

impl<'s> RemovedSlots<'s> {
    fn take(core: &'s Arc<StoreCore>, key: &'s Arc<str>) -> Self {
        Self { core, key, numbers: core.take_ended(key) }
    }
}

impl Drop for RemovedSlots<'_> {
    fn drop(&mut self) {
        if !self.numbers.is_empty() {
            self.core.end_slots(self.key, &self.numbers);
        }
    }
}

impl SharedSlot for InFlightSlot {
    fn take(&self, limit: u32) -> SlotFuture<'_> {
        Box::pin(async move { self.request(limit).await.map_err(|_| StoreUnavailable) })
    }

    fn hold(&mut self) {
        self.mark_held();
    }
}

impl Drop for InFlightSlot {
    fn drop(&mut self) {
        let mut holdings = self.core.holdings.held.lock();
        if let Some(held) = holdings.get_mut(&self.key) {
            held.remove(&self.number);
            if held.is_empty() {
                holdings.remove(&self.key);
            }
        }
        drop(holdings);
        if self.may_be_stored.load(Ordering::Relaxed) {
            self.core.end_slots(&self.key, &[self.number]);
        }
    }
}

impl StoreCore {
    fn member(&self, number: u64) -> String {
        format!("{}:{number}", self.fleet.id())
    }

    /// Runs the script on `key`, wherever that is served.
    async fn run_slots(&self, key: &str, verb: &str, args: &[Vec<u8>]) -> Result<Value, Failure> {
        let keys = [key.as_bytes().to_vec()];
        let arguments = |shard: &RedisShard| {
            let own = [verb.as_bytes().to_vec(), text(shard.clock().correction_us())];
            own.into_iter().chain(args.iter().cloned()).collect()
        };
        self.run_script(&SLOTS, &keys, arguments).await
    }

    /// How many slots are held under the key of `address`.
    pub(crate) async fn held_slots(&self, address: &StateAddress) -> Option<u32> {
        match self.run_slots(&InFlightSlot::key(address), "look", &[]).await {
            Ok(Value::Int(held)) => u32::try_from(held).ok(),
            _ => None,
        }
    }

    /// Releases slots, in the background.
    fn end_slots(self: &Arc<Self>, key: &Arc<str>, numbers: &[u64]) {
        self.holdings.ended.lock().entry(Arc::clone(key)).or_default().extend(numbers);
        let (core, key) = (Arc::clone(self), Arc::clone(key));
        // Counted as pending, so that a node that stops waits for it.
        core.queues.add_pending();
        self.runtime.spawn(async move {
            let ended = core.take_ended(&key);
            if !ended.is_empty() {
                core.remove_slots(&key, &ended).await;
            }
            core.queues.remove_pending(1);
        });
    }

    /// Takes the slots that ended under `key`; the caller removes them at the store.
    fn take_ended(&self, key: &str) -> Vec<u64> {
        let mut ended = self.holdings.ended.lock();
        let Some(mut numbers) = ended.remove(key) else { return Vec::new() };
        if numbers.len() > MOST_AT_ONCE {
            let rest = numbers.split_off(MOST_AT_ONCE);
            ended.insert(key.into(), rest);
        }
        numbers
    }

    async fn remove_slots(&self, key: &str, numbers: &[u64]) {
        let member = numbers.iter().map(|number| self.member(*number).into_bytes());
        let args: Vec<Vec<u8>> = member.collect();
        // If it fails, they expire.
        let _ = self.run_slots(key, "drop", &args).await;
    }

    /// Renews all slots.
    async fn renew_slots(self: &Arc<Self>) {
        let now = self.clock.boot();
        let held: Vec<(Arc<str>, Vec<HeldSlot>)> = {
            let mut holdings = self.holdings.held.lock();
            holdings.retain(|_, held| {
                held.retain(|_, until| *until > now);
                !held.is_empty()
            });
            let list = |held: &HashMap<u64, BootTime>| {
                held.iter().map(|(number, until)| (*number, *until)).collect()
            };
            holdings.iter().map(|(key, held)| (Arc::clone(key), list(held))).collect()
        };
        for (key, held) in held {
            let core = Arc::clone(self);
            // Concurrently: an unavailable shard must not delay the renewal of slots on another.
            self.runtime.spawn(async move {
                for some in held.chunks(MOST_AT_ONCE) {
                    core.renew_some(&key, some, now).await;
                }
            });
        }
    }

    async fn renew_some(&self, key: &Arc<str>, held: &[HeldSlot], now: BootTime) {
        let mut args = Vec::new();
        for (number, until) in held {
            args.push(self.member(*number).into_bytes());
            args.push(text(until.since(now).clamp(1, EXPIRES_US)));
        }
        let _ = self.run_slots(key, "keep", &args).await;
        // The renewal may have taken slots again that were released meanwhile.
        let gone: Vec<u64> = {
            let holdings = self.holdings.held.lock();
            let still = holdings.get(key);
            let is_gone = |number: &u64| still.is_none_or(|still| !still.contains_key(number));
            held.iter().map(|(number, _)| *number).filter(is_gone).collect()
        };
        if !gone.is_empty() {
            self.remove_slots(key, &gone).await;
        }
    }
}

/// Renews all slots, every second.
pub(super) async fn keep_renewing(core: Weak<StoreCore>) {
    let mut ticks = tokio::time::interval(KEEP);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(core) = core.upgrade() else { return };
        core.renew_slots().await;
    }
}

fn text(number: impl std::fmt::Display) -> Vec<u8> {
    number.to_string().into_bytes()
}

/// Reads the script's reply to an attempt to take one of `limit` slots.
fn read_taken(value: &Value, limit: u32) -> Result<SlotTaken, Failure> {
    let numbers = match value {
        Value::Array(parts) => match parts.as_slice() {
            [Value::Int(admitted), Value::Int(taken)] => Some((*admitted, *taken)),
            _ => None,
        },
        _ => None,
    };
    let (admitted, taken) = numbers.ok_or(Failure::InvalidAnswer("not in a known format"))?;
    match (admitted, u32::try_from(taken)) {
        (1, Ok(taken)) if (1..=limit).contains(&taken) => Ok(SlotTaken { admitted: true, taken }),
        (0, Ok(taken)) if taken >= limit => Ok(SlotTaken { admitted: false, taken }),
        _ => Err(Failure::InvalidAnswer("a slot that cannot be taken or refused")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_believed_if_it_can_be_true() {
        let read = |admitted, taken| {
            let value = Value::Array(vec![Value::Int(admitted), Value::Int(taken)]);
            read_taken(&value, 3).ok().map(|taken| (taken.admitted, taken.taken))
        };
        let table = [
            ((1, 1), Some((true, 1))),
            ((1, 3), Some((true, 3))),
            ((0, 3), Some((false, 3))),
            // The limit was lowered.
            ((0, 9), Some((false, 9))),
            ((1, 4), None),
            ((1, 0), None),
            ((0, 2), None),
            ((2, 3), None),
            ((-1, 3), None),
            ((1, -1), None),
            ((0, i64::MAX), None),
            ((1, (1 << 32) + 1), None),
        ];
        for ((admitted, taken), expected) in table {
            assert_eq!(read(admitted, taken), expected, "{admitted}, {taken}");
        }
        for value in [Value::Nil, Value::Int(1), Value::Array(vec![Value::Int(1)])] {
            assert!(read_taken(&value, 3).is_err(), "{value:?}");
        }
    }
}
