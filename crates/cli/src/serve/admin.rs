//! Opens the admin listener of a node.

use super::listeners::{ListenerRole, NodeListener, NodeParts, bind, open_doors};
use super::reload::watch_certificate;
use crate::command_error::CommandError;
use crate::config::AdminConfig;
use std::io::ErrorKind;
use std::sync::Arc;
use tollgate_control::{AdminListener, OperateTokenFile};
use tollgate_listen::{ListenerSetup, ServerCertificate};

/// Starts to listen. The first start with a data folder writes the operate token.
pub async fn open(config: &AdminConfig, node: &NodeParts<'_>) -> Result<NodeListener, CommandError> {
    let role = ListenerRole::Admin;
    let (listener, address) = bind(config.listen, "admin-listen").await?;
    let certificate = config.tls.as_ref().map(|(certificate, key)| ServerCertificate::open(certificate, key));
    let certificate = certificate.transpose()?;
    let tls = certificate.as_ref().map(ServerCertificate::server_config).transpose()?;
    let operate_token = OperateTokenFile::open(node.config.data.as_deref()).or_else(|error| {
        // A file with something else in it is a mistake. A folder that cannot be used must not stop the node.
        if error.kind() == ErrorKind::InvalidData {
            return Err(error);
        }
        tracing::warn!(%error, "operate token cannot be kept in the data folder; it is in a temporary folder");
        OperateTokenFile::open(None)
    });
    let operate_token = operate_token.map_err(CommandError::OperateToken)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let summary =
        format!("  admin   {scheme}://{address}/\n  token   {} (operate)\n", operate_token.path().display());
    node.live.set_admin(format!("{scheme}://{address}"));
    let admin = AdminListener {
        readiness: Arc::clone(node.readiness),
        metrics: Arc::new(node.metrics.clone()),
        limiter: Arc::clone(node.limiter),
        live: node.live.clone(),
        repository: node.repository.repository.clone(),
        rule_owner: node.rule_owner.clone(),
        doors: open_doors(node.config, node.mode),
        operate_token,
        hosts: config.hosts.clone(),
        setup: ListenerSetup { tls, ..ListenerSetup::default() },
    };
    let reloads = certificate.map(watch_certificate).transpose().map_err(CommandError::Thread)?;
    let stop = node.stop_of(role);
    let serving = async move {
        admin.serve(listener, stop).await.unwrap_or_else(|error| {
            tracing::error!(%error, "the admin listener cannot be served");
            0
        })
    };
    let reloads = reloads.into_iter().collect();
    Ok(NodeListener { role, summary, example: None, reloads, serving: Box::pin(serving) })
}
