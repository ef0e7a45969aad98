//! What a request holds until it has ended.

use super::rule_load::LoadGuard;
use crate::limiter::Limiter;
use crate::shared_store::SharedSlot;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;
use tollgate_core::key::StateKey;

/// Places among the requests in flight. They are given back when it is dropped.
#[derive(Debug, Default)]
pub struct Permit {
    parts: SmallVec<[PermitPart; 1]>,
    /// The longest that any of them is held.
    longest_us: u64,
}

/// What is counted for a rule that sheds does not end by itself; this is as long as a place in flight by default.
const LONGEST_COUNTED_US: u64 = 60_000_000;

/// One place.
#[derive(Debug)]
pub(super) enum PermitPart {
    /// Counted on this node.
    Local { limiter: Arc<Limiter>, key: StateKey, number: u64 },
    /// Counted at the shared store; given back when it is dropped.
    Shared { limiter: Arc<Limiter>, key: StateKey, slot: Option<Box<dyn SharedSlot>> },
    /// Counted for a rule that sheds.
    LoadGuard { _counted: LoadGuard },
}

impl Permit {
    pub(super) fn add(&mut self, part: PermitPart) {
        if matches!(part, PermitPart::LoadGuard { .. }) {
            self.ends_within(LONGEST_COUNTED_US);
        }
        self.parts.push(part);
    }

    /// Says that a place of it ends after so long at the latest.
    pub(super) fn ends_within(&mut self, longest_us: u64) {
        self.longest_us = self.longest_us.max(longest_us);
    }

    pub(super) fn join(&mut self, other: Self) {
        self.ends_within(other.longest_us);
        self.parts.extend(other.parts);
    }

    /// The longest that its places are held: they end then by themselves. Zero if it holds none.
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
        match self {
            Self::Local { limiter, key, number } => {
                limiter.admissions.in_flight.give_back(*key, *number);
                limiter.admissions.wait_queues.nudge(*key);
            }
            Self::Shared { limiter, key, slot } => {
                // Before the wake-up: the waiter must find it free.
                drop(slot.take());
                limiter.admissions.wait_queues.nudge(*key);
            }
            Self::LoadGuard { .. } => {}
        }
    }
}
