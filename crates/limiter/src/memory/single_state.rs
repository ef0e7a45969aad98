//! Single states, for operators: reading one, and removing one.

use super::{MemoryStore, shard_of_charge};
use tollgate_core::algorithm::sliding_window_log;
use tollgate_core::lending::StoredState;
use tollgate_core::rules::Charge;
use tollgate_core::script::RequestStatus;
use tollgate_core::time::StoreTime;

impl MemoryStore {
    /// What is left of the state of `charge`, and how a request of `cost` would stand. Changes nothing.
    pub(crate) fn status(&self, charge: &Charge<'_>, cost: u32, now: StoreTime) -> RequestStatus {
        let Charge { limit, key, .. } = *charge;
        let mut table = self.shards[shard_of_charge(charge)].0.lock();
        if let Some(window) = limit.log_window() {
            return sliding_window_log::status(window, table.log(key), now, cost);
        }
        let cell = table.find(key).map(|slot| slot.cell());
        drop(table);
        let state = StoredState { cell, ..StoredState::default() };
        let (remaining, reset_after_us) = state.remaining_and_reset(limit.meter(), now);
        let retry_after_us = state.step(limit.meter(), now, cost).retry_after_us;
        RequestStatus { remaining, retry_after_us, reset_after_us }
    }

    /// Removes the state of `charge`, which is a fresh one then. Returns whether there was one that limited.
    pub(crate) fn forget(&self, charge: &Charge<'_>, now: StoreTime) -> bool {
        let Charge { limit, key, .. } = *charge;
        let mut table = self.shards[shard_of_charge(charge)].0.lock();
        match limit.log_window() {
            Some(_) => table.remove_log(key, self.budget_of(charge), now),
            None => table.remove_key(key, now),
        }
    }
}
