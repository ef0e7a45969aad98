//! Notices after each change, and whenever the store answers again, what the store has lost of tokens and audit entries.
//! Revisions and the control state are followed to be put in force, and restored by that.

use super::SharedRepository;
use crate::repository::RepositoryError;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// After a failure. The repository also says when it answers again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Follows the repository until it is dropped.
#[derive(Debug)]
pub(super) struct LossFollower(JoinHandle<()>);

impl Drop for LossFollower {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl LossFollower {
    pub(super) fn start(repository: SharedRepository) -> Self {
        Self(tokio::spawn(follow(repository)))
    }
}

async fn follow(repository: SharedRepository) {
    let mut changes = repository.changes();
    loop {
        changes.borrow_and_update();
        let restored = restore(&repository).await;
        if let Err(error) = &restored {
            tracing::debug!(%error, "tokens and audit entries cannot be compared with the store; retrying");
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = sleep(RETRY_AFTER), if restored.is_err() => {}
        }
    }
}

async fn restore(repository: &SharedRepository) -> Result<(), RepositoryError> {
    repository.tokens().await?;
    repository.restore_audit().await
}
