//! Notices changes that no message told of: the heads of the repository are read at an interval and compared.

use super::SharedCore;
use super::scripts::SCRIPTS;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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
    pub(super) fn start(core: Arc<SharedCore>, every: Duration) -> Self {
        Self(tokio::spawn(keep_polling(core, every)))
    }
}

async fn keep_polling(core: Arc<SharedCore>, every: Duration) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heads = None;
    loop {
        ticks.tick().await;
        let keys = [core.keys.numbers.clone(), core.keys.summaries.clone(), core.keys.state.clone()];
        match core.call(&SCRIPTS.read_heads, &keys, &[]).await {
            Ok(read) => {
                let failed = core.failed_polls.swap(0, Ordering::Relaxed);
                if failed > 0 {
                    tracing::info!(failed, "rule repository answers again");
                }
                if failed > 0 || heads.as_ref().is_some_and(|heads: &ControlValue| *heads != read) {
                    core.note_change();
                }
                heads = Some(read);
            }
            Err(error) => {
                if core.failed_polls.fetch_add(1, Ordering::Relaxed) == 0 {
                    tracing::warn!(%error, "rule repository cannot be polled; the rules in force stay");
                }
            }
        }
    }
}
