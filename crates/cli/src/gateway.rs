//! The gateway, as `serve` and `gateway` start it.

use crate::Failure;
use crate::config;
use std::fs::OpenOptions;
use std::num::NonZero;
use std::os::unix::fs::OpenOptionsExt;
use tollgate_gateway::{AccessLog, Gateway, Listen};
use tollgate_http::serve::{Crowd, tls_from_files};
use tollgate_http::{Entrance, Identities, RateLimitLayer};
use tollgate_limiter::Clock;

/// Listens from now on, and forwards what `limits` let pass.
pub fn start(
    config: &config::Gateway,
    identities: &Identities,
    limits: &RateLimitLayer,
) -> Result<Gateway, Failure> {
    let tls = config.tls.as_ref().map(|(certificate, key)| tls_from_files(certificate, key));
    let tls = tls.transpose().map_err(|error| {
        Failure::plain(format!("{error}\n  hint: both are PEM files, named under `gateway: tls:`"))
    })?;
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let listen = Listen {
        address: config.listen,
        threads: config.threads.unwrap_or(cores),
        options: config.options,
        entrance: Entrance { tls, crowd: Some(Crowd::new(config.crowd.clone())) },
        log: config.access_log.as_deref().map(|path| open_log(path, identities)).transpose()?,
    };
    Gateway::start(&config.settings, limits, &listen).map_err(|error| {
        let hint = "choose another address with --gateway-listen";
        Failure::plain(match error {
            tollgate_gateway::GatewayError::Listen { .. } => format!("{error}\n  hint: {hint}"),
            other => other.to_string(),
        })
    })
}

fn open_log(path: &std::path::Path, identities: &Identities) -> Result<AccessLog, Failure> {
    let hidden = identities.query_parameters().into_iter().map(str::to_owned).collect();
    let cannot = |error| Failure::plain(format!("cannot write the access log {}: {error}", path.display()));
    if path.as_os_str() == "stdout" {
        return AccessLog::start(std::io::stdout(), Clock::system(), hidden).map_err(cannot);
    }
    // For those who run it, not for everybody on the machine.
    let file = OpenOptions::new().create(true).append(true).mode(0o640).open(path).map_err(cannot)?;
    AccessLog::start(file, Clock::system(), hidden).map_err(cannot)
}
