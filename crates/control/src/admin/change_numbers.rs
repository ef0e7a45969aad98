//! The numbers of the newest revision and of the control state, which streams of events tell. They are read once for all
//! streams, however many nodes follow.

use super::ControlPlane;
use crate::repository::{NewestRevision, RuleRepository};
use crate::revision::RevisionId;
use crate::rule_owner::FollowedControlPlane;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// After a read that failed.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What was changed last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChangeNumbers {
    /// The newest revision.
    pub(super) revision: Option<u64>,
    /// The version of the control state.
    pub(super) control_state: Option<u64>,
}

impl ControlPlane {
    /// Keeps the numbers current.
    pub(super) async fn follow_changes(self: Arc<Self>) {
        match self.rule_owner.followed() {
            Some(followed) => self.follow_control_plane(followed.clone()).await,
            None => self.follow_repository(&self.repository).await,
        }
    }

    async fn follow_repository(&self, repository: &RuleRepository) {
        let mut changes = repository.changes();
        let mut known: Option<RevisionId> = None;
        loop {
            // A change while this one is read is noticed again.
            changes.borrow_and_update();
            let read = async {
                match repository.newest_unless(known.as_ref()).await? {
                    NewestRevision::Other(newest) => known = Some(newest.summary.id()),
                    NewestRevision::None | NewestRevision::Known => {}
                }
                repository.control_state().await
            };
            match read.await {
                Ok(state) => self.tell(ChangeNumbers {
                    revision: known.as_ref().map(|known| known.number),
                    control_state: Some(state.version),
                }),
                Err(error) => {
                    tracing::debug!(%error, "changes cannot be read; retrying");
                    sleep(READ_AGAIN_AFTER).await;
                    continue;
                }
            }
            // An error means that the repository is closed.
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    async fn follow_control_plane(&self, mut followed: FollowedControlPlane) {
        loop {
            let revision = followed.revision.borrow_and_update().clone();
            let state = followed.state.borrow_and_update().clone();
            self.tell(ChangeNumbers {
                revision: revision.map(|revision| revision.summary.number),
                control_state: state.map(|state| state.version),
            });
            // An error means that the node stops.
            let changed = tokio::select! {
                changed = followed.revision.changed() => changed,
                changed = followed.state.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    }

    fn tell(&self, numbers: ChangeNumbers) {
        self.changes.send_if_modified(|known| std::mem::replace(known, numbers) != numbers);
    }
}
