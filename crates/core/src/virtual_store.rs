//! A shared store on a virtual clock: does what the script does, without a server. The simulation runs on it,
//! and tests hold the script against it.

use crate::algorithm::sliding_window_log::{self, LogStep, RequestLog};
use crate::algorithm::{LimitStep, Window};
use crate::lending::StoredState;
use crate::limit::Meter;
use crate::script::{ChargeCall, ChargeReply, LogStatus, ReplyState, ScriptCall, ScriptReply};
use crate::state_address::StateField;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::Hash;

/// The states of all clients, each called by a `K`.
#[derive(Clone, Debug)]
pub struct VirtualStore<K> {
    states: HashMap<(K, StateField), VirtualState>,
}

#[derive(Clone, Debug)]
enum VirtualState {
    Stored(StoredState),
    Log(RequestLog),
}

/// A state while a client is charged, and whether it has to be written. One that was only looked at is not:
/// brought to the present and kept, it would say something else to a clock that steps back.
struct OpenState {
    kept: VirtualState,
    writes: bool,
}

impl<K> Default for VirtualStore<K> {
    fn default() -> Self {
        Self { states: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash> VirtualStore<K> {
    /// Charges `client` for what it asks.
    pub fn charge(&mut self, client: &K, ask: &ScriptCall, now_us: u64) -> ScriptReply {
        let mut open: Vec<OpenState> =
            ask.charges.iter().map(|charge| self.open(client, charge, now_us)).collect();
        let mut passing = SmallVec::new();
        let mut answers: SmallVec<[ChargeReply; 2]> = ask.charges.iter().map(ChargeReply::empty).collect();
        let mut all_served = true;
        for run in &ask.runs {
            let mut passed = 0;
            let mut counted: SmallVec<[u32; 2]> = SmallVec::from_elem(0, ask.charges.len());
            for _ in 0..run.repeats {
                let steps: SmallVec<[bool; 2]> = open
                    .iter()
                    .zip(&ask.charges)
                    .map(|(open, charge)| open.kept.admits(charge, now_us, run.cost))
                    .collect();
                if steps.iter().zip(&ask.charges).any(|(admits, charge)| charge.enforced && !admits) {
                    break;
                }
                passed += 1;
                for (index, admits) in steps.into_iter().enumerate() {
                    if admits {
                        open[index].kept.take(&ask.charges[index], now_us, run.cost);
                        open[index].writes = true;
                        counted[index] += 1;
                    }
                }
            }
            all_served &= passed == run.repeats;
            passing.push(passed);
            for (index, charge) in ask.charges.iter().enumerate() {
                if !charge.enforced {
                    answers[index].counted.push(counted[index]);
                }
                if let (VirtualState::Log(log), ReplyState::Log(standings)) =
                    (&open[index].kept, &mut answers[index].state)
                {
                    standings.push(log_standing(&charge.meter, log, now_us, run.cost));
                }
            }
        }
        for ((charge, mut open), answer) in ask.charges.iter().zip(open).zip(&mut answers) {
            if let (VirtualState::Stored(account), ReplyState::Stored(answered)) =
                (&mut open.kept, &mut answer.state)
            {
                if all_served && charge.prefetch.want > 0 {
                    answer.lent = account.lend(&charge.meter, now_us, &charge.prefetch);
                    open.writes |= answer.lent > 0;
                }
                *answered = *account;
            }
            if open.writes {
                self.states.insert((client.clone(), charge.field), open.kept);
            }
        }
        ScriptReply { now_us, admitted: passing, charges: answers }
    }

    /// How many states there are.
    pub fn states(&self) -> usize {
        self.states.len()
    }

    /// Loses everything, as a server does that is restarted without its data.
    pub fn clear(&mut self) {
        self.states.clear();
    }

    /// Loses one state, as the script lets go of one that equals a fresh one, and tells what it was.
    pub fn remove_state(&mut self, client: &K, field: StateField) -> Option<StoredState> {
        match self.states.remove(&(client.clone(), field))? {
            VirtualState::Stored(account) => Some(account),
            VirtualState::Log(_) => None,
        }
    }

    fn open(&self, client: &K, charge: &ChargeCall, now_us: u64) -> OpenState {
        let known = self.states.get(&(client.clone(), charge.field)).cloned();
        match charge.meter {
            Meter::SlidingWindowLog(_) | Meter::Concurrency(_) => match known {
                Some(VirtualState::Log(mut log)) => {
                    let mut writes = false;
                    if let Some((window, mut found)) = step(&charge.meter, &log, now_us, 1) {
                        // Only what a jump of the clock asks for.
                        found.step.admitted = false;
                        log.apply(window, &found, now_us, 1);
                        writes = found.jumped;
                        for report in &charge.reports {
                            writes |= log.take_off(window, report.epoch, report.returned, now_us);
                        }
                    }
                    OpenState { kept: VirtualState::Log(log), writes }
                }
                _ => OpenState { kept: VirtualState::Log(RequestLog::default()), writes: false },
            },
            _ => {
                let mut account = match known {
                    Some(VirtualState::Stored(account)) => account,
                    _ => StoredState::default(),
                };
                let jumped = account.re_anchor(&charge.meter, now_us);
                account.apply_reports(&charge.meter, now_us, &charge.reports);
                OpenState {
                    kept: VirtualState::Stored(account),
                    writes: jumped || !charge.reports.is_empty(),
                }
            }
        }
    }
}

impl VirtualState {
    fn admits(&self, charge: &ChargeCall, now_us: u64, cost: u32) -> bool {
        match self {
            Self::Stored(account) => charge.meter.step(account.cell, now_us, cost).admitted,
            Self::Log(log) => {
                step(&charge.meter, log, now_us, cost).is_some_and(|(_, found)| found.step.admitted)
            }
        }
    }

    fn take(&mut self, charge: &ChargeCall, now_us: u64, cost: u32) {
        match self {
            Self::Stored(account) if charge.as_lent => account.take_as_lent(&charge.meter, now_us, cost),
            Self::Stored(account) => account.take(&charge.meter, now_us, cost),
            Self::Log(log) => {
                if let Some((window, found)) = step(&charge.meter, log, now_us, cost) {
                    log.apply(window, &found, now_us, cost);
                }
            }
        }
    }
}

fn step<'m>(meter: &'m Meter, log: &RequestLog, now_us: u64, cost: u32) -> Option<(&'m Window, LogStep)> {
    let window = meter.window()?;
    Some((window, sliding_window_log::step(window, Some(log), now_us, cost)))
}

/// How one more request of `cost` would stand.
fn log_standing(meter: &Meter, log: &RequestLog, now_us: u64, cost: u32) -> LogStatus {
    let Some((window, found)) = step(meter, log, now_us, cost) else { return LogStatus::default() };
    let LimitStep { retry_after_us, .. } = found.step;
    // What is left now, and not after that request.
    let all = sliding_window_log::step(window, Some(log), now_us, window.limit).step;
    let (remaining, reset_after_us) =
        if all.admitted { (window.limit, 0) } else { (all.remaining, all.reset_after_us) };
    LogStatus { remaining, retry_after_us, reset_after_us }
}
