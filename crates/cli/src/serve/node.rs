//! A node that serves: until a signal stops it and the requests in flight have ended.

use super::housekeeping;
use super::listeners::NodeListener;
use super::reload::ReloadTargets;
use super::signals::{ProcessSignals, SignalRequest};
use crate::command_error::CommandError;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate_limiter::Limiter;
use tollgate_redis::RedisStore;

/// Watched files are read every second; after this long without a read, it is an error.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// An assembled node, with open listeners.
pub struct ServingNode {
    pub limiter: Arc<Limiter>,
    pub redis: Option<RedisStore>,
    pub listeners: Vec<NodeListener>,
    pub reloads: ReloadTargets,
    /// Tells the listeners to stop.
    pub stop: watch::Sender<bool>,
}

impl ServingNode {
    /// Serves until a first signal to stop and the end of the requests in flight, or until a second signal.
    pub async fn run(self, mut signals: ProcessSignals) -> Result<ExitCode, CommandError> {
        let Self { limiter, redis, listeners, reloads, stop } = self;
        let housekeeping = tokio::spawn(housekeeping::run(limiter));
        let serving: JoinSet<usize> = listeners.into_iter().map(|listener| listener.serving).collect();
        // The number of connections that were closed while a request was in flight.
        let mut serving = pin!(async {
            let closed: usize = serving.join_all().await.into_iter().sum();
            if let Some(redis) = redis {
                redis.close().await;
            }
            closed
        });
        let mut read_timeouts = tokio::time::interval_at(Instant::now() + READ_TIMEOUT, READ_TIMEOUT);
        let closed = loop {
            tokio::select! {
                closed = &mut serving => break closed,
                _ = read_timeouts.tick() => reloads.report_read_timeouts(),
                request = signals.next() => match request {
                    SignalRequest::Reload => reloads.reload(),
                    SignalRequest::ReopenLogs => reloads.reopen_logs(),
                    SignalRequest::Stop(number) => {
                        if stop.send_replace(true) {
                            tracing::warn!("stopped by a second signal; requests in flight were dropped");
                            return Ok(ExitCode::from(128 + number));
                        }
                        tracing::info!("stopping: draining requests in flight; a second signal drops them");
                    }
                }
            }
        };
        housekeeping.abort();
        match closed {
            0 => tracing::info!("stopped; all requests were drained"),
            connections => tracing::warn!(connections, "stopped; the drain timed out on some connections"),
        }
        Ok(ExitCode::SUCCESS)
    }
}
