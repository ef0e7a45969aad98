//! The states of one shard: an open-addressing table that grows by a third, forgets a little with every
//! newcomer, and knows how large it may become.
//!
//! A hash map from a crate would keep control bytes beside the slots (a second cache line a look-up),
//! double when full (up to 57 bytes a state), and offer no way to forget a few entries at a time. This
//! table is one array, probed linearly; removal shifts what follows back, so there are no tombstones.

use super::slot::{FINGERPRINT_BITS, Slot, fingerprint};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use tollgate_core::algorithm::sliding_window_log::Log;

/// A table is at most this full: beyond it, probes grow long.
const LOAD: (usize, usize) = (4, 5);
const SMALLEST: usize = 8;
/// How many slots a newcomer looks at for something to forget.
const SWEEP: usize = 2;
/// The same when there is no room left.
const SWEEP_WHEN_FULL: usize = 32;
/// What a log costs beside its entries: the map's entry and its slack.
const LOG_OVERHEAD: usize = 112;
const LOG_ENTRY: usize = 16;

/// The states of one shard. With its lock it fits a cache line.
#[derive(Default)]
pub(super) struct Table {
    slots: Box<[Slot]>,
    live: usize,
    cursor: usize,
    /// At most so much memory.
    most_bytes: usize,
    /// None until a log is kept: most rules need none.
    logs: Option<Box<Logs>>,
}

/// The logs of one shard.
#[derive(Default)]
struct Logs {
    states: HashMap<u64, LogState, BuildHasherDefault<KeyHasher>>,
    bytes: usize,
    /// How many there may be before the next look for those to forget.
    before_sweep: usize,
}

/// A log, and from when on it is empty.
struct LogState {
    log: Log,
    fresh_us: u64,
    /// What it may grow to, counted against the cap from the start.
    reserved: usize,
}

impl Table {
    pub(super) fn new(most_bytes: usize) -> Self {
        Self { most_bytes, ..Self::default() }
    }

    /// The slot of `key`, if it has one.
    #[inline]
    pub(super) fn find(&self, key: u64) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let fingerprint = fingerprint(key);
        let mut index = self.home(fingerprint);
        loop {
            let slot = &self.slots[index];
            if slot.is_empty() {
                return None;
            }
            if slot.fingerprint() == fingerprint {
                return Some(index);
            }
            index = self.after(index);
        }
    }

    #[inline]
    pub(super) fn slot(&self, index: usize) -> Slot {
        self.slots[index]
    }

    #[inline]
    pub(super) fn replace(&mut self, index: usize, slot: Slot) {
        self.slots[index] = slot;
    }

    /// Makes room for `newcomers` more states. False if there is none.
    #[inline]
    pub(super) fn make_room(&mut self, newcomers: usize, now_us: u64) -> bool {
        self.sweep(SWEEP, now_us);
        if self.has_room(newcomers) {
            return true;
        }
        if self.slots.len() < self.most_slots() {
            self.rebuild(newcomers, now_us);
        } else {
            self.sweep(SWEEP_WHEN_FULL, now_us);
        }
        self.has_room(newcomers)
    }

    /// Adds a state, for which [`Table::make_room`] has made room and which is not there yet.
    pub(super) fn insert(&mut self, slot: Slot) {
        let mut index = self.home(slot.fingerprint());
        while !self.slots[index].is_empty() {
            index = self.after(index);
        }
        self.slots[index] = slot;
        self.live += 1;
    }

    /// Removes the state at `index` and closes the gap.
    fn remove(&mut self, mut index: usize) {
        self.live -= 1;
        let mut next = self.after(index);
        loop {
            let slot = self.slots[next];
            if slot.is_empty() {
                break;
            }
            // It may move back to the gap unless its home lies behind the gap.
            let home = self.home(slot.fingerprint());
            let from_home = self.distance(home, next);
            if from_home >= self.distance(index, next) {
                self.slots[index] = slot;
                index = next;
            }
            next = self.after(next);
        }
        self.slots[index] = Slot::EMPTY;
    }

    /// Looks at the next `count` slots and forgets those that equal fresh ones.
    #[inline]
    fn sweep(&mut self, count: usize, now_us: u64) {
        if self.slots.is_empty() {
            return;
        }
        for _ in 0..count {
            if self.cursor >= self.slots.len() {
                self.cursor = 0;
            }
            let slot = self.slots[self.cursor];
            if !slot.is_empty() && slot.is_fresh(now_us) {
                // Another may have moved here: the cursor stays.
                self.remove(self.cursor);
            } else {
                self.cursor += 1;
            }
        }
    }

    /// Forgets all that equals fresh, and gives memory back if little is left.
    pub(super) fn tidy(&mut self, now_us: u64) {
        self.sweep_logs(now_us);
        let slots = self.slots.len();
        // A removal keeps the cursor where it is, hence the steps for those alive.
        self.sweep(slots + self.live, now_us);
        if self.live == 0 {
            self.slots = Box::default();
        } else if slots > SMALLEST && self.live < slots / 4 {
            self.rebuild(self.live / 4, now_us);
        }
    }

    fn has_room(&self, newcomers: usize) -> bool {
        (self.live + newcomers) * LOAD.1 <= self.slots.len() * LOAD.0
    }

    /// How many slots fit beside the logs.
    fn most_slots(&self) -> usize {
        (self.most_bytes.saturating_sub(self.log_bytes()) / size_of::<Slot>()).max(SMALLEST)
    }

    /// Moves what still matters to an array of the right size.
    #[cold]
    fn rebuild(&mut self, newcomers: usize, now_us: u64) {
        let lasting = self.slots.iter().filter(|slot| !slot.is_empty() && !slot.is_fresh(now_us)).count();
        // A third more than just enough, so that the next rebuild is that far away.
        let wanted = ((lasting + newcomers) * LOAD.1).div_ceil(LOAD.0) * 4 / 3;
        let size = wanted.clamp(SMALLEST, self.most_slots());
        let old = std::mem::replace(&mut self.slots, vec![Slot::EMPTY; size].into_boxed_slice());
        self.live = 0;
        self.cursor = 0;
        for slot in old.into_iter().filter(|slot| !slot.is_empty() && !slot.is_fresh(now_us)) {
            self.insert(slot);
        }
    }

    #[inline]
    fn home(&self, fingerprint: u64) -> usize {
        ((u128::from(fingerprint << (64 - FINGERPRINT_BITS)) * self.slots.len() as u128) >> 64) as usize
    }

    #[inline]
    fn after(&self, index: usize) -> usize {
        if index + 1 == self.slots.len() { 0 } else { index + 1 }
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slots.len() - from }
    }

    /// The log of `key`, if it has one.
    pub(super) fn log(&self, key: u64) -> Option<&Log> {
        self.logs.as_ref()?.states.get(&key).map(|state| &state.log)
    }

    /// Makes room for a log of up to `entries`. False if there is none.
    pub(super) fn make_room_for_log(&mut self, entries: u32, now_us: u64) -> bool {
        let free = self.most_bytes.saturating_sub(self.slots.len() * size_of::<Slot>());
        let logs = self.logs.get_or_insert_default();
        if logs.states.len() >= logs.before_sweep || logs.bytes + reserve(entries) > free {
            logs.sweep(now_us);
        }
        logs.bytes + reserve(entries) <= free
    }

    /// Changes the log of `key`, or a new one of up to `entries`.
    pub(super) fn change_log(
        &mut self,
        key: u64,
        entries: u32,
        fresh_us: u64,
        change: impl FnOnce(&mut Log),
    ) {
        let logs = self.logs.get_or_insert_default();
        let state = logs.states.entry(key).or_insert_with(|| {
            let reserved = reserve(entries);
            logs.bytes += reserved;
            LogState { log: Log::default(), fresh_us, reserved }
        });
        change(&mut state.log);
        state.fresh_us = fresh_us;
    }

    fn sweep_logs(&mut self, now_us: u64) {
        if let Some(logs) = &mut self.logs {
            logs.sweep(now_us);
            if logs.states.is_empty() {
                self.logs = None;
            }
        }
    }

    fn log_bytes(&self) -> usize {
        self.logs.as_ref().map_or(0, |logs| logs.bytes)
    }

    /// How many states there are, some of which may equal fresh ones.
    pub(super) fn states(&self) -> usize {
        self.live + self.logs.as_ref().map_or(0, |logs| logs.states.len())
    }

    /// The memory they take.
    pub(super) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot>() + self.log_bytes()
    }
}

impl Logs {
    fn sweep(&mut self, now_us: u64) {
        self.states.retain(|_, state| {
            let stays = state.fresh_us > now_us;
            if !stays {
                self.bytes -= state.reserved;
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
struct KeyHasher(u64);

impl Hasher for KeyHasher {
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
    use tollgate_core::algorithm::Cell;

    fn slot(key: u64, instant_us: u64, life_us: u64) -> Slot {
        let cell = Cell { instant_us, grain: 0, major: key as u32, minor: 0 };
        Slot::new(key, cell, instant_us + life_us)
    }

    /// Random inserts and expiries, held against a plain map.
    #[test]
    fn agrees_with_a_map() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut table = Table::new(1 << 20);
        let mut model: HashMap<u64, u64> = HashMap::new();
        for now_us in 1_000..40_000u64 {
            let key = random.u64(1..4_000).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let life_us = 1 << random.u32(1..14);
            let new = slot(key, now_us, life_us);
            match table.find(key) {
                Some(index) => table.replace(index, new),
                None => {
                    assert!(table.make_room(1, now_us));
                    table.insert(new);
                }
            }
            model.insert(fingerprint(key), now_us + life_us);
            if now_us % 997 == 0 {
                table.tidy(now_us);
            }
            model.retain(|_, fresh_us| *fresh_us > now_us);
            let probe = random.u64(1..4_000).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            if model.contains_key(&fingerprint(probe)) {
                assert!(table.find(probe).is_some(), "a state that still matters was lost");
            }
        }
        let live = table.slots.iter().filter(|slot| !slot.is_empty()).count();
        assert_eq!(live, table.live);
        table.tidy(1 << 40);
        assert_eq!((table.states(), table.bytes()), (0, 0), "all is forgotten in the end");
    }

    #[test]
    fn keeps_within_its_bytes_and_forgets_nobody_who_is_limited() {
        let mut table = Table::new(64 * 1024);
        let mut kept = Vec::new();
        for number in 1..100_000u64 {
            let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            if table.make_room(1, 10) {
                table.insert(slot(key, 10, 1 << 30));
                kept.push(key);
            }
            assert!(table.bytes() <= 64 * 1024);
        }
        assert!(kept.len() > 2_000, "most of the room is used: {}", kept.len());
        assert!(kept.iter().all(|key| table.find(*key).is_some()));
    }
}
