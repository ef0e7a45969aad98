//! One exact store without any network: what a fleet is measured against.

use super::clients::ClientCharge;
use smallvec::SmallVec;
use tollgate_core::limit::LimitState;
use tollgate_core::time::StoreTime;

/// The states of all keys, as if there were one node with all of them.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    states: Vec<Option<LimitState>>,
    /// Clients that it has refused something.
    refused: Vec<bool>,
}

impl Oracle {
    /// Whether a request is admitted.
    pub(super) fn admits(
        &mut self,
        client: u32,
        client_charges: &[ClientCharge],
        cost: u32,
        now: StoreTime,
    ) -> bool {
        let mut writes: SmallVec<[(u32, bool, LimitState); 4]> = SmallVec::new();
        let mut admits = true;
        for client_charge in client_charges {
            let index = client_charge.state as usize;
            if self.states.len() <= index {
                self.states.resize(index + 1, None);
            }
            let (step, next) = client_charge.limit().step_state(self.states[index].as_ref(), now, cost);
            admits &= step.admitted || !client_charge.charge.enforced;
            writes.extend(next.map(|next| (client_charge.state, step.admitted, next)));
        }
        for (state, spends, next) in writes {
            if admits || !spends {
                self.states[state as usize] = Some(next);
            }
        }
        if !admits {
            let index = client as usize;
            if self.refused.len() <= index {
                self.refused.resize(index + 1, false);
            }
            self.refused[index] = true;
        }
        admits
    }

    /// Whether it has ever refused `client` anything.
    pub(super) fn has_refused(&self, client: u32) -> bool {
        self.refused.get(client as usize).copied().unwrap_or(false)
    }
}
