//! One state in 24 bytes.
//!
//! ```text
//! word 0   fingerprint 54 │ lifetime 6 │ grain 4
//! word 1   instant 52                  │ grain 12
//! word 2   major 32       │ minor 32
//! ```
//! The fingerprint is the key without the bits that choose the shard, so together they are the whole key.
//! 52 bits of microseconds reach to the year 2112. The lifetime is the power of two of microseconds after
//! the instant from which the state equals a fresh one, so that the slot alone determines when it can be removed.

use tollgate_core::algorithm::StateCell;
use tollgate_core::key::StateKey;
use tollgate_core::time::StoreTime;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The number of bits of a key in the fingerprint; the others select the shard.
pub(super) const FINGERPRINT_BITS: u32 = 54;
const FINGERPRINT_MASK: u64 = (1 << FINGERPRINT_BITS) - 1;

/// A state; empty if all bits are 0.
#[derive(Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub(super) struct StateSlot([u64; 3]);

impl StateSlot {
    pub(super) const EMPTY: Self = Self([0; 3]);

    /// The state `cell` of `key`, fresh again `life_us` after its instant.
    #[inline]
    pub(super) fn new(key: StateKey, cell: StateCell, life_us: u64) -> Self {
        // The next power of two: at most twice as long as needed. Never 0, so never an empty slot.
        let lifetime = u64::from(u64::BITS - (life_us.max(2) - 1).leading_zeros()).min(51);
        let grain = u64::from(cell.grain);
        Self([
            fingerprint(key) << 10 | lifetime << 4 | grain >> 12,
            cell.instant.as_us() << 12 | grain & 0xfff,
            u64::from(cell.major) << 32 | u64::from(cell.minor),
        ])
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0[0] == 0
    }

    #[inline]
    pub(super) fn fingerprint(&self) -> u64 {
        self.0[0] >> 10
    }

    #[inline]
    pub(super) fn cell(&self) -> StateCell {
        StateCell {
            instant: StoreTime::from_us(self.0[1] >> 12),
            grain: ((self.0[0] & 0xf) << 12 | self.0[1] & 0xfff) as u16,
            major: (self.0[2] >> 32) as u32,
            minor: self.0[2] as u32,
        }
    }

    /// Whether the state equals a fresh one.
    #[inline]
    pub(super) fn is_fresh(&self, now: StoreTime) -> bool {
        let lifetime = self.0[0] >> 4 & 0x3f;
        (self.0[1] >> 12) + (1 << lifetime) <= now.as_us()
    }
}

#[inline]
pub(super) fn fingerprint(key: StateKey) -> u64 {
    key.as_bits() & FINGERPRINT_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_returns_the_state_that_was_written() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let cell = StateCell {
                instant: StoreTime::from_us(random.u64(..1 << 52)),
                grain: random.u16(..),
                major: random.u32(..),
                minor: random.u32(..),
            };
            let life_us = 1 << random.u32(1..45);
            let slot = StateSlot::new(StateKey::from_bits(random.u64(..)), cell, life_us);
            assert_eq!(slot.cell(), cell);
            assert!(!slot.is_empty());
            assert!(!slot.is_fresh(cell.instant + (life_us - 1)), "the state still matters");
            assert!(slot.is_fresh(cell.instant + 2 * life_us), "every state expires");
        }
    }

    #[test]
    fn a_slot_is_24_bytes() {
        assert_eq!(size_of::<StateSlot>(), 24);
    }
}
