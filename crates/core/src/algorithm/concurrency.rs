//! Concurrency: how many requests of a key are in flight at once.
//!
//! The other algorithms count requests that arrived; this one counts requests that have not ended. A request holds a slot
//! until it ends: answered, failed, or abandoned by its client. A release may be lost, so every slot expires: in one
//! process after the longest time that a request may take, and in a shared store after a few seconds, which the node that
//! holds it extends as long as it is alive.
//!
//! ```
//! use tollgate_core::algorithm::concurrency::HeldSlots;
//! use tollgate_core::time::StoreTime;
//!
//! let at = StoreTime::from_us;
//! // Two at once, and a slot expires after 60 s.
//! let mut held = HeldSlots::default();
//! assert!(held.take(2, 60_000_000, 1, at(0)).admitted);
//! assert!(held.take(2, 60_000_000, 2, at(0)).admitted);
//! assert!(!held.take(2, 60_000_000, 3, at(10)).admitted);
//! held.release(1);
//! assert!(held.take(2, 60_000_000, 3, at(20)).admitted);
//! // The second was never released.
//! assert!(held.take(2, 60_000_000, 4, at(60_000_000)).admitted);
//! ```
//!
//! # Waiting
//! When a request ends is not known. The expiry of a slot is only the latest time: most requests end long before it, and a
//! client that waited for it would leave slots unused. So a refusal has no retry time, and a queued request waits for a
//! release.

use super::LimitStep;
pub(crate) use super::sliding_window_log::{
    apply_reports, credit_lifetime_us, epoch, lifetime_us, re_anchor, step, unit,
};
use crate::time::StoreTime;
use std::collections::VecDeque;

/// The script for a shared store.
pub const SCRIPT: &str = include_str!("concurrency.lua");

/// The slots of one key that are held, the first to expire in front.
#[derive(Clone, Debug, Default)]
pub struct HeldSlots {
    /// The expiry and the number of the request.
    slots: VecDeque<(StoreTime, u64)>,
}

impl HeldSlots {
    /// Takes a slot for the request `number` until `now + longest_us`, if fewer than `limit` are held.
    pub fn take(&mut self, limit: u32, longest_us: u64, number: u64, now: StoreTime) -> LimitStep {
        self.expire(now);
        let admitted = self.slots.len() < limit as usize;
        if admitted {
            let end = now + longest_us;
            // After a rule was edited, later slots may expire sooner.
            let at = self.slots.partition_point(|(until, _)| *until <= end);
            self.slots.insert(at, (end, number));
        }
        let last_us = self.slots.back().map_or(0, |(until, _)| until.since(now));
        slot_step(admitted, limit, self.slots.len() as u32, last_us)
    }

    /// Releases the slot of the request `number`, if it has not expired.
    pub fn release(&mut self, number: u64) {
        if let Some(at) = self.slots.iter().position(|(_, taken)| *taken == number) {
            self.slots.remove(at);
        }
    }

    /// Releases expired slots.
    pub fn expire(&mut self, now: StoreTime) {
        while self.slots.front().is_some_and(|(until, _)| *until <= now) {
            self.slots.pop_front();
        }
    }

    /// Whether no slot is held.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// How many slots are held.
    pub fn len(&self) -> usize {
        self.slots.len()
    }
}

/// The step of a request after which `taken` of `limit` slots are held, the last of which expires in `last_us`.
pub fn slot_step(admitted: bool, limit: u32, taken: u32, last_us: u64) -> LimitStep {
    LimitStep {
        admitted,
        next: None,
        remaining: limit.saturating_sub(taken),
        retry_after_us: 0,
        reset_after_us: last_us,
    }
}
