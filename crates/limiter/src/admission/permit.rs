//! The slots and counts of a request until it ends.

use super::rule_load::LoadGuard;
use crate::limiter::Limiter;
use crate::shared_store::SharedSlot;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tollgate_core::key::StateKey;

/// The slots and counts of a request. Dropped, it returns them.
#[derive(Debug, Default)]
pub struct Permit {
    parts: SmallVec<[PermitPart; 1]>,
    /// The longest time that one of them is held.
    longest_us: u64,
}

/// A count for a rule that sheds does not expire; this is as long as a slot by default.
const LONGEST_COUNTED_US: u64 = 60_000_000;

/// One slot or count.
#[derive(Debug)]
pub(super) enum PermitPart {
    /// Counted on this node.
    Local { limiter: Arc<Limiter>, key: StateKey, number: u64 },
    /// Counted in the shared store; returned when it is dropped.
    Shared { limiter: Arc<Limiter>, key: StateKey, slot: Option<Box<dyn SharedSlot>> },
    /// Counted for a rule that sheds.
    LoadGuard { _counted: LoadGuard },
}

impl Permit {
    pub(super) fn add(&mut self, part: PermitPart) {
        if matches!(part, PermitPart::LoadGuard { .. }) {
            self.ends_within(LONGEST_COUNTED_US);
        }
        if let PermitPart::Local { limiter, .. } | PermitPart::Shared { limiter, .. } = &part {
            limiter.admissions.slots.fetch_add(1, Ordering::Relaxed);
        }
        self.parts.push(part);
    }

    /// Adds a slot that expires after `longest_us`.
    pub(super) fn ends_within(&mut self, longest_us: u64) {
        self.longest_us = self.longest_us.max(longest_us);
    }

    pub(super) fn join(&mut self, other: Self) {
        self.ends_within(other.longest_us);
        self.parts.extend(other.parts);
    }

    /// The time after which all of its slots have expired. Zero if it holds none.
    pub fn timeout(&self) -> Duration {
        Duration::from_micros(self.longest_us)
    }

    /// None if it holds nothing.
    pub(super) fn or_none(self) -> Option<Self> {
        (!self.parts.is_empty()).then_some(self)
    }
}

impl Drop for PermitPart {
    fn drop(&mut self) {
        if let Self::Local { limiter, .. } | Self::Shared { limiter, .. } = self {
            limiter.admissions.slots.fetch_sub(1, Ordering::Relaxed);
        }
        match self {
            Self::Local { limiter, key, number } => {
                limiter.admissions.in_flight.release(*key, *number);
                limiter.admissions.wait_queues.wake_first(*key);
            }
            Self::Shared { limiter, key, slot } => {
                // Before the wake-up: the waiter must find it free.
                drop(slot.take());
                limiter.admissions.wait_queues.wake_first(*key);
            }
            Self::LoadGuard { .. } => {}
        }
    }
}
