//! Concurrency: how many requests of a key are in flight at once.
//!
//! The others count what came; this one counts what has not ended. A request takes a place and gives it back
//! when it ends, however that is: answered, failed, or given up by its client. What cannot be relied on is that
//! it is given back, so every place has an end: in one process the longest that a request may take, and in a
//! shared store a few seconds, which the node that holds it puts off as long as it lives.
//!
//! ```
//! use tollgate_core::algorithm::concurrency::HeldSlots;
//!
//! // Two at once, and no request is believed to take longer than 60 s.
//! let mut held = HeldSlots::default();
//! assert!(held.take(2, 60_000_000, 1, 0).admitted);
//! assert!(held.take(2, 60_000_000, 2, 0).admitted);
//! assert!(!held.take(2, 60_000_000, 3, 10).admitted);
//! held.release(1);
//! assert!(held.take(2, 60_000_000, 3, 20).admitted);
//! // The second never said that it ended.
//! assert!(held.take(2, 60_000_000, 4, 60_000_000).admitted);
//! ```
//!
//! # Waiting
//! When a request ends is not known. The end of a place is only the latest time: most requests end long before it, and a
//! client that waited for it would leave places empty. So a refusal promises no time, and a queued request waits for a
//! release.

use super::LimitStep;
pub(crate) use super::sliding_window_log::{
    apply_reports, credit_lifetime_us, epoch, lifetime_us, re_anchor, step, unit,
};
use std::collections::VecDeque;

/// The same in a store that nodes share, see the file.
pub const SCRIPT: &str = include_str!("concurrency.lua");

/// The places of one key that are taken, the first to run out in front.
#[derive(Clone, Debug, Default)]
pub struct HeldSlots {
    /// Until when, and whose.
    places: VecDeque<(u64, u64)>,
}

impl HeldSlots {
    /// Takes a place for the request `number` until `now_us + longest_us`, if fewer than `limit` are taken.
    pub fn take(&mut self, limit: u32, longest_us: u64, number: u64, now_us: u64) -> LimitStep {
        self.expire(now_us);
        let admitted = self.places.len() < limit as usize;
        if admitted {
            let until_us = now_us + longest_us;
            // A rule that was shortened makes later places end sooner.
            let at = self.places.partition_point(|(until, _)| *until <= until_us);
            self.places.insert(at, (until_us, number));
        }
        let last_us = self.places.back().map_or(0, |(until, _)| until - now_us);
        slot_step(admitted, limit, self.places.len() as u32, last_us)
    }

    /// Gives back the place of the request `number`, if it has not run out.
    pub fn release(&mut self, number: u64) {
        if let Some(at) = self.places.iter().position(|(_, taken)| *taken == number) {
            self.places.remove(at);
        }
    }

    /// Frees what has run out.
    pub fn expire(&mut self, now_us: u64) {
        while self.places.front().is_some_and(|(until, _)| *until <= now_us) {
            self.places.pop_front();
        }
    }

    /// Whether nothing is taken.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// How many are taken.
    pub fn len(&self) -> usize {
        self.places.len()
    }
}

/// The step of a request that finds, or makes, `taken` of `limit` places taken, the last of which runs out in
/// `last_us`.
pub fn slot_step(admitted: bool, limit: u32, taken: u32, last_us: u64) -> LimitStep {
    LimitStep {
        admitted,
        next: None,
        remaining: limit.saturating_sub(taken),
        retry_after_us: 0,
        reset_after_us: last_us,
    }
}
