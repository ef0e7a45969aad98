//! A shared store on a virtual clock: does what the script does, without a server. The simulation runs on it,
//! and tests compare the script with it.

use crate::algorithm::sliding_window_log::{self, LogStep, RequestLog};
use crate::algorithm::{StateKind, Window};
use crate::lending::StoredState;
use crate::limit::Meter;
use crate::script::{ChargeCall, ChargeReply, ReplyState, RequestStatus, ScriptCall, ScriptReply};
use crate::state_address::StateField;
use crate::time::StoreTime;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::Hash;

/// The states of all clients, each of which is named by a `K`.
#[derive(Clone, Debug)]
pub struct VirtualStore<K> {
    states: HashMap<(K, StateField), VirtualState>,
}

#[derive(Clone, Debug)]
enum VirtualState {
    Stored(StoredState),
    Log(RequestLog),
}

/// A state while a client is charged, and whether it has to be written. One that was only read is not written: brought
/// to the present and kept, it would be another state to a clock that steps back.
struct OpenState {
    state: VirtualState,
    writes: bool,
}

impl<K> Default for VirtualStore<K> {
    fn default() -> Self {
        Self { states: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash> VirtualStore<K> {
    /// Charges `client` for its call.
    pub fn charge(&mut self, client: &K, call: &ScriptCall, now: StoreTime) -> ScriptReply {
        let mut open: Vec<OpenState> =
            call.charges.iter().map(|charge| self.open(client, charge, now)).collect();
        let mut admitted = SmallVec::new();
        let mut charges: SmallVec<[ChargeReply; 2]> = call.charges.iter().map(ChargeReply::empty).collect();
        let mut all_admitted = true;
        for run in &call.runs {
            let mut admitted_of_run = 0;
            let mut counted: SmallVec<[u32; 2]> = SmallVec::from_elem(0, call.charges.len());
            for _ in 0..run.repeats {
                let steps: SmallVec<[bool; 2]> = open
                    .iter()
                    .zip(&call.charges)
                    .map(|(open, charge)| open.state.admits(charge, now, run.cost))
                    .collect();
                if steps.iter().zip(&call.charges).any(|(admits, charge)| charge.enforced && !admits) {
                    break;
                }
                admitted_of_run += 1;
                for (index, admits) in steps.into_iter().enumerate() {
                    if admits {
                        open[index].state.take(&call.charges[index], now, run.cost);
                        open[index].writes = true;
                        counted[index] += 1;
                    }
                }
            }
            all_admitted &= admitted_of_run == run.repeats;
            admitted.push(admitted_of_run);
            for (index, charge) in call.charges.iter().enumerate() {
                if !charge.enforced {
                    charges[index].counted.push(counted[index]);
                }
                if let (VirtualState::Log(log), ReplyState::Log(statuses)) =
                    (&open[index].state, &mut charges[index].state)
                {
                    statuses.push(log_status(&charge.meter, log, now, run.cost));
                }
            }
        }
        for ((mut open, charge), reply) in open.into_iter().zip(&call.charges).zip(&mut charges) {
            if let (VirtualState::Stored(state), ReplyState::Stored(replied)) =
                (&mut open.state, &mut reply.state)
            {
                if all_admitted && charge.prefetch.want > 0 {
                    reply.lent = state.lend(&charge.meter, now, &charge.prefetch);
                    open.writes |= reply.lent > 0;
                }
                *replied = *state;
            }
            if open.writes {
                self.states.insert((client.clone(), charge.field), open.state);
            }
        }
        ScriptReply { now, admitted, charges }
    }

    /// Removes one state, as the script drops one that equals a fresh one, and returns it.
    pub fn remove_state(&mut self, client: &K, field: StateField) -> Option<StoredState> {
        match self.states.remove(&(client.clone(), field))? {
            VirtualState::Stored(state) => Some(state),
            VirtualState::Log(_) => None,
        }
    }

    fn open(&self, client: &K, charge: &ChargeCall, now: StoreTime) -> OpenState {
        let known = self.states.get(&(client.clone(), charge.field)).cloned();
        match charge.meter.algorithm().state_kind() {
            StateKind::Cell => {
                let mut state = match known {
                    Some(VirtualState::Stored(state)) => state,
                    Some(VirtualState::Log(_)) | None => StoredState::default(),
                };
                let jumped = state.re_anchor(&charge.meter, now);
                state.apply_reports(&charge.meter, now, &charge.reports);
                let writes = jumped || !charge.reports.is_empty();
                OpenState { state: VirtualState::Stored(state), writes }
            }
            StateKind::Log | StateKind::InFlight => match known {
                Some(VirtualState::Log(log)) => open_log(charge, log, now),
                Some(VirtualState::Stored(_)) | None => {
                    OpenState { state: VirtualState::Log(RequestLog::default()), writes: false }
                }
            },
        }
    }
}

fn open_log(charge: &ChargeCall, mut log: RequestLog, now: StoreTime) -> OpenState {
    let mut writes = false;
    if let Some((window, mut found)) = step_log(&charge.meter, &log, now, 1) {
        // Only what a jump of the clock needs.
        found.step.admitted = false;
        log.apply(window, &found, now, 1);
        writes = found.jumped;
        for report in &charge.reports {
            writes |= log.take_off(window, report.epoch, report.returned, now);
        }
    }
    OpenState { state: VirtualState::Log(log), writes }
}

impl VirtualState {
    fn admits(&self, charge: &ChargeCall, now: StoreTime, cost: u32) -> bool {
        match self {
            Self::Stored(state) => charge.meter.step(state.cell, now, cost).admitted,
            Self::Log(log) => {
                step_log(&charge.meter, log, now, cost).is_some_and(|(_, found)| found.step.admitted)
            }
        }
    }

    fn take(&mut self, charge: &ChargeCall, now: StoreTime, cost: u32) {
        match self {
            Self::Stored(state) if charge.as_lent => state.take_as_lent(&charge.meter, now, cost),
            Self::Stored(state) => state.take(&charge.meter, now, cost),
            Self::Log(log) => {
                if let Some((window, found)) = step_log(&charge.meter, log, now, cost) {
                    log.apply(window, &found, now, cost);
                }
            }
        }
    }
}

fn step_log<'m>(
    meter: &'m Meter,
    log: &RequestLog,
    now: StoreTime,
    cost: u32,
) -> Option<(&'m Window, LogStep)> {
    let window = meter.window()?;
    Some((window, sliding_window_log::step_log(window, Some(log), now, cost)))
}

fn log_status(meter: &Meter, log: &RequestLog, now: StoreTime, cost: u32) -> RequestStatus {
    let window = meter.window();
    window.map_or_else(RequestStatus::default, |window| {
        sliding_window_log::status(window, Some(log), now, cost)
    })
}
