//! Opens the RESP door of a node.

use super::listeners::{ListenerRole, NodeListener, NodeParts, bind};
use super::reload::watch_certificate;
use crate::command_error::CommandError;
use crate::config::RespConfig;
use std::sync::Arc;
use tollgate_listen::{ListenerSetup, ServerCertificate};
use tollgate_server::RespDoor;

/// Starts to listen.
pub async fn open(config: &RespConfig, node: &NodeParts<'_>) -> Result<NodeListener, CommandError> {
    let role = ListenerRole::Door;
    let (listener, address) = bind(config.listen, "resp-listen").await?;
    let certificate = config.tls.as_ref().map(|(certificate, key)| ServerCertificate::open(certificate, key));
    let certificate = certificate.transpose()?;
    let tls = certificate.as_ref().map(ServerCertificate::server_config).transpose()?;
    let scheme = if tls.is_some() { "rediss" } else { "redis" };
    let mut summary = format!("  resp    {scheme}://{address}\n");
    if !address.ip().is_loopback() && config.password.is_none() {
        summary += "  note    every client that can reach this address can spend the limits of all keys; set a password, or keep it internal\n";
    }
    let door = RespDoor { limiter: Arc::clone(node.limiter), password: config.password.clone() };
    let setup = ListenerSetup { tls, ..ListenerSetup::default() };
    let serving = Arc::new(door).serve(listener, setup, node.stop_of(role), RespDoor::default_options());
    let reloads = certificate.map(watch_certificate).transpose().map_err(CommandError::Thread)?;
    let reloads = reloads.into_iter().collect();
    Ok(NodeListener { role, summary, example: None, reloads, serving: Box::pin(serving) })
}
