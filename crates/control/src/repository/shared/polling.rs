//! Notices changes that no message told of: the heads of the repository are read at an interval and compared.

use super::SharedRepository;
use super::scripts::SCRIPTS;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tollgate_redis::ControlValue;

/// Polls until it is dropped.
#[derive(Debug)]
pub(super) struct ChangePoller(JoinHandle<()>);

impl Drop for ChangePoller {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ChangePoller {
    pub(super) fn start(repository: SharedRepository, every: Duration) -> Self {
        Self(tokio::spawn(keep_polling(repository, every)))
    }
}

async fn keep_polling(repository: SharedRepository, every: Duration) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let core = &repository.0;
    let (mut heads, mut has_probed) = (None, false);
    loop {
        ticks.tick().await;
        let keys = [core.keys.numbers.clone(), core.keys.summaries.clone(), core.keys.state.clone()];
        match core.call(&SCRIPTS.read_heads, &keys, &[]).await {
            Ok(read) => {
                let failed = core.health.record_success();
                if failed > 0 {
                    tracing::info!(failed, "rule repository answers again");
                }
                if failed > 0 || heads.as_ref().is_some_and(|heads: &ControlValue| *heads != read) {
                    core.note_change();
                }
                heads = Some(read);
                if !std::mem::replace(&mut has_probed, true) {
                    repository.report_missing_permissions().await;
                }
            }
            Err(error) => {
                if core.health.record_failure() == 0 {
                    tracing::warn!(%error, "rule repository cannot be polled; the rules in force stay");
                }
            }
        }
    }
}
