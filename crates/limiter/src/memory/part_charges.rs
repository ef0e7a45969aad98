//! Charges with a cost and an operation each: all are applied, or none if one refuses.

use super::slot::StateSlot;
use super::table::StateTable;
use super::{MemoryStore, StoreFull, first_life_us, shard_of_charge};
use crate::failure::admitted_step;
use crate::parts::TokenOperation;
use smallvec::SmallVec;
use spin::mutex::SpinMutexGuard;
use tollgate_core::algorithm::{LimitStep, sliding_window_log};
use tollgate_core::key::StateKey;
use tollgate_core::lending::StoredState;
use tollgate_core::limit::{Limit, LimitState};
use tollgate_core::rules::Charge;
use tollgate_core::script::RequestStatus;
use tollgate_core::time::StoreTime;

/// One limit, and what is done with its tokens.
pub(crate) struct PartCharge<'c> {
    pub(crate) charge: Charge<'c>,
    pub(crate) operation: TokenOperation,
    /// From 1 to the quota.
    pub(crate) cost: u32,
}

/// The state of a key while the charges are stepped. Several of them may be about the same key.
struct SteppedState {
    key: StateKey,
    is_known: bool,
    state: Option<LimitState>,
    /// The last step that has changed it: it is written if all charges admit, or if it only moves the state to the
    /// present after a jump of the clock.
    changed: Option<(usize, LimitStep)>,
}

impl MemoryStore {
    /// Applies all of `charges`, or none of them if an enforced one refuses. Returns the step of each. What remains is
    /// after the request if it is admitted, else as it is.
    pub(crate) fn take_parts(
        &self,
        charges: &[PartCharge<'_>],
        now: StoreTime,
    ) -> Result<SmallVec<[LimitStep; 8]>, StoreFull> {
        let mut order: SmallVec<[usize; 8]> =
            charges.iter().map(|part| shard_of_charge(&part.charge)).collect();
        order.sort_unstable();
        order.dedup();
        let mut tables: SmallVec<[SpinMutexGuard<'_, StateTable>; 8]> =
            order.iter().map(|shard| self.shards[*shard].0.lock()).collect();
        let position =
            |charge: &Charge<'_>| order.binary_search(&shard_of_charge(charge)).unwrap_or_default();

        let mut stepped: SmallVec<[SteppedState; 4]> = SmallVec::new();
        let mut steps: SmallVec<[LimitStep; 8]> = SmallVec::new();
        for (index, part) in charges.iter().enumerate() {
            let table = &mut tables[position(&part.charge)];
            let state = find_or_load(&mut stepped, table, &part.charge);
            let step = match part.operation {
                TokenOperation::Take => {
                    let (step, next) = part.charge.limit.step_state(state.state.as_ref(), now, part.cost);
                    let is_new = step.admitted && !state.is_known && state.changed.is_none();
                    if is_new && !self.make_room(table, &part.charge, charges.len(), now) {
                        return Err(StoreFull { charge: index });
                    }
                    if next.is_some() {
                        (state.state, state.changed) = (next, Some((index, step)));
                    }
                    step
                }
                // As it is before the request.
                TokenOperation::Look => {
                    let limit = part.charge.limit;
                    look(limit, load(table, part.charge.key, limit).as_ref(), now, part.cost)
                }
                // It is applied when all others have admitted.
                TokenOperation::Refund => admitted_step(),
            };
            steps.push(step);
        }

        let refuses = |(part, step): (&PartCharge<'_>, &LimitStep)| part.charge.enforced && !step.admitted;
        let is_refused = charges.iter().zip(&steps).any(refuses);
        for state in &stepped {
            let Some((index, step)) = state.changed.filter(|(_, step)| !is_refused || !step.admitted) else {
                continue;
            };
            let charge = &charges[index].charge;
            self.write_state(&mut tables[position(charge)], charge, state, &step, now);
        }
        for (part, step) in charges.iter().zip(&mut steps) {
            let Charge { limit, key, .. } = part.charge;
            let table = &mut tables[position(&part.charge)];
            match part.operation {
                TokenOperation::Refund => {
                    if !is_refused {
                        self.refund(table, &part.charge, part.cost, now);
                    }
                    let status = look(limit, load(table, key, limit).as_ref(), now, 1);
                    *step = LimitStep { admitted: true, retry_after_us: 0, ..status };
                }
                TokenOperation::Take if is_refused && step.admitted => {
                    *step = look(limit, load(table, key, limit).as_ref(), now, part.cost);
                }
                TokenOperation::Take | TokenOperation::Look => {}
            }
        }
        Ok(steps)
    }

    fn make_room(
        &self,
        table: &mut StateTable,
        charge: &Charge<'_>,
        new_keys: usize,
        now: StoreTime,
    ) -> bool {
        let budget = self.budget_of(charge);
        match charge.limit.log_window() {
            Some(_) => table.make_room_for_log(charge.key, charge.limit.quota, budget, now),
            None => table.make_room(new_keys, budget, now),
        }
    }

    fn write_state(
        &self,
        table: &mut StateTable,
        charge: &Charge<'_>,
        state: &SteppedState,
        step: &LimitStep,
        now: StoreTime,
    ) {
        let Charge { limit, key, .. } = *charge;
        match &state.state {
            Some(LimitState::Cell(cell)) => {
                let life_us =
                    if state.is_known { limit.lifetime_us } else { first_life_us(*cell, step, now) };
                let slot = StateSlot::new(key, *cell, life_us);
                match table.find(key) {
                    Some(known) => *known = slot,
                    None => table.insert(slot),
                }
            }
            Some(LimitState::Log(changed)) => {
                let fresh = now + step.reset_after_us;
                let budget = self.budget_of(charge);
                table.change_log(key, limit.quota, fresh, budget, |log| log.clone_from(changed));
            }
            None => {}
        }
    }

    /// Gives `tokens` back to the state of `charge`: never more than fit into a bucket, or than a window or a log counts.
    fn refund(&self, table: &mut StateTable, charge: &Charge<'_>, tokens: u32, now: StoreTime) {
        let Charge { limit, key, .. } = *charge;
        match limit.log_window() {
            Some(window) if table.log(key).is_some() => {
                let fresh = now + window.span_us();
                let budget = self.budget_of(charge);
                table.change_log(key, limit.quota, fresh, budget, |log| log.refund(window, now, tokens));
            }
            Some(_) => {}
            None => {
                let Some(slot) = table.find(key) else { return };
                let mut state = StoredState { cell: Some(slot.cell()), ..StoredState::default() };
                state.refund(limit.meter(), now, tokens);
                if let Some(cell) = state.cell {
                    *slot = StateSlot::new(key, cell, limit.lifetime_us);
                }
            }
        }
    }

    /// Gives `tokens` back to the state of `charge`, which is not a log: never more than fit.
    pub(crate) fn give_back(&self, charge: &Charge<'_>, tokens: u32, now: StoreTime) {
        let mut table = self.shards[shard_of_charge(charge)].0.lock();
        self.refund(&mut table, charge, tokens, now);
    }
}

fn find_or_load<'s>(
    stepped: &'s mut SmallVec<[SteppedState; 4]>,
    table: &mut StateTable,
    charge: &Charge<'_>,
) -> &'s mut SteppedState {
    let Charge { limit, key, .. } = *charge;
    let known = stepped.iter().position(|state| state.key == key);
    let index = known.unwrap_or_else(|| {
        let state = load(table, key, limit);
        stepped.push(SteppedState { key, is_known: state.is_some(), state, changed: None });
        stepped.len() - 1
    });
    &mut stepped[index]
}

fn load(table: &mut StateTable, key: StateKey, limit: &Limit) -> Option<LimitState> {
    match limit.log_window() {
        Some(_) => table.log(key).cloned().map(LimitState::Log),
        None => table.find(key).map(|slot| LimitState::Cell(slot.cell())),
    }
}

/// The step of a request of `cost` that takes nothing: what remains is as it is.
pub(crate) fn look(limit: &Limit, state: Option<&LimitState>, now: StoreTime, cost: u32) -> LimitStep {
    let status = match (limit.log_window(), state) {
        (Some(window), state) => {
            let log = state.and_then(|state| match state {
                LimitState::Log(log) => Some(log),
                LimitState::Cell(_) => None,
            });
            sliding_window_log::status(window, log, now, cost)
        }
        (None, state) => {
            let cell = state.and_then(|state| match state {
                LimitState::Cell(cell) => Some(*cell),
                LimitState::Log(_) => None,
            });
            let state = StoredState { cell, ..StoredState::default() };
            let (remaining, reset_after_us) = state.remaining_and_reset(limit.meter(), now);
            let retry_after_us = state.step(limit.meter(), now, cost).retry_after_us;
            RequestStatus { remaining, retry_after_us, reset_after_us }
        }
    };
    step_of(status)
}

/// The step of a request with this status, which has taken nothing.
pub(crate) fn step_of(status: RequestStatus) -> LimitStep {
    let RequestStatus { remaining, retry_after_us, reset_after_us } = status;
    LimitStep { admitted: retry_after_us == 0, next: None, remaining, retry_after_us, reset_after_us }
}
