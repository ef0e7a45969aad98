//! A node that serves: until a signal stops it and the requests in flight have ended.

use super::housekeeping;
use super::listeners::{ListenerRole, NodeListener, NodePhase};
use super::reload::ReloadTargets;
use super::rules::NodeRepository;
use super::signals::{ProcessSignals, SignalRequest};
use crate::command_error::CommandError;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tollgate_control::live::LiveMonitor;
use tollgate_control::{ControlStateFollower, StatusPoster};
use tollgate_limiter::Limiter;
use tollgate_limiter::line_log::LineLog;
use tollgate_redis::RedisStore;
use tollgate_server::Readiness;

/// Watched files are read every second; after this long without a read, it is an error.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// An assembled node, with open listeners.
pub struct ServingNode {
    /// Printed as soon as the node handles signals.
    pub start_message: String,
    pub limiter: Arc<Limiter>,
    pub redis: Option<RedisStore>,
    /// Lives as long as the node.
    pub _repository: NodeRepository,
    /// Lives as long as the node.
    pub _control_state: Option<ControlStateFollower>,
    /// Lives as long as the node.
    pub _status_poster: Option<StatusPoster>,
    pub live: LiveMonitor,
    pub listeners: Vec<NodeListener>,
    /// The tasks of the exporters. They end by themselves when the doors are drained.
    pub exporters: Vec<JoinHandle<()>>,
    /// The lines of the decision log, if there is one.
    pub decision_lines: Option<LineLog>,
    pub reloads: ReloadTargets,
    pub readiness: Arc<Readiness>,
    /// Tells the listeners when to stop.
    pub phase: watch::Sender<NodePhase>,
}

impl ServingNode {
    /// Serves until a first signal to stop and the end of the requests in flight, or until a second signal.
    pub async fn run(self, mut signals: ProcessSignals) -> Result<ExitCode, CommandError> {
        let Self {
            start_message: _,
            limiter,
            redis,
            live,
            _repository,
            _control_state,
            _status_poster,
            listeners,
            exporters,
            decision_lines,
            reloads,
            readiness,
            phase,
        } = self;
        let housekeeping = tokio::spawn(housekeeping::run(limiter));
        let (doors, others): (Vec<_>, Vec<_>) =
            listeners.into_iter().partition(|listener| listener.role == ListenerRole::Door);
        let (doors, others) = (serve_all(doors), serve_all(others));
        // The number of connections that were closed while a request was in flight.
        let mut serving = pin!(async {
            let closed: usize = doors.join_all().await.into_iter().sum();
            live.stop().await;
            if let Some(redis) = redis {
                redis.close().await;
            }
            phase.send_replace(NodePhase::Drained);
            let closed = closed + others.join_all().await.into_iter().sum::<usize>();
            if let Some(log) = decision_lines {
                log.flush().await;
            }
            // The last exports run since the doors are drained, each within its timeout.
            for exporter in exporters {
                drop(exporter.await);
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
                        if phase.send_replace(NodePhase::Draining) != NodePhase::Serving {
                            tracing::warn!("stopped by a second signal; requests in flight were dropped");
                            return Ok(ExitCode::from(128 + number));
                        }
                        readiness.set_draining();
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

/// Serves each of the listeners in a task.
fn serve_all(listeners: Vec<NodeListener>) -> JoinSet<usize> {
    listeners.into_iter().map(|listener| listener.serving).collect()
}
