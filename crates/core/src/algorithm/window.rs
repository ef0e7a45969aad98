//! Windows: limits with a count per window, and what the algorithms that count in cells share. `window.lua` is the same
//! in the script.

use super::dispatch::StateKind;
use super::{Algorithm, StateCell, start_of, tick_of};
use crate::lending::{EPOCH_US, LeaseReport, StoredState};
use crate::limit::{EXACT, LARGEST_LOG, LimitError, LimitNumber, LimitSize, TICKS_US};
use crate::time::StoreTime;

/// The shared functions of windows in the script.
pub(crate) const SCRIPT: &str = include_str!("window.lua");

/// The numbers of a limit with a count per window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// What one window admits.
    pub limit: u32,
    /// The length, in ticks.
    pub span: u64,
    /// Microseconds per tick.
    pub tick_us: u64,
}

impl Window {
    pub(super) const COUNTS_WINDOWS: bool = true;

    /// The window of a limit of this size, and the same in microseconds, as headers show it.
    pub(super) fn new(algorithm: Algorithm, limit: u32, size: &LimitSize) -> Result<(Self, u64), LimitError> {
        let window_us = size.window_us.ok_or(LimitError::Missing(LimitNumber::Window))?;
        if algorithm.state_kind() == StateKind::Log && u64::from(limit) > LARGEST_LOG {
            return Err(LimitError::out_of_range(
                format!(
                    "a {} remembers each request, so its limit is at most {LARGEST_LOG}",
                    algorithm.name()
                ),
                "use sliding_window_counter for larger ones",
            ));
        }
        let tick_us = match algorithm.state_kind() {
            // A log only ever adds and compares instants.
            StateKind::Log | StateKind::InFlight => 1,
            // Cells multiply counts by the window.
            StateKind::Cell => TICKS_US
                .into_iter()
                .filter(|tick_us| window_us.is_multiple_of(*tick_us))
                // Counts may be above a lowered limit, hence the room for four windows' worth.
                .find(|tick_us| u128::from(limit) * u128::from(window_us / tick_us) * 4 < EXACT)
                .ok_or_else(|| {
                    LimitError::out_of_range(
                        format!("a limit of {limit} in a window of this length cannot be counted exactly"),
                        "lower the limit, or shorten the window",
                    )
                })?,
        };
        Ok((Self { limit, span: window_us / tick_us, tick_us }, window_us))
    }

    /// The length, in microseconds.
    #[inline]
    pub fn span_us(&self) -> u64 {
        self.span * self.tick_us
    }
}

/// The counts of a window, brought to one tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowCounts {
    /// The tick at which the window begins.
    pub(super) start: u64,
    /// The count of that window.
    pub(super) count: u32,
    /// The count of the window before, where it matters.
    pub(super) before: u32,
    /// The clock went back so far that the state has to be re-anchored.
    pub(super) jumped: bool,
}

impl WindowCounts {
    /// As it is kept.
    pub(super) fn cell(&self, window: &Window) -> StateCell {
        StateCell {
            instant: start_of(self.start, window.tick_us),
            grain: 0,
            major: self.count,
            minor: self.before,
        }
    }

    /// As it is kept after a jump of the clock.
    pub(super) fn re_anchored(&self, window: &Window) -> Option<StateCell> {
        self.jumped.then(|| self.cell(window))
    }

    /// Brings `state`, of which these are the counts, to the present and takes off it what is returned: only within the
    /// window in which it was taken, and never more than that counts. Where nothing is reported it stays as it is.
    pub(super) fn apply_reports(mut self, window: &Window, state: &mut StoredState, reports: &[LeaseReport]) {
        for report in reports {
            if epoch(window, start_of(self.start, window.tick_us)) == report.epoch {
                self.count = self.count.saturating_sub(report.returned);
            }
            state.cell = Some(self.cell(window));
        }
    }
}

/// The number of the window in which `at` lies.
pub(crate) fn epoch(window: &Window, at: StoreTime) -> u32 {
    (tick_of(at, window.tick_us) / window.span) as u32
}

/// Until the window ends, and not longer than an epoch.
pub(crate) fn credit_lifetime_us(window: &Window, now: StoreTime) -> u64 {
    let span_us = window.span_us();
    (span_us - now.as_us() % span_us).min(EPOCH_US)
}
