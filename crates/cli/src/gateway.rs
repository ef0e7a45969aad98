//! The gateway, as `serve` and `gateway` start it.

use crate::Failure;
use crate::config;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use tollgate_gateway::{AccessLog, Gateway, ListenSettings};
use tollgate_http::{IdentityExtractor, RateLimitLayer};
use tollgate_limiter::Clock;
use tollgate_listen::{ConnectionLimits, ListenerSetup, ServerCertificate, TlsError};

/// A gateway that runs, and what of it can be taken up again.
pub struct Started {
    /// The gateway.
    pub gateway: Gateway,
    /// What it proves itself with.
    pub certificate: Option<Arc<ServerCertificate>>,
    /// Where it notes requests.
    pub access_log: Option<AccessLog>,
}

/// Listens from now on, and forwards what `limits` let pass.
pub fn start(
    config: &config::Gateway,
    identities: &IdentityExtractor,
    limits: &RateLimitLayer,
) -> Result<Started, Failure> {
    let unusable = |error: TlsError| {
        Failure::plain(format!("{error}\n  hint: both are PEM files, named under `gateway: tls:`"))
    };
    let certificate = config.tls.as_ref().map(|(certificate, key)| ServerCertificate::open(certificate, key));
    let certificate = certificate.transpose().map_err(unusable)?;
    let tls = certificate.as_ref().map(ServerCertificate::server_config).transpose().map_err(unusable)?;
    let access_log = config.access_log.as_deref().map(|path| open_log(path, identities)).transpose()?;
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let listen = ListenSettings {
        address: config.listen,
        threads: config.threads.unwrap_or(cores),
        options: config.options,
        setup: ListenerSetup { tls, limits: Some(ConnectionLimits::new(config.crowd.clone())) },
        log: access_log.clone(),
    };
    let gateway = Gateway::start(&config.settings, limits, &listen).map_err(|error| {
        let hint = "choose another address with --gateway-listen";
        Failure::plain(match error {
            tollgate_gateway::GatewayError::Listen { .. } => format!("{error}\n  hint: {hint}"),
            other => other.to_string(),
        })
    })?;
    Ok(Started { gateway, certificate, access_log })
}

fn open_log(path: &Path, identities: &IdentityExtractor) -> Result<AccessLog, Failure> {
    let hidden = identities.query_parameters().into_iter().map(str::to_owned).collect();
    let log = if path.as_os_str() == "stdout" {
        AccessLog::start(std::io::stdout(), Clock::system(), hidden)
    } else {
        AccessLog::open(path, Clock::system(), hidden)
    };
    log.map_err(|error| Failure::plain(format!("cannot write the access log {}: {error}", path.display())))
}
