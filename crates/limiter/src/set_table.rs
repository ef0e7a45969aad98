//! A bounded hash table of small sets.
//!
//! A key is a hash. Its low bits select a set, and its entry is in one of the few places of that set, the *ways*. So a
//! lookup reads one or two cache lines, an entry never moves, and the table never grows. A new key in a full set
//! replaces another one or is not kept; the caller selects, because that is where such tables differ.
//!
//! ```
//! use tollgate_limiter::SetTable;
//!
//! // Counts by key, in one set of two ways. The smallest count is replaced.
//! let mut counts: SetTable<u32, 2> = SetTable::new(1);
//! for key in [7, 7, 8, 9] {
//!     let smallest = |counts: &mut [u32; 2]| (0..2).min_by_key(|way| counts[*way]);
//!     if let Some(count) = counts.entry(key, smallest) {
//!         *count += 1;
//!     }
//! }
//! assert_eq!([7, 8, 9].map(|key| counts.find(key).copied()), [Some(2), None, Some(1)]);
//! ```
//!
//! [`SetTable`] belongs to one thread. [`LockedSetTable`] divides the sets among locks.

use parking_lot::{Mutex, MutexGuard};

/// Entries by key, in sets of `WAYS`.
#[derive(Debug)]
pub struct SetTable<E, const WAYS: usize> {
    sets: Vec<TableSet<E, WAYS>>,
    /// The number of sets less one: the bits of a key that select its set.
    mask: usize,
}

/// The keys are apart from the entries: with up to eight ways they are on one cache line.
#[derive(Debug)]
#[repr(align(64))]
struct TableSet<E, const WAYS: usize> {
    /// 0 is an empty way.
    keys: [u64; WAYS],
    entries: [E; WAYS],
}

impl<E, const WAYS: usize> SetTable<E, WAYS> {
    /// As [`SetTable::new`], but it takes no memory until the first entry is added.
    pub const fn lazy(sets: usize) -> Self {
        assert!(sets.is_power_of_two());
        Self { sets: Vec::new(), mask: sets - 1 }
    }

    /// The entry of `key`.
    #[inline]
    pub fn find(&self, key: u64) -> Option<&E> {
        let key = valid(key);
        let set = self.sets.get(key as usize & self.mask)?;
        let way = set.way_of(key)?;
        Some(&set.entries[way])
    }

    /// The entry of `key`, to change it.
    pub fn find_mut(&mut self, key: u64) -> Option<&mut E> {
        let key = valid(key);
        let set = self.sets.get_mut(key as usize & self.mask)?;
        let way = set.way_of(key)?;
        Some(&mut set.entries[way])
    }

    /// All keys and entries.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &E)> {
        let ways = self.sets.iter().flat_map(|set| set.keys.iter().copied().zip(&set.entries));
        ways.filter(|(key, _)| *key != 0)
    }
}

impl<E: Default, const WAYS: usize> SetTable<E, WAYS> {
    /// A table of up to `sets * WAYS` entries. The number of sets is a power of two.
    pub fn new(sets: usize) -> Self {
        let mut table = Self::lazy(sets);
        table.allocate();
        table
    }

    fn allocate(&mut self) {
        self.sets.resize_with(self.mask + 1, TableSet::empty);
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.sets.fill_with(TableSet::empty);
    }

    /// The entry of `key`; a new key gets a default entry. In a full set that is the way that `replaced` selects among
    /// the entries of other keys; none if it selects none.
    pub fn entry(
        &mut self,
        key: u64,
        replaced: impl FnOnce(&mut [E; WAYS]) -> Option<usize>,
    ) -> Option<&mut E> {
        if self.sets.is_empty() {
            self.allocate();
        }
        let key = valid(key);
        let set = &mut self.sets[key as usize & self.mask];
        let way = match set.way_of(key) {
            Some(way) => way,
            None => {
                let way = set.way_of(0).or_else(|| replaced(&mut set.entries))?;
                set.keys[way] = key;
                set.entries[way] = E::default();
                way
            }
        };
        Some(&mut set.entries[way])
    }

    /// Removes the entries for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&mut E) -> bool) {
        for set in &mut self.sets {
            for (key, entry) in set.keys.iter_mut().zip(&mut set.entries) {
                if *key != 0 && !keep(entry) {
                    (*key, *entry) = (0, E::default());
                }
            }
        }
    }

    /// Removes the entry of `key`.
    pub fn remove(&mut self, key: u64) -> Option<E> {
        let key = valid(key);
        let set = self.sets.get_mut(key as usize & self.mask)?;
        let way = set.way_of(key)?;
        set.keys[way] = 0;
        Some(std::mem::take(&mut set.entries[way]))
    }
}

impl<E, const WAYS: usize> TableSet<E, WAYS> {
    #[inline]
    fn way_of(&self, key: u64) -> Option<usize> {
        self.keys.iter().position(|known| *known == key)
    }
}

impl<E: Default, const WAYS: usize> TableSet<E, WAYS> {
    fn empty() -> Self {
        Self { keys: [0; WAYS], entries: std::array::from_fn(|_| E::default()) }
    }
}

/// Keys are hashes, so that two of them are one does not matter.
#[inline]
fn valid(key: u64) -> u64 {
    key.max(1)
}

/// A [`SetTable`] for several threads. The sets are divided among shards, each behind a lock of its own.
#[derive(Debug)]
pub struct LockedSetTable<E, const WAYS: usize> {
    shards: Box<[Mutex<SetTable<E, WAYS>>]>,
}

impl<E: Default, const WAYS: usize> LockedSetTable<E, WAYS> {
    /// A table of up to `shards * sets * WAYS` entries, with `sets` in each shard. Both are powers of two.
    pub fn new(shards: usize, sets: usize) -> Self {
        assert!(shards.is_power_of_two());
        Self { shards: (0..shards).map(|_| Mutex::new(SetTable::new(sets))).collect() }
    }

    /// Locks the shard of `key`.
    pub fn lock(&self, key: u64) -> MutexGuard<'_, SetTable<E, WAYS>> {
        // By other bits than those that select the set.
        self.shards[(key >> 32) as usize % self.shards.len()].lock()
    }

    /// The number of entries.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().iter().count()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random changes, compared with a plain map of the same entries.
    #[test]
    fn finds_exactly_the_entries_that_were_kept() {
        let mut random = fastrand::Rng::with_seed(2);
        let mut table: SetTable<u64, 4> = SetTable::new(8);
        let mut kept = std::collections::BTreeMap::new();
        for number in 0..100_000 {
            let key = random.u64(0..200);
            match random.u8(..3) {
                0 => {
                    let expected = kept.remove(&valid(key));
                    assert_eq!(table.remove(key), expected);
                }
                1 => {
                    let way = random.usize(..4);
                    let mut replaced = None;
                    let entry = table.entry(key, |entries| {
                        replaced = Some(entries[way]);
                        Some(way)
                    });
                    if let Some(number) = replaced {
                        kept.retain(|_, kept| *kept != number);
                    }
                    *entry.unwrap() = number;
                    kept.insert(valid(key), number);
                }
                _ => assert_eq!(table.find(key), kept.get(&valid(key))),
            }
            assert!(kept.len() <= 32);
        }
        let found: std::collections::BTreeMap<u64, u64> = table.iter().map(|(key, n)| (key, *n)).collect();
        assert_eq!(found, kept);
        table.clear();
        assert_eq!((table.iter().count(), table.find(1)), (0, None));
    }

    #[test]
    fn a_full_set_replaces_what_the_caller_selects_or_nothing() {
        let mut table: SetTable<u32, 2> = SetTable::new(1);
        assert_eq!(table.find_mut(1), None);
        for key in [1, 2] {
            *table.entry(key, |_| unreachable!("a way is empty")).unwrap() = key as u32;
        }
        assert_eq!(table.entry(3, |_| None), None);
        assert_eq!(table.entry(3, |entries| entries.iter().position(|entry| *entry == 2)), Some(&mut 0));
        assert_eq!([1, 2, 3].map(|key| table.find(key).copied()), [Some(1), None, Some(0)]);
    }

    #[test]
    fn a_locked_table_is_bounded() {
        let table: LockedSetTable<u32, 4> = LockedSetTable::new(8, 2);
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..10_000 {
            let key = random.u64(..);
            assert!(table.lock(key).entry(key, |_| Some(0)).is_some());
        }
        assert_eq!(table.count(), 8 * 2 * 4);
    }
}
