//! Opens the gateway of a node.

use super::listeners::{ListenerRole, NodeListener, NodeParts};
use super::reload::{ReloadTarget, watch_certificate, watch_keys};
use crate::command_error::CommandError;
use crate::config::GatewayConfig;
use std::num::NonZero;
use std::sync::Arc;
use tollgate_gateway::settings::AccessLogSettings;
use tollgate_gateway::{AccessLog, Gateway, ListenSettings};
use tollgate_http::{IdentityExtractor, RateLimitLayer};
use tollgate_limiter::Clock;
use tollgate_listen::{ConnectionLimits, ListenerSetup, ServerCertificate};

/// Starts to listen, and to forward the requests that the limits of the node admit.
pub fn open(config: &GatewayConfig, node: &NodeParts<'_>) -> Result<NodeListener, CommandError> {
    let identities = &node.config.identities;
    let certificate = config.tls.as_ref().map(|(certificate, key)| ServerCertificate::open(certificate, key));
    let certificate = certificate.transpose()?;
    let tls = certificate.as_ref().map(ServerCertificate::server_config).transpose()?;
    let access_log =
        config.access_log.as_ref().map(|settings| open_access_log(settings, identities)).transpose()?;
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let listen = ListenSettings {
        address: config.listen,
        threads: config.threads.unwrap_or(cores),
        options: config.options,
        setup: ListenerSetup {
            tls,
            limits: Some(ConnectionLimits::new(config.connection_limits.clone())),
            ..ListenerSetup::default()
        },
        log: access_log.clone(),
    };
    let layer = RateLimitLayer::new(Arc::clone(node.limiter))
        .identities(Arc::clone(identities))
        .headers(node.config.headers);
    let gateway = Gateway::start(&config.settings, &layer, &listen)?;
    node.metrics.0.register(gateway.metrics());
    // There is one gateway.
    let _ = node.gateway_metrics.set(gateway.metrics());

    let keys = identities.key_file().map(|file| watch_keys(Arc::clone(identities), file.to_owned()));
    let reloads = [certificate.map(watch_certificate), keys].into_iter().flatten();
    let mut reloads = reloads.collect::<Result<Vec<_>, _>>().map_err(CommandError::Thread)?;
    if let Some(log) = access_log {
        reloads.push(ReloadTarget::Log(log.lines().clone()));
    }

    let summary = summary(config, &gateway);
    let role = ListenerRole::Door;
    let stop = node.stop_of(role);
    let serving = async move {
        stop.await;
        gateway.stop().await
    };
    Ok(NodeListener { role, summary, example: None, reloads, serving: Box::pin(serving) })
}

fn summary(config: &GatewayConfig, gateway: &Gateway) -> String {
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let upstreams = config.settings.upstreams.iter().flat_map(|upstream| &upstream.addresses);
    let upstreams: Vec<String> = upstreams.map(ToString::to_string).collect();
    format!("  gateway {scheme}://{}/ to {}\n", gateway.address(), upstreams.join(", "))
}

fn open_access_log(
    settings: &AccessLogSettings,
    identities: &IdentityExtractor,
) -> Result<AccessLog, CommandError> {
    let hidden = identities.query_parameters().into_iter().map(str::to_owned).collect();
    let log = AccessLog::open(settings, Clock::system(), hidden);
    log.map_err(|error| CommandError::AccessLog { path: settings.destination.to_string(), error })
}
