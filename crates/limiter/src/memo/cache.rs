//! A cache of one thread that admits an entry when it is offered for the second time.

use crate::set_table::SetTable;

const WAYS: usize = 4;

/// Values by a hash and the number of the source that they were computed from: a rule set or lists. A value of another
/// source is not found.
pub(super) struct Cache<V> {
    entries: SetTable<CacheEntry<V>, WAYS>,
    /// For each set the hash that was offered last. Offered again, it is admitted.
    candidates: Vec<u32>,
    sets: usize,
}

#[derive(Default)]
struct CacheEntry<V> {
    source: u32,
    value: V,
}

impl<V> Cache<V> {
    /// A cache of up to `4 * sets` values. The number of sets is a power of two. It takes no memory until the first offer:
    /// a thread that never checks needs none.
    pub(super) const fn new(sets: usize) -> Self {
        Self { entries: SetTable::lazy(sets), candidates: Vec::new(), sets }
    }

    /// The value that `source` has for `hash`.
    #[inline]
    pub(super) fn find(&self, hash: u64, source: u32) -> Option<&V> {
        let entry = self.entries.find(hash)?;
        (entry.source == source).then_some(&entry.value)
    }
}

impl<V: Default> Cache<V> {
    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Replaces the value that `source` has for `hash`. A new one is kept when it is offered for the second time.
    #[cold]
    pub(super) fn offer(&mut self, hash: u64, source: u32, value: impl FnOnce() -> V) {
        if self.find(hash, source).is_none() && !self.is_offered_again(hash, source) {
            return;
        }
        // An outdated entry is replaced first, then any: the hash is as good as a random number.
        let replaced = |entries: &mut [CacheEntry<V>; WAYS]| {
            let outdated = entries.iter().position(|entry| entry.source != source);
            Some(outdated.unwrap_or((hash >> 16) as usize % WAYS))
        };
        if let Some(entry) = self.entries.entry(hash, replaced) {
            *entry = CacheEntry { source, value: value() };
        }
    }

    fn is_offered_again(&mut self, hash: u64, source: u32) -> bool {
        if self.candidates.is_empty() {
            self.candidates.resize(self.sets, 0);
        }
        let candidate = (hash >> 32) as u32 ^ source | 1;
        let last = &mut self.candidates[hash as usize & (self.sets - 1)];
        let is_again = *last == candidate;
        *last = if is_again { 0 } else { candidate };
        is_again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_kept_at_the_second_offer_and_replaced_at_once() {
        let mut cache = Cache::new(16);
        cache.offer(5, 1, || 10);
        assert_eq!(cache.find(5, 1), None);
        cache.offer(5, 1, || 10);
        assert_eq!((cache.find(5, 1), cache.find(5, 2)), (Some(&10), None));
        cache.offer(5, 1, || 11);
        assert_eq!(cache.find(5, 1), Some(&11));
    }

    #[test]
    fn a_stream_of_hashes_displaces_nothing_and_outdated_entries_go_first() {
        let mut cache = Cache::new(1);
        let keep = |cache: &mut Cache<u64>, hash: u64, source| {
            cache.offer(hash, source, || hash);
            cache.offer(hash, source, || hash);
        };
        let hash = |number: u64| number << 33 | 5;
        for number in 1..=4 {
            keep(&mut cache, hash(number), if number == 3 { 1 } else { 2 });
        }
        for number in 10..10_000 {
            cache.offer(hash(number), 2, || number);
        }
        assert_eq!(cache.find(hash(3), 1), Some(&hash(3)));
        keep(&mut cache, hash(5), 2);
        assert_eq!(cache.find(hash(3), 1), None);
        assert!([1, 2, 4, 5].iter().all(|number| cache.find(hash(*number), 2).is_some()));
    }
}
