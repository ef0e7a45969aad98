//! The array of a table: on the heap while it is small, in pages of its own when it is large.
//!
//! A table that grows leaves its array behind. A thousand tables, each of which leaves arrays of many sizes at times
//! of its own, leave any allocator with pages that are half empty: with mimalloc, ten million made-up keys took 1.7
//! times the cap. Pages of its own go back to the system with the array, which fills the last of them.

use super::slot::StateSlot;
use memmap2::MmapMut;
use std::ops::{Deref, DerefMut};
use zerocopy::FromBytes;

/// From so many bytes on an array has pages of its own. They are so large on x86-64; elsewhere they may be, at most.
const PAGE: usize = if cfg!(target_arch = "x86_64") { 4 << 10 } else { 64 << 10 };

/// Slots, all empty at first.
pub(super) enum StateSlots {
    Small(Box<[StateSlot]>),
    /// In a box, so that it takes no more room in a table than the other.
    Large(Box<MmapMut>),
}

const _: () = assert!(size_of::<StateSlots>() == size_of::<Box<[StateSlot]>>());

impl Default for StateSlots {
    fn default() -> Self {
        Self::Small(Box::default())
    }
}

impl StateSlots {
    pub(super) fn new(count: usize) -> Self {
        let bytes = count * size_of::<StateSlot>();
        // What the system has no pages for, the heap may still have.
        let map = if bytes >= PAGE { MmapMut::map_anon(bytes).ok() } else { None };
        match map {
            Some(map) => Self::Large(Box::new(map)),
            None => Self::Small(vec![StateSlot::EMPTY; count].into_boxed_slice()),
        }
    }

    /// The count from `count` on that leaves no part of a page unused.
    pub(super) fn filling(count: usize) -> usize {
        let bytes = count * size_of::<StateSlot>();
        if bytes < PAGE { count } else { bytes.next_multiple_of(PAGE) / size_of::<StateSlot>() }
    }
}

impl Deref for StateSlots {
    type Target = [StateSlot];

    #[inline]
    fn deref(&self) -> &[StateSlot] {
        match self {
            Self::Small(slots) => slots,
            Self::Large(map) => <[StateSlot]>::ref_from_bytes(map).expect("it holds whole slots"),
        }
    }
}

impl DerefMut for StateSlots {
    #[inline]
    fn deref_mut(&mut self) -> &mut [StateSlot] {
        match self {
            Self::Small(slots) => slots,
            Self::Large(map) => <[StateSlot]>::mut_from_bytes(map).expect("it holds whole slots"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::algorithm::StateCell;
    use tollgate_core::key::StateKey;
    use tollgate_core::time::StoreTime;

    #[test]
    fn slots_are_empty_at_first_and_keep_what_is_written() {
        for count in [0, 1, 8, PAGE / size_of::<StateSlot>() + 1, 100_000] {
            let mut slots = StateSlots::new(count);
            assert_eq!(matches!(slots, StateSlots::Large(_)), count * size_of::<StateSlot>() >= PAGE);
            assert_eq!(slots.len(), count);
            assert!(slots.iter().all(StateSlot::is_empty));
            let instant = StoreTime::from_us(5);
            let cell = StateCell { instant, grain: 0, major: 1, minor: 0 };
            let full = StateSlot::new(StateKey::from_bits(7), cell, 1 << 20);
            slots.fill(full);
            assert!(slots.iter().all(|slot| *slot == full));
        }
    }

    #[test]
    fn a_large_array_fills_its_pages() {
        assert_eq!(StateSlots::filling(10), 10);
        for count in [PAGE / size_of::<StateSlot>() + 1, 10_000, 12_345] {
            let bytes = StateSlots::filling(count) * size_of::<StateSlot>();
            assert!(bytes >= count * size_of::<StateSlot>());
            let unused = bytes.next_multiple_of(PAGE) - bytes;
            assert!(unused < size_of::<StateSlot>(), "{count}: {unused}");
        }
    }
}
