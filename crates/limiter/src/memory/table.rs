//! The states of one shard: an open-addressing table that grows by a third, removes a few fresh states with every new
//! key, and has a bound.
//!
//! A hash map from a crate would keep control bytes beside the slots (a second cache line per lookup), double when full
//! (up to 57 bytes per state), and cannot remove a few entries at a time. This table is one array with linear probing;
//! removal shifts the following slots back, so there are no tombstones.

use super::slot::{FINGERPRINT_BITS, StateSlot, fingerprint};
use super::slots::StateSlots;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use tollgate_core::algorithm::sliding_window_log::RequestLog;
use tollgate_core::key::StateKey;
use tollgate_core::time::StoreTime;

/// The largest load factor: beyond it, probes are long.
const LOAD: (usize, usize) = (4, 5);
const SMALLEST: usize = 8;
/// The number of slots that a new key sweeps.
const SWEEP: usize = 2;
/// The same when there is no room left.
const SWEEP_WHEN_FULL: usize = 32;
/// The bytes of a log beside its entries: the entry of the map and its slack.
const LOG_OVERHEAD: usize = 112;
const LOG_ENTRY: usize = 16;

/// The states of one shard. With their locks, two fit a cache line.
#[derive(Default)]
pub(super) struct StateTable {
    slots: StateSlots,
    /// In a box, because the charge of a known key does not need it.
    upkeep: Box<TableUpkeep>,
}

/// The part for new keys and housekeeping.
#[derive(Default)]
struct TableUpkeep {
    live: usize,
    cursor: usize,
    /// How many states were removed so far.
    evicted: u64,
    /// None until there is a log: most rules need none.
    logs: Option<Box<LogTable>>,
}

/// The logs of one shard.
#[derive(Default)]
struct LogTable {
    states: HashMap<StateKey, LogState, BuildHasherDefault<PassThroughHasher>>,
    /// The number of logs at which the next sweep is due.
    before_sweep: usize,
}

/// A log, and the time from which it is empty.
struct LogState {
    log: RequestLog,
    fresh: StoreTime,
    /// The bytes that it may grow to, counted against the cap from the start.
    reserved: usize,
}

/// The memory of all tables of a store. Used only when a table grows or a log is created.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    used: AtomicUsize,
    most: usize,
}

impl MemoryBudget {
    pub(super) fn new(most: usize) -> Self {
        Self { used: AtomicUsize::new(0), most }
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn most(&self) -> usize {
        self.most
    }

    fn left(&self) -> usize {
        self.most.saturating_sub(self.used())
    }

    /// Takes `bytes`; false if there are not as many left.
    fn take(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.most);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl StateTable {
    /// The slot of `key`, if it has one.
    #[inline]
    pub(super) fn find(&mut self, key: StateKey) -> Option<&mut StateSlot> {
        let slots = &mut *self.slots;
        if slots.is_empty() {
            return None;
        }
        let fingerprint = fingerprint(key);
        let mut index = home(slots, fingerprint);
        loop {
            let slot = slots[index];
            if slot.is_empty() {
                return None;
            }
            if slot.fingerprint() == fingerprint {
                return Some(&mut slots[index]);
            }
            index = after(slots, index);
        }
    }

    /// Makes room for `new_keys` more states. False if there is none.
    #[inline]
    pub(super) fn make_room(&mut self, new_keys: usize, budget: &MemoryBudget, now: StoreTime) -> bool {
        self.sweep(SWEEP, now);
        // A rebuild visits every slot, so it must gain at least an eighth: otherwise each new key of a flood near the cap
        // would cause one.
        let can_grow = budget.left() / size_of::<StateSlot>() >= (self.slots.len() / 8).max(SMALLEST);
        if self.has_room(new_keys) || can_grow && self.rebuild(new_keys, budget, now) {
            return true;
        }
        self.sweep(SWEEP_WHEN_FULL, now);
        self.has_room(new_keys)
    }

    /// Adds a state of a new key, for which [`StateTable::make_room`] has made room.
    pub(super) fn insert(&mut self, slot: StateSlot) {
        insert(&mut self.slots, slot);
        self.upkeep.live += 1;
    }

    /// Removes the state at `index` and closes the gap.
    fn remove(&mut self, mut index: usize) {
        self.upkeep.live -= 1;
        self.upkeep.evicted += 1;
        let slots = &mut *self.slots;
        let mut next = after(slots, index);
        loop {
            let slot = slots[next];
            if slot.is_empty() {
                break;
            }
            // It may move to the gap unless its home is behind the gap.
            let home = home(slots, slot.fingerprint());
            if distance(slots, home, next) >= distance(slots, index, next) {
                slots[index] = slot;
                index = next;
            }
            next = after(slots, next);
        }
        slots[index] = StateSlot::EMPTY;
    }

    /// Removes the state of `key`. Returns whether there was one that did not equal a fresh one.
    pub(super) fn remove_key(&mut self, key: StateKey, now: StoreTime) -> bool {
        let slots = &*self.slots;
        if slots.is_empty() {
            return false;
        }
        let fingerprint = fingerprint(key);
        let mut index = home(slots, fingerprint);
        while !slots[index].is_empty() && slots[index].fingerprint() != fingerprint {
            index = after(slots, index);
        }
        let slot = slots[index];
        if slot.is_empty() {
            return false;
        }
        self.remove(index);
        // It was not evicted.
        self.upkeep.evicted -= 1;
        !slot.is_fresh(now)
    }

    /// The same for its log.
    pub(super) fn remove_log(&mut self, key: StateKey, budget: &MemoryBudget, now: StoreTime) -> bool {
        let logs = self.upkeep.logs.as_mut();
        let Some(state) = logs.and_then(|logs| logs.states.remove(&key)) else { return false };
        budget.give_back(state.reserved);
        state.fresh > now
    }

    /// Visits the next `count` slots and removes those that equal fresh ones.
    #[inline]
    fn sweep(&mut self, count: usize, now: StoreTime) {
        if self.slots.is_empty() {
            return;
        }
        for _ in 0..count {
            if self.upkeep.cursor >= self.slots.len() {
                self.upkeep.cursor = 0;
            }
            let slot = self.slots[self.upkeep.cursor];
            if !slot.is_empty() && slot.is_fresh(now) {
                // Another slot may have moved here: the cursor stays.
                self.remove(self.upkeep.cursor);
            } else {
                self.upkeep.cursor += 1;
            }
        }
    }

    /// Removes all states that equal fresh ones, and frees memory if few are left.
    pub(super) fn tidy(&mut self, budget: &MemoryBudget, now: StoreTime) {
        if let Some(logs) = &mut self.upkeep.logs {
            logs.sweep(budget, now);
            if logs.states.is_empty() {
                self.upkeep.logs = None;
            }
        }
        let slots = self.slots.len();
        // A removal does not move the cursor, hence the additional steps.
        self.sweep(slots + self.upkeep.live, now);
        if self.upkeep.live == 0 {
            budget.give_back(slots * size_of::<StateSlot>());
            self.slots = StateSlots::default();
        } else if self.upkeep.live < slots / 4 && roomy(self.upkeep.live * 5 / 4) < slots {
            self.rebuild(self.upkeep.live / 4, budget, now);
        }
    }

    fn has_room(&self, new_keys: usize) -> bool {
        (self.upkeep.live + new_keys) * LOAD.1 <= self.slots.len() * LOAD.0
    }

    /// Moves what still matters to an array of the right size. False if there is no memory for it.
    #[cold]
    fn rebuild(&mut self, new_keys: usize, budget: &MemoryBudget, now: StoreTime) -> bool {
        let lasting = self.slots.iter().filter(|slot| !slot.is_empty() && !slot.is_fresh(now)).count();
        // Near the cap, what is left.
        let most = self.slots.len() + budget.left() / size_of::<StateSlot>();
        let size = roomy(lasting + new_keys).min(most);
        let grows_by = size.saturating_sub(self.slots.len()) * size_of::<StateSlot>();
        if size < enough(lasting + new_keys) || grows_by > 0 && !budget.take(grows_by) {
            return false;
        }
        let old = std::mem::replace(&mut self.slots, StateSlots::new(size));
        budget.give_back(old.len().saturating_sub(size) * size_of::<StateSlot>());
        for slot in old.iter().filter(|slot| !slot.is_empty() && !slot.is_fresh(now)) {
            insert(&mut self.slots, *slot);
        }
        self.upkeep.evicted += self.upkeep.live.saturating_sub(lasting) as u64;
        self.upkeep.live = lasting;
        self.upkeep.cursor = 0;
        true
    }

    /// How many states were removed so far because they equalled fresh ones.
    pub(super) fn evicted(&self) -> u64 {
        self.upkeep.evicted
    }

    /// The log of `key`, if it has one.
    pub(super) fn log(&self, key: StateKey) -> Option<&RequestLog> {
        self.upkeep.logs.as_ref()?.states.get(&key).map(|state| &state.log)
    }

    /// Makes room for a log of up to `entries`. False if there is none.
    pub(super) fn make_room_for_log(
        &mut self,
        key: StateKey,
        entries: u32,
        budget: &MemoryBudget,
        now: StoreTime,
    ) -> bool {
        let logs = self.upkeep.logs.get_or_insert_default();
        if logs.states.len() >= logs.before_sweep {
            logs.sweep(budget, now);
        }
        let reserved = reserve(entries);
        let mut fits = budget.take(reserved);
        if !fits {
            logs.sweep(budget, now);
            fits = budget.take(reserved);
        }
        if fits {
            logs.states.insert(key, LogState { log: RequestLog::default(), fresh: now, reserved });
        }
        fits
    }

    /// Changes the log of `key`, for which there is room. If the limit was raised and the log needs more than was reserved,
    /// the difference is counted, and the request is not refused for it.
    pub(super) fn change_log(
        &mut self,
        key: StateKey,
        entries: u32,
        fresh: StoreTime,
        budget: &MemoryBudget,
        change: impl FnOnce(&mut RequestLog),
    ) {
        let state = self.upkeep.logs.as_mut().and_then(|logs| logs.states.get_mut(&key));
        if let Some(state) = state {
            let more = reserve(entries).saturating_sub(state.reserved);
            if more > 0 {
                budget.used.fetch_add(more, Ordering::Relaxed);
                state.reserved += more;
            }
            change(&mut state.log);
            state.fresh = fresh;
        }
    }

    /// The number of states, some of which may equal fresh ones.
    pub(super) fn states(&self) -> usize {
        self.upkeep.live + self.upkeep.logs.as_ref().map_or(0, |logs| logs.states.len())
    }
}

/// The slots that so many states need.
fn enough(states: usize) -> usize {
    (states * LOAD.1).div_ceil(LOAD.0)
}

/// A third more than needed, so that the next rebuild is not soon.
fn roomy(states: usize) -> usize {
    StateSlots::filling((enough(states) * 4 / 3).max(SMALLEST))
}

/// Puts a slot in the first empty place from its home on. There is one.
fn insert(slots: &mut [StateSlot], slot: StateSlot) {
    let mut index = home(slots, slot.fingerprint());
    while !slots[index].is_empty() {
        index = after(slots, index);
    }
    slots[index] = slot;
}

/// The index where the search for a fingerprint begins.
#[inline]
fn home(slots: &[StateSlot], fingerprint: u64) -> usize {
    ((u128::from(fingerprint << (64 - FINGERPRINT_BITS)) * slots.len() as u128) >> 64) as usize
}

#[inline]
fn after(slots: &[StateSlot], index: usize) -> usize {
    if index + 1 == slots.len() { 0 } else { index + 1 }
}

fn distance(slots: &[StateSlot], from: usize, to: usize) -> usize {
    if to >= from { to - from } else { to + slots.len() - from }
}

impl LogTable {
    fn sweep(&mut self, budget: &MemoryBudget, now: StoreTime) {
        self.states.retain(|_, state| {
            let stays = state.fresh > now;
            if !stays {
                budget.give_back(state.reserved);
            }
            stays
        });
        self.before_sweep = (self.states.len() * 2).max(SMALLEST);
        if self.states.capacity() > 4 * self.before_sweep {
            self.states.shrink_to(self.before_sweep);
        }
    }
}

fn reserve(entries: u32) -> usize {
    (entries as usize).next_power_of_two().max(4) * LOG_ENTRY + LOG_OVERHEAD
}

/// Keys are hashes already.
#[derive(Default)]
struct PassThroughHasher(u64);

impl Hasher for PassThroughHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::algorithm::StateCell;

    fn at(us: u64) -> StoreTime {
        StoreTime::from_us(us)
    }

    fn key(number: u64) -> StateKey {
        StateKey::from_bits(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn slot(key: StateKey, instant: StoreTime, life_us: u64) -> StateSlot {
        let cell = StateCell { instant, grain: 0, major: key.as_bits() as u32, minor: 0 };
        StateSlot::new(key, cell, life_us)
    }

    /// Random inserts and expiries, compared with a plain map.
    #[test]
    fn agrees_with_a_map() {
        let mut random = fastrand::Rng::with_seed(7);
        let budget = MemoryBudget::new(1 << 20);
        let mut table = StateTable::default();
        let mut model: HashMap<u64, StoreTime> = HashMap::new();
        for now in (1_000..40_000).map(at) {
            let new_key = key(random.u64(1..4_000));
            let life_us = 1 << random.u32(1..14);
            let new = slot(new_key, now, life_us);
            match table.find(new_key) {
                Some(slot) => *slot = new,
                None => {
                    assert!(table.make_room(1, &budget, now));
                    table.insert(new);
                }
            }
            model.insert(fingerprint(new_key), now + life_us);
            if now.as_us() % 997 == 0 {
                table.tidy(&budget, now);
            }
            model.retain(|_, fresh| *fresh > now);
            let probe = key(random.u64(1..4_000));
            if model.contains_key(&fingerprint(probe)) {
                assert!(table.find(probe).is_some(), "a state that still matters was lost");
            }
        }
        let live = table.slots.iter().filter(|slot| !slot.is_empty()).count();
        assert_eq!(live, table.upkeep.live);
        table.tidy(&budget, at(1 << 40));
        assert_eq!((table.states(), budget.used()), (0, 0), "all states are removed in the end");
    }

    #[test]
    fn stays_within_its_bytes_and_removes_no_state_that_matters() {
        let budget = MemoryBudget::new(64 * 1024);
        let mut table = StateTable::default();
        let mut kept = Vec::new();
        for number in 1..100_000u64 {
            let key = key(number);
            if table.make_room(1, &budget, at(10)) {
                table.insert(slot(key, at(10), 1 << 30));
                kept.push(key);
            }
            assert!(budget.used() <= 64 * 1024);
        }
        assert!(kept.len() > 2_000, "most of the room is used: {}", kept.len());
        assert!(kept.iter().all(|key| table.find(*key).is_some()));
    }
}
