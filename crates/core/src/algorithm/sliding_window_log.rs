//! Sliding window log: exact, for low limits such as logins.
//!
//! Every admitted request is kept with its instant and cost for one window W; a request is admitted if
//! the costs within the last W plus its own are within the limit. An entry counts iff `t > now − W`.
//! When it is rejected, the wait ends when the oldest entries whose costs suffice have left the window: at
//! `t_j + W` for the smallest such j.
//!
//! Entries with equal instants are one entry with the sum of their costs: they cannot collide, as they
//! do where the instant is the key.
//!
//! A worked example, 5 per minute. Requests at 0, 10, 20, 30 and 40 s are admitted. One at 45 s has to wait
//! 15 s, until the first leaves the window; one of cost 2 would have to wait 25 s.

pub(crate) use super::fixed_window::{lifetime_us, unit};
pub(crate) use super::window::credit_lifetime_us;
use super::{LimitStep, StateCell, Window};
use crate::lending::{LeaseReport, StoredState};
use crate::script::RequestStatus;
use crate::time::StoreTime;
use std::collections::VecDeque;

/// The same in the script.
pub(crate) const SCRIPT: &str = include_str!("sliding_window_log.lua");

/// How many of the newest entries are searched for one that is returned.
pub(crate) const RETURN_DEPTH: usize = 64;

/// The admitted requests of one key, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestLog {
    entries: VecDeque<LogEntry>,
}

/// Everything that was admitted at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogEntry {
    instant: StoreTime,
    cost: u32,
}

/// The result of a step on a log. Unlike a cell, the log is changed in place, by [`RequestLog::apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogStep {
    /// The result; its `next` is always none.
    pub step: LimitStep,
    /// The clock went back by more than a window: the entries have to be moved to the present.
    pub jumped: bool,
}

/// The status of one more request of `cost` ≤ limit at `now`: what is left before it, and how long it would wait.
pub fn status(window: &Window, log: Option<&RequestLog>, now: StoreTime, cost: u32) -> RequestStatus {
    let all = step_log(window, log, now, window.limit).step;
    let (remaining, reset_after_us) =
        if all.admitted { (window.limit, 0) } else { (all.remaining, all.reset_after_us) };
    let retry_after_us = step_log(window, log, now, cost).step.retry_after_us;
    RequestStatus { remaining, retry_after_us, reset_after_us }
}

/// One request of `cost` ≤ limit at `now`; none is an empty log.
pub fn step_log(window: &Window, log: Option<&RequestLog>, now: StoreTime, cost: u32) -> LogStep {
    let span_us = window.span_us();
    let newest = log.and_then(|log| log.entries.back());
    let jumped = newest.is_some_and(|newest| newest.instant > now + span_us);
    let leaves = |entry: &LogEntry| (if jumped { entry.instant.min(now) } else { entry.instant }) + span_us;
    let live = || log.into_iter().flat_map(|log| &log.entries).filter(|entry| leaves(entry) > now);

    let used: u64 = live().map(|entry| u64::from(entry.cost)).sum();
    let total = used + u64::from(cost);
    let admitted = total <= u64::from(window.limit);
    let mut retry_after_us = 0;
    if !admitted {
        let excess = total - u64::from(window.limit);
        let mut freed = 0;
        for entry in live() {
            freed += u64::from(entry.cost);
            if freed >= excess {
                retry_after_us = leaves(entry).since(now);
                break;
            }
        }
    }
    let newest_leaves_us = live().next_back().map_or(0, |entry| leaves(entry).since(now));
    let after = if admitted { total } else { used };
    LogStep {
        step: LimitStep {
            admitted,
            next: None,
            remaining: u64::from(window.limit).saturating_sub(after) as u32,
            retry_after_us,
            reset_after_us: if admitted { newest_leaves_us.max(span_us) } else { newest_leaves_us },
        },
        jumped,
    }
}

impl RequestLog {
    /// Applies the result of a step: moves the entries to the present after a jump of the clock, and if the
    /// request was admitted, drops entries that have left the window and adds it.
    pub fn apply(&mut self, window: &Window, found: &LogStep, now: StoreTime, cost: u32) {
        if found.jumped {
            for entry in &mut self.entries {
                entry.instant = entry.instant.min(now);
            }
        }
        if found.step.admitted {
            self.drop_expired(window, now);
            // After a small step back of the clock the newest entry is ahead of now, and the log stays sorted.
            let instant = self.entries.back().map_or(now, |newest| newest.instant.max(now));
            match self.entries.back_mut() {
                Some(newest) if newest.instant == instant => newest.cost += cost,
                _ => self.entries.push_back(LogEntry { instant, cost }),
            }
        }
    }

    /// Takes `returned` off the entry of the instant whose low 32 bits are `epoch`: another limit has refused the request.
    /// Searches the newest entries only: if the entry is not among them, or has left the window, the request counts as
    /// admitted. Returns whether anything was taken off.
    pub(crate) fn take_off(&mut self, window: &Window, epoch: u32, returned: u32, now: StoreTime) -> bool {
        let span_us = window.span_us();
        let mut newest = self.entries.iter().enumerate().rev().take(RETURN_DEPTH);
        let found = newest.find(|(_, entry)| entry.instant.as_us() as u32 == epoch).map(|(index, _)| index);
        let Some(index) = found else { return false };
        let entry = &mut self.entries[index];
        if returned == 0 || entry.instant + span_us <= now {
            return false;
        }
        entry.cost = entry.cost.saturating_sub(returned);
        if entry.cost == 0 {
            self.entries.remove(index);
        }
        true
    }

    /// Takes `tokens` off the newest entries that have not left the window: never more than they count.
    pub fn refund(&mut self, window: &Window, now: StoreTime, tokens: u32) {
        let span_us = window.span_us();
        let mut due = tokens;
        while due > 0
            && let Some(newest) = self.entries.back_mut().filter(|newest| newest.instant + span_us > now)
        {
            let part = newest.cost.min(due);
            newest.cost -= part;
            due -= part;
            if newest.cost == 0 {
                self.entries.pop_back();
            }
        }
    }

    /// Drops entries that have left the window.
    fn drop_expired(&mut self, window: &Window, now: StoreTime) {
        let span_us = window.span_us();
        while self.entries.front().is_some_and(|entry| entry.instant + span_us <= now) {
            self.entries.pop_front();
        }
    }
}

/// A log has no cell: this is the step of an empty one.
pub(crate) fn step(window: &Window, _: Option<StateCell>, now: StoreTime, cost: u32) -> LimitStep {
    step_log(window, None, now, cost).step
}

/// The low bits of the instant of an entry, which name it among the newest.
pub(crate) fn epoch(_: &Window, now: StoreTime) -> u32 {
    now.as_us() as u32
}

/// A log has no cell to move, see [`RequestLog::apply`].
pub(crate) fn re_anchor(_: &Window, _: StateCell, _: StoreTime) -> Option<StateCell> {
    None
}

/// A log has no cell to return to, see [`RequestLog::take_off`].
pub(crate) fn apply_reports(_: &Window, _: &mut StoredState, _: StoreTime, _: &[LeaseReport]) {}
