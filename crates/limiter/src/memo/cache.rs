//! A small four-way cache that admits on second sight.

const WAYS: usize = 4;

/// An entry is known by a hash and the number of what it was worked out from.
pub(super) struct Cache<V> {
    /// Empty until first used: a thread that never checks costs nothing.
    sets: Vec<CacheSet<V>>,
    /// For each set the hash that missed last; if it misses again, it is admitted.
    candidates: Vec<u32>,
    count: usize,
}

/// With a small value, one cache line.
#[derive(Default)]
#[repr(align(64))]
struct CacheSet<V>([CacheEntry<V>; WAYS]);

/// Source 0 is no source: such an entry is empty.
#[derive(Default)]
struct CacheEntry<V> {
    hash: u64,
    source: u32,
    value: V,
}

/// Where an entry stands.
#[derive(Clone, Copy)]
pub(super) struct CachePosition {
    set: usize,
    way: usize,
}

impl<V> Cache<V> {
    /// `count` is a power of two.
    pub(super) const fn new(count: usize) -> Self {
        assert!(count.is_power_of_two());
        Self { sets: Vec::new(), candidates: Vec::new(), count }
    }

    pub(super) fn clear(&mut self) {
        self.sets.clear();
    }

    #[inline]
    pub(super) fn at(&self, spot: CachePosition) -> &V {
        &self.sets[spot.set].0[spot.way].value
    }

    /// Where it stands what `source` made of `hash`, if that is known.
    #[inline]
    pub(super) fn spot(&self, hash: u64, source: u32) -> Option<CachePosition> {
        let set = hash as usize & (self.count - 1);
        let is_it = |entry: &CacheEntry<V>| entry.hash == hash && entry.source == source;
        let way = self.sets.get(set)?.0.iter().position(is_it)?;
        Some(CachePosition { set, way })
    }

    /// Puts what `source` made of `hash` where [`Cache::admit`] said.
    pub(super) fn keep(&mut self, spot: CachePosition, hash: u64, source: u32, value: V) -> &V {
        let entry = &mut self.sets[spot.set].0[spot.way];
        *entry = CacheEntry { hash, source, value };
        &entry.value
    }
}

impl<V: Default> Cache<V> {
    /// Where to keep what `source` made of `hash`, which is not known: none at first sight.
    #[cold]
    pub(super) fn admit(&mut self, hash: u64, source: u32) -> Option<CachePosition> {
        if self.sets.is_empty() {
            self.sets.resize_with(self.count, CacheSet::default);
            self.candidates.resize(self.count, 0);
        }
        let set = hash as usize & (self.count - 1);
        let candidate = (hash >> 32) as u32 ^ source | 1;
        if self.candidates[set] != candidate {
            self.candidates[set] = candidate;
            return None;
        }
        self.candidates[set] = 0;
        // An outdated entry goes first, then any: which one is as good as drawn.
        let outdated = self.sets[set].0.iter().position(|entry| entry.source != source);
        Some(CachePosition { set, way: outdated.unwrap_or((hash >> 16) as usize % WAYS) })
    }
}
