//! Opens the RLS door of a node.

use super::listeners::{ListenerRole, NodeListener, NodeParts, bind};
use super::reload::watch_certificate;
use crate::command_error::CommandError;
use crate::config::GrpcConfig;
use std::sync::Arc;
use tollgate_listen::{ListenerSetup, ServerCertificate};
use tollgate_server::RlsDoor;

/// Starts to listen.
pub async fn open(config: &GrpcConfig, node: &NodeParts<'_>) -> Result<NodeListener, CommandError> {
    let role = ListenerRole::Door;
    let (listener, address) = bind(config.listen, "grpc-listen").await?;
    let certificate = config.tls.as_ref().map(|(certificate, key)| ServerCertificate::open(certificate, key));
    let certificate = certificate.transpose()?;
    let tls = certificate.as_ref().map(ServerCertificate::server_config).transpose()?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut summary = format!("  envoy   {scheme}://{address} (gRPC)\n");
    if !address.ip().is_loopback() {
        summary += "  note    every client that can reach this address can spend the limits of all keys; keep it internal\n";
    }
    let door = RlsDoor {
        limiter: Arc::clone(node.limiter),
        headers: config.headers.unwrap_or(node.config.headers),
        descriptors: config.descriptors,
        readiness: Arc::clone(node.readiness),
    };
    let setup = ListenerSetup { tls, ..ListenerSetup::default() };
    let serving = Arc::new(door).serve(listener, setup, node.stop_of(role), RlsDoor::default_options());
    let reloads = certificate.map(watch_certificate).transpose().map_err(CommandError::Thread)?;
    let reloads = reloads.into_iter().collect();
    Ok(NodeListener { role, summary, example: None, reloads, serving: Box::pin(serving) })
}
