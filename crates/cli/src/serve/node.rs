//! A node that serves: until a signal stops it and the requests in flight have ended.

use super::housekeeping;
use super::reload::ReloadTargets;
use super::signals::{ProcessSignals, SignalRequest};
use crate::command_error::CommandError;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;
use tollgate_gateway::Gateway;
use tollgate_limiter::Limiter;
use tollgate_listen::ServeOptions;
use tollgate_redis::RedisStore;
use tollgate_server::HttpDoor;

/// Watched files are read every second; after this long without a read, it is an error.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// An assembled node, with open listeners.
pub struct ServingNode {
    pub limiter: Arc<Limiter>,
    pub redis: Option<RedisStore>,
    pub check_api: HttpDoor,
    pub check_listener: Option<TcpListener>,
    pub gateway: Option<Gateway>,
    pub reloads: ReloadTargets,
}

impl ServingNode {
    /// Serves until a first signal to stop and the end of the requests in flight, or until a second signal.
    pub async fn run(self, mut signals: ProcessSignals) -> Result<ExitCode, CommandError> {
        let Self { limiter, redis, check_api, check_listener, gateway, reloads } = self;
        let housekeeping = tokio::spawn(housekeeping::run(limiter));
        let (stop, stopped) = watch::channel(false);
        let checks = serve_checks(check_listener, check_api, stopped.clone());
        let forwarding = async {
            wait_for_stop(stopped).await;
            match gateway {
                Some(gateway) => gateway.stop().await,
                None => 0,
            }
        };
        // The number of connections that were closed while a request was in flight.
        let mut serving = pin!(async {
            let (closed_checks, closed_forwards) = tokio::join!(checks, forwarding);
            if let Some(redis) = redis {
                redis.close().await;
            }
            closed_checks + closed_forwards
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

/// Serves the check API, if it has a listener, until it is stopped and drained.
async fn serve_checks(
    listener: Option<TcpListener>,
    door: HttpDoor,
    stopped: watch::Receiver<bool>,
) -> usize {
    let Some(listener) = listener else { return 0 };
    Arc::new(door).serve(listener, wait_for_stop(stopped), ServeOptions::default()).await
}

/// Waits until the value is true or the sender is gone.
async fn wait_for_stop(mut stopped: watch::Receiver<bool>) {
    drop(stopped.wait_for(|stop| *stop).await);
}
