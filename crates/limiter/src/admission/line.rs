//! The lines in which requests wait for their turn, one for each key on this node.
//!
//! Who arrives draws a number. While nobody waits, it asks at once; if it is refused, it takes the place that its
//! number gives it. While somebody waits, it waits behind. Only the first of a line asks. Whoever leaves, because
//! it passes, gives up or its client went away, wakes the one behind.

use crate::decision::Decision;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::sync::Notify;

const SHARDS: usize = 64;

/// All lines.
#[derive(Debug)]
pub(crate) struct Lines {
    shards: Box<[Mutex<HashMap<u64, Line>>]>,
}

impl Default for Lines {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

/// Kept as long as anybody has a turn in it.
#[derive(Debug, Default)]
struct Line {
    waiting: BTreeMap<u64, Waiting>,
    next: u64,
    turns: usize,
    /// What the last who asked was told.
    refusal: Option<Decision>,
}

#[derive(Debug)]
struct Waiting {
    cost: u64,
    wake: Arc<Notify>,
}

/// A place in a line, or what gives a right to one. Dropped, it is given back.
#[derive(Debug)]
pub(super) struct Turn<'l> {
    lines: &'l Lines,
    key: u64,
    number: u64,
    wake: Arc<Notify>,
}

/// Those before a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    pub(super) count: usize,
    /// What they cost together.
    pub(super) cost: u64,
    /// What the last who asked was told.
    pub(super) refusal: Option<Decision>,
}

impl Lines {
    fn shard(&self, key: u64) -> &Mutex<HashMap<u64, Line>> {
        &self.shards[(key >> 32) as usize % SHARDS]
    }

    /// Draws the next number of the line of `key`.
    pub(super) fn arrive(&self, key: u64) -> Turn<'_> {
        let mut shard = self.shard(key).lock();
        let line = shard.entry(key).or_default();
        line.turns += 1;
        line.next += 1;
        Turn { lines: self, key, number: line.next, wake: Arc::new(Notify::new()) }
    }

    /// Something changed for the first of the line of `key`.
    pub(crate) fn nudge(&self, key: u64) {
        if let Some(line) = self.shard(key).lock().get(&key) {
            line.wake_first();
        }
    }
}

impl Line {
    fn wake_first(&self) {
        if let Some((_, first)) = self.waiting.first_key_value() {
            first.wake.notify_one();
        }
    }
}

impl Turn<'_> {
    fn with<T>(&self, with: impl FnOnce(&mut Line) -> T) -> T {
        with(self.lines.shard(self.key).lock().entry(self.key).or_default())
    }

    /// Those who wait before it.
    pub(super) fn ahead(&self) -> Ahead {
        self.with(|line| {
            let before = line.waiting.range(..self.number);
            let (count, cost) = before.fold((0, 0), |(count, cost), (_, one)| (count + 1, cost + one.cost));
            Ahead { count, cost, refusal: line.refusal }
        })
    }

    /// Takes its place, if fewer than `length` wait.
    pub(super) fn wait(&self, cost: u64, length: u64) -> bool {
        self.with(|line| {
            let has_room = (line.waiting.len() as u64) < length;
            if has_room {
                line.waiting.insert(self.number, Waiting { cost, wake: Arc::clone(&self.wake) });
            }
            has_room
        })
    }

    /// Whether nobody waits before it.
    pub(super) fn is_first(&self) -> bool {
        self.with(|line| line.waiting.first_key_value().is_none_or(|(first, _)| *first >= self.number))
    }

    /// Remembers for those behind what it was told.
    pub(super) fn note(&self, refusal: Decision) {
        self.with(|line| line.refusal = Some(refusal));
    }

    /// Resolves when something changed.
    pub(super) async fn nudged(&self) {
        self.wake.notified().await;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut shard = self.lines.shard(self.key).lock();
        let Some(line) = shard.get_mut(&self.key) else { return };
        line.turns -= 1;
        let waited = line.waiting.remove(&self.number).is_some();
        if line.turns == 0 {
            shard.remove(&self.key);
        } else if waited {
            line.wake_first();
        }
    }
}
