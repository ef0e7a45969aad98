//! Active health checks.

use super::UpstreamServer;
use super::connect::UpstreamConnector;
use super::health::HealthCheckResult;
use crate::body::UploadBody;
use crate::forwarding_state::ForwardingState;
use crate::settings::HealthCheckSettings;
use http::header::{CONNECTION, HOST};
use http::{HeaderValue, Request};
use std::sync::Arc;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Starts a task for every server whose upstream has health checks. The tasks end with the runtime.
pub(crate) fn start(state: &ForwardingState, connector: &UpstreamConnector) {
    for upstream in &state.upstreams {
        let Some(check) = &upstream.settings.health else { continue };
        for server in &upstream.servers {
            let (name, check) = (upstream.settings.name.clone(), check.clone());
            tokio::spawn(check_regularly(name, Arc::clone(server), check, connector.clone()));
        }
    }
}

async fn check_regularly(
    upstream: String,
    server: Arc<UpstreamServer>,
    check: HealthCheckSettings,
    connector: UpstreamConnector,
) {
    let mut every = interval(check.interval);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let result = check_once(&server, &check, &connector).await;
        if server.health.record_check(result) {
            let (address, path) = (&server.address, &check.path);
            match result {
                HealthCheckResult::Passed => {
                    tracing::info!(upstream, %address, path, "health check passed: upstream marked healthy")
                }
                HealthCheckResult::Failed => {
                    tracing::warn!(upstream, %address, path, "health check failed: upstream marked unhealthy")
                }
            }
        }
    }
}

/// Checks a server on a new connection, so that connecting is part of the check.
async fn check_once(
    server: &UpstreamServer,
    check: &HealthCheckSettings,
    connector: &UpstreamConnector,
) -> HealthCheckResult {
    let checked = async {
        let mut connection = connector.connect(&server.address, check.timeout).await.ok()?;
        let mut request = Request::new(UploadBody::empty());
        *request.uri_mut() = check.path.parse().ok()?;
        let host = format!("{}:{}", server.address.host, server.address.port);
        request.headers_mut().insert(HOST, HeaderValue::try_from(host).ok()?);
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        let response = connection.sender.send_request(request).await.ok()?;
        tollgate_http::response::is_healthy(&response).then_some(())
    };
    match timeout(check.timeout, checked).await {
        Ok(Some(())) => HealthCheckResult::Passed,
        Ok(None) | Err(_) => HealthCheckResult::Failed,
    }
}
