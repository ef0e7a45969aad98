//! Holds: clients that are refused until a time, in a bounded table that is read without a lock.
//!
//! It is read with every check while it is not empty, and rarely written. So the eight keys of a set are one cache line
//! that all threads share, and only writers take a lock. In a full set the hold that ends first is evicted. Keys are
//! compared in full.
//!
//! This is no [`SetTable`](crate::set_table::SetTable): it is read while it is written, so its keys and times are atomics.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use tollgate_core::time::UnixTime;

/// A power of two.
const SETS: usize = 1024;
const WAYS: usize = 8;

/// The bits of [`Holds::attention`].
const HOLDING: u8 = 1;
const GUARDED: u8 = 2;

/// Keys are hashes; 0 is an empty way.
#[derive(Default)]
#[repr(align(64))]
struct HoldSet {
    keys: [AtomicU64; WAYS],
    until_us: [AtomicU64; WAYS],
}

/// The table.
pub(super) struct Holds {
    /// One number, so that a check tests for both at once: [`HOLDING`] is not set only if the table is empty, and
    /// [`GUARDED`] is set while the emergency limit is on.
    attention: AtomicU8,
    sets: Box<[HoldSet]>,
    writing: Mutex<()>,
}

impl Holds {
    /// The most holds.
    #[cfg(test)]
    pub(super) const MOST: usize = SETS * WAYS;

    pub(super) fn new() -> Self {
        let sets = std::iter::repeat_with(HoldSet::default).take(SETS).collect();
        Self { attention: AtomicU8::new(0), sets, writing: Mutex::new(()) }
    }

    /// Whether any key may be held, or every check is guarded.
    #[inline]
    pub(super) fn is_holding(&self) -> bool {
        self.attention.load(Ordering::Relaxed) != 0
    }

    /// Has every check find that it is guarded, or not.
    pub(super) fn set_guarded(&self, guarded: bool) {
        match guarded {
            true => self.attention.fetch_or(GUARDED, Ordering::Relaxed),
            false => self.attention.fetch_and(!GUARDED, Ordering::Relaxed),
        };
    }

    /// How much longer `key` is held. A hold that would last longer than `most_us` is ignored: the clock has gone back.
    pub(super) fn wait_us(&self, key: u64, now: UnixTime, most_us: u64) -> Option<u64> {
        let (key, set) = self.place(key);
        let way = set.keys.iter().position(|known| known.load(Ordering::Acquire) == key)?;
        let until_us = set.until_us[way].load(Ordering::Acquire);
        // If the time is that of a key that has replaced this one, the new key is visible as well.
        if set.keys[way].load(Ordering::Acquire) != key {
            return None;
        }
        let wait_us = UnixTime::from_us(until_us).since(now);
        (1..=most_us).contains(&wait_us).then_some(wait_us)
    }

    /// The end of the hold of `key`, which may be over; the epoch if it has none.
    pub(super) fn until(&self, key: u64) -> UnixTime {
        let _writing = self.writing.lock();
        let (key, set) = self.place(key);
        let way = set.keys.iter().position(|known| known.load(Ordering::Relaxed) == key);
        UnixTime::from_us(way.map_or(0, |way| set.until_us[way].load(Ordering::Relaxed)))
    }

    /// Holds `key` until `until`, if there is room or another hold ends earlier.
    pub(super) fn hold(&self, key: u64, until: UnixTime, now: UnixTime) {
        let _writing = self.writing.lock();
        let (key, set) = self.place(key);
        let until_us = until.as_us();
        let known = set.keys.iter().position(|known| known.load(Ordering::Relaxed) == key);
        let least = || {
            let ends = set.until_us.iter().map(|end| end.load(Ordering::Relaxed)).enumerate();
            let (way, end_us) = ends.min_by_key(|(_, end_us)| *end_us)?;
            (end_us <= now.as_us() || end_us < until_us).then_some(way)
        };
        let Some(way) = known.or_else(least) else { return };
        set.until_us[way].store(0, Ordering::Release);
        set.keys[way].store(key, Ordering::Release);
        set.until_us[way].store(until_us, Ordering::Release);
        self.attention.fetch_or(HOLDING, Ordering::Relaxed);
    }

    /// Removes the hold of `key`. Returns whether there was one.
    pub(super) fn release(&self, key: u64) -> bool {
        let _writing = self.writing.lock();
        let (key, set) = self.place(key);
        let Some(way) = set.keys.iter().position(|known| known.load(Ordering::Relaxed) == key) else {
            return false;
        };
        set.clear(way);
        true
    }

    /// Removes holds that have ended.
    pub(super) fn tidy(&self, now: UnixTime) {
        if self.attention.load(Ordering::Relaxed) & HOLDING == 0 {
            return;
        }
        let _writing = self.writing.lock();
        let mut held = false;
        for set in &self.sets {
            for way in 0..WAYS {
                let until_us = set.until_us[way].load(Ordering::Relaxed);
                if until_us > now.as_us() {
                    held = true;
                } else if until_us > 0 {
                    set.clear(way);
                }
            }
        }
        if !held {
            self.attention.fetch_and(!HOLDING, Ordering::Relaxed);
        }
    }

    /// The number of keys that are held.
    pub(super) fn count(&self, now: UnixTime) -> usize {
        let ends = self.sets.iter().flat_map(|set| &set.until_us);
        ends.filter(|end| end.load(Ordering::Relaxed) > now.as_us()).count()
    }

    #[inline]
    fn place(&self, key: u64) -> (u64, &HoldSet) {
        let key = key.max(1);
        (key, &self.sets[key as usize % SETS])
    }
}

impl HoldSet {
    fn clear(&self, way: usize) {
        self.until_us[way].store(0, Ordering::Release);
        self.keys[way].store(0, Ordering::Release);
    }
}

impl std::fmt::Debug for Holds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Holds").field("count", &self.count(UnixTime::default())).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> UnixTime {
        UnixTime::from_us(us)
    }

    #[test]
    fn a_hold_ends_at_its_time() {
        let holds = Holds::new();
        assert!(!holds.is_holding());
        holds.hold(7, at(100), at(0));
        assert_eq!(holds.wait_us(7, at(0), 1_000), Some(100));
        assert_eq!(holds.wait_us(7, at(99), 1_000), Some(1));
        assert_eq!(holds.wait_us(7, at(100), 1_000), None);
        assert_eq!(holds.wait_us(8, at(0), 1_000), None);
        holds.tidy(at(99));
        assert!(holds.is_holding());
        holds.tidy(at(100));
        assert!(!holds.is_holding() && holds.count(at(0)) == 0);
    }

    #[test]
    fn a_hold_is_ignored_after_the_clock_went_back() {
        let holds = Holds::new();
        holds.hold(7, at(1_000_000), at(999_900));
        assert_eq!(holds.wait_us(7, at(500), 100), None);
    }

    #[test]
    fn a_flood_keeps_the_longest_holds_and_holds_no_other_key() {
        let holds = Holds::new();
        let mut rng = fastrand::Rng::with_seed(1);
        let worst: Vec<u64> = (0..100).map(|_| rng.u64(..)).collect();
        for key in &worst {
            holds.hold(*key, at(1_000), at(0));
        }
        for _ in 0..10 * Holds::MOST {
            holds.hold(rng.u64(..), at(500), at(0));
        }
        assert!(holds.count(at(0)) <= Holds::MOST);
        assert!(worst.iter().all(|key| holds.wait_us(*key, at(0), 1_000) == Some(1_000)));
        assert!((0..10_000).all(|_| holds.wait_us(rng.u64(..), at(0), 1_000).is_none()));
    }

    #[test]
    fn readers_beside_a_writer_see_only_their_own_times() {
        let holds = Holds::new();
        // Twenty keys of one set, each with a time of its own.
        let keys: Vec<u64> = (1..=20).map(|number| number * SETS as u64 + 5).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..200_000_usize {
                    let key = keys[round % keys.len()];
                    holds.hold(key, at(1_000 + key), at(round as u64 % 2 * 1_000_000));
                }
            });
            for _ in 0..200_000 {
                for key in [keys[0], keys[19]] {
                    let wait_us = holds.wait_us(key, at(0), u64::MAX);
                    assert!(wait_us.is_none_or(|wait_us| wait_us == 1_000 + key), "{key}: {wait_us:?}");
                }
            }
        });
    }
}
