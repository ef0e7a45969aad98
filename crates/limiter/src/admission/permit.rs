//! What a request holds until it has ended.

use super::station::Counted;
use crate::limiter::Limiter;
use crate::redis::Slot;
use smallvec::SmallVec;
use std::sync::Arc;

/// Places among the requests in flight. They are given back when it is dropped.
#[derive(Debug, Default)]
pub struct Permit {
    parts: SmallVec<[Part; 1]>,
}

/// One place.
#[derive(Debug)]
pub(super) enum Part {
    /// Counted on this node.
    Local { limiter: Arc<Limiter>, key: u64, number: u64 },
    /// Counted at the shared store; given back when it is dropped.
    Shared { limiter: Arc<Limiter>, key: u64, slot: Option<Slot> },
    /// Counted for a rule that sheds.
    Counted { _counted: Counted },
}

impl Permit {
    pub(super) fn add(&mut self, part: Part) {
        self.parts.push(part);
    }

    pub(super) fn join(&mut self, other: Self) {
        self.parts.extend(other.parts);
    }

    /// None if it holds nothing.
    pub(super) fn or_none(self) -> Option<Self> {
        (!self.parts.is_empty()).then_some(self)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        match self {
            Self::Local { limiter, key, number } => {
                limiter.admissions.in_flight.give_back(*key, *number);
                limiter.admissions.lines.nudge(*key);
            }
            Self::Shared { limiter, key, slot } => {
                // Before the nudge: who is woken finds it free.
                drop(slot.take());
                limiter.admissions.lines.nudge(*key);
            }
            Self::Counted { .. } => {}
        }
    }
}
