//! The array of a table: on the heap while it is small, in pages of its own when it is large.
//!
//! A table that grows frees its old array. A thousand tables that free arrays of many sizes at different times leave an
//! allocator with half-empty pages: with mimalloc, ten million made-up keys took 1.7 times the cap. An array with pages
//! of its own returns them to the system, and its size fills the last of them.

use super::slot::StateSlot;
use memmap2::MmapMut;
use std::ops::{Deref, DerefMut};
use zerocopy::FromBytes;

/// An array of at least this many bytes has pages of its own. The page size on x86-64, and the largest one elsewhere.
const PAGE: usize = if cfg!(target_arch = "x86_64") { 4 << 10 } else { 64 << 10 };

/// Slots, all empty at first.
pub(super) enum StateSlots {
    Small(Box<[StateSlot]>),
    /// In a box, so that the enum has the size of the other variant.
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
        // If the system has no pages, the heap may have memory.
        let map = if bytes >= PAGE { MmapMut::map_anon(bytes).ok() } else { None };
        match map {
            Some(map) => Self::Large(Box::new(map)),
            None => Self::Small(vec![StateSlot::EMPTY; count].into_boxed_slice()),
        }
    }

    /// The smallest count from `count` on that fills its pages.
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
