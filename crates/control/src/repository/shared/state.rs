//! The control state of the repository. The version only grows: a store with a lower one than this node has seen has lost
//! changes, and gets the state of this node again.

use super::scripts::SCRIPTS;
use super::{SharedCore, SharedRepository};
use crate::control_state::ControlState;
use crate::repository::{RepositoryError, STATE_ATTEMPTS, from_json, to_json};
use std::slice;

impl SharedRepository {
    /// The control state, never an older one than this node has seen. What the store has lost is stored again.
    pub(in crate::repository) async fn control_state(&self) -> Result<ControlState, RepositoryError> {
        let core = &self.0;
        for _ in 0..STATE_ATTEMPTS {
            let stored = core.read_state().await?;
            let Some(lost) = core.note_state(&stored) else { return Ok(stored) };
            if core.store_state(stored.version, &lost).await? {
                tracing::warn!(
                    found = stored.version,
                    restored = lost.version,
                    "the repository had lost the control state (grants, emergency limit); it was stored again"
                );
                return Ok(lost);
            }
        }
        Err(RepositoryError::Contention)
    }

    /// Replaces the state if the store has `version`, and returns whether it had.
    pub(in crate::repository) async fn replace_control_state(
        &self,
        version: u64,
        state: &ControlState,
    ) -> Result<bool, RepositoryError> {
        let is_stored = self.0.store_state(version, state).await?;
        if is_stored {
            self.0.note_state(state);
        }
        self.0.note_change();
        Ok(is_stored)
    }
}

impl SharedCore {
    async fn read_state(&self) -> Result<ControlState, RepositoryError> {
        let document = self.call(&SCRIPTS.read_state, slice::from_ref(&self.keys.state), &[]).await?;
        match document.into_text() {
            Some(json) => from_json("control state", &json),
            None => Ok(ControlState::default()),
        }
    }

    async fn store_state(&self, expected: u64, state: &ControlState) -> Result<bool, RepositoryError> {
        let arguments = [
            expected.to_string().into_bytes(),
            state.version.to_string().into_bytes(),
            to_json("the control state", state)?.into_bytes(),
            self.keys.channel.clone().into_bytes(),
        ];
        let replaced =
            self.call(&SCRIPTS.replace_state, slice::from_ref(&self.keys.state), &arguments).await?;
        Ok(replaced.as_number() == Some(1))
    }

    /// Takes in a state that the store has or had. Returns the one that this node has seen if it is newer.
    fn note_state(&self, stored: &ControlState) -> Option<ControlState> {
        let mut known = self.state.lock();
        match &*known {
            Some(known) if known.version > stored.version => return Some(known.clone()),
            Some(known) if known.version == stored.version && known != stored => tracing::warn!(
                version = stored.version,
                "the repository has another control state of this version than this node; using the one of the repository"
            ),
            _ => {}
        }
        *known = Some(stored.clone());
        None
    }
}
