//! Starts the gateway of a node.

use crate::command_error::CommandError;
use crate::config::GatewayConfig;
use std::num::NonZero;
use std::sync::Arc;
use tollgate_gateway::settings::AccessLogSettings;
use tollgate_gateway::{AccessLog, Gateway, ListenSettings};
use tollgate_http::{IdentityExtractor, RateLimitLayer};
use tollgate_limiter::Clock;
use tollgate_listen::{ConnectionLimits, ListenerSetup, ServerCertificate};

/// A running gateway, and its parts that can be reloaded.
pub struct StartedGateway {
    /// The gateway.
    pub gateway: Gateway,
    /// Its certificate.
    pub certificate: Option<Arc<ServerCertificate>>,
    /// Its access log.
    pub access_log: Option<AccessLog>,
}

/// Starts to listen, and to forward the requests that `layer` admits.
pub fn start(
    config: &GatewayConfig,
    identities: &IdentityExtractor,
    layer: &RateLimitLayer,
) -> Result<StartedGateway, CommandError> {
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
        setup: ListenerSetup { tls, limits: Some(ConnectionLimits::new(config.connection_limits.clone())) },
        log: access_log.clone(),
    };
    let gateway = Gateway::start(&config.settings, layer, &listen)?;
    Ok(StartedGateway { gateway, certificate, access_log })
}

fn open_access_log(
    settings: &AccessLogSettings,
    identities: &IdentityExtractor,
) -> Result<AccessLog, CommandError> {
    let hidden = identities.query_parameters().into_iter().map(str::to_owned).collect();
    let log = AccessLog::open(settings, Clock::system(), hidden);
    log.map_err(|error| CommandError::AccessLog { path: settings.destination.to_string(), error })
}
