//! The control state of the repository. The version only grows: a store with a lower one than this node has seen has lost
//! changes, and gets the state of this node again.
//!
//! The emergency limit is needed most while the store is down. A switch that cannot be stored is in force on the node that
//! was asked, and is stored as soon as the store answers again, unless the emergency limit was changed there meanwhile.

use super::scripts::SCRIPTS;
use super::{SharedCore, SharedRepository};
use crate::control_state::{ControlState, EmergencySwitch};
use crate::repository::{KnownControlState, RepositoryError, STATE_ATTEMPTS, from_json, to_json};
use std::slice;

/// A switch of the emergency limit that could not be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnstoredSwitch {
    /// What it was set to.
    wanted: Option<EmergencySwitch>,
    /// What it was before, as far as this node knew; none if no state was read since the start of the node.
    replaced: Option<Option<EmergencySwitch>>,
}

impl UnstoredSwitch {
    /// Whether the emergency limit was changed in the store since the switch.
    fn is_outdated(self, stored: &ControlState) -> bool {
        self.replaced.is_some_and(|replaced| replaced != stored.emergency)
    }
}

impl SharedRepository {
    /// The control state, never an older one than this node has seen. What the store has lost is stored again, and a
    /// switch that could not be stored before is stored.
    pub(in crate::repository) async fn control_state(&self) -> Result<ControlState, RepositoryError> {
        let core = &self.0;
        for _ in 0..STATE_ATTEMPTS {
            let stored = self.stored_state().await?;
            let Some(unstored) = *core.unstored.lock() else { return Ok(stored) };
            if unstored.wanted == stored.emergency {
                core.end_unstored(unstored);
                return Ok(stored);
            }
            if unstored.is_outdated(&stored) {
                core.end_unstored(unstored);
                tracing::warn!(
                    stored = ?stored.emergency,
                    dropped = ?unstored.wanted,
                    "emergency limit was changed in the repository while this node could not reach it; using the stored setting"
                );
                return Ok(stored);
            }
            let state = ControlState { emergency: unstored.wanted, ..stored.clone() };
            let newer = ControlState { version: stored.version + 1, ..state.clone() };
            match self.replace_control_state(stored.version, &newer).await {
                Ok(true) => {
                    core.end_unstored(unstored);
                    tracing::info!(emergency = ?newer.emergency, "emergency limit of this node was stored for all nodes");
                    return Ok(newer);
                }
                Ok(false) => {}
                // A store that can be read and not written.
                Err(error) => {
                    tracing::debug!(%error, "emergency limit cannot be stored; retrying");
                    return Ok(state);
                }
            }
        }
        Err(RepositoryError::Contention)
    }

    /// Puts a switch aside until the store answers.
    pub(in crate::repository) fn switch_unstored(&self, wanted: Option<EmergencySwitch>) {
        let core = &self.0;
        let known = core.state.lock().as_ref().map(|state| state.emergency);
        let mut unstored = core.unstored.lock();
        let replaced = unstored.map_or(known, |unstored| unstored.replaced);
        *unstored = Some(UnstoredSwitch { wanted, replaced });
        drop(unstored);
        core.note_change();
    }

    pub(in crate::repository) fn known_control_state(&self) -> KnownControlState {
        let known = self.0.state.lock().clone();
        let unstored = *self.0.unstored.lock();
        let is_read = known.is_some();
        let mut state = known.unwrap_or_default();
        if let Some(unstored) = unstored {
            state.emergency = unstored.wanted;
        }
        KnownControlState { state, is_read, is_unstored: unstored.is_some() }
    }

    /// The state in the store, or what it has lost of it.
    async fn stored_state(&self) -> Result<ControlState, RepositoryError> {
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
    /// Forgets a switch, unless there is a newer one.
    fn end_unstored(&self, ended: UnstoredSwitch) {
        self.unstored.lock().take_if(|unstored| *unstored == ended);
    }

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
