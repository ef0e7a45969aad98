//! The listeners of a node: which there are, and how each is opened.
//!
//! A door with its own listener is registered here, in [`open_all`] and [`open_doors`]. The rest of a node treats all
//! listeners alike.

use super::node_metrics::NodeMetrics;
use super::reload::{ReloadTarget, watch_keys};
use super::rules::NodeRepository;
use super::{ServeMode, admin, gateway, grpc, resp};
use crate::command_error::CommandError;
use crate::config::ServeConfig;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tollgate_control::RuleOwner;
use tollgate_control::live::LiveView;
use tollgate_core::rules::OpenDoor;
use tollgate_gateway::Gateway;
use tollgate_limiter::Limiter;
use tollgate_limiter::metrics::MetricSource;
use tollgate_server::{ForwardAuth, HttpDoor, Readiness, RespDoor, RlsDoor};

/// An open listener. It is served while the node runs.
pub struct NodeListener {
    /// When it stops.
    pub role: ListenerRole,
    /// Its lines in the start message.
    pub summary: String,
    /// A command to try with the built-in example rules, at the end of the start message.
    pub example: Option<String>,
    /// What it reloads while it runs.
    pub reloads: Vec<ReloadTarget>,
    /// Serves until the node stops, then drains. The result is the number of connections that were cut.
    pub serving: Pin<Box<dyn Future<Output = usize> + Send>>,
}

/// What a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerRole {
    /// Its requests are decided. It drains when the node is told to stop.
    Door,
    /// It reports on the node. It stops when all doors are drained.
    Admin,
}

/// What listeners need from their node.
pub struct NodeParts<'a> {
    pub config: &'a ServeConfig,
    pub mode: ServeMode,
    pub limiter: &'a Arc<Limiter>,
    pub readiness: &'a Arc<Readiness>,
    pub metrics: &'a NodeMetrics,
    pub repository: &'a NodeRepository,
    pub rule_owner: &'a RuleOwner,
    /// The live figures of the node.
    pub live: LiveView,
    /// Where the live figures find the metrics of the gateway.
    pub gateway_metrics: &'a Arc<OnceLock<Arc<dyn MetricSource>>>,
    pub phase: watch::Receiver<NodePhase>,
}

impl NodeParts<'_> {
    /// Resolves when a listener of this role has to stop.
    pub fn stop_of(&self, role: ListenerRole) -> impl Future<Output = ()> + Send + 'static {
        let mut phase = self.phase.clone();
        let last = match role {
            ListenerRole::Door => NodePhase::Draining,
            ListenerRole::Admin => NodePhase::Drained,
        };
        // An error means that the node is gone.
        async move { drop(phase.wait_for(|phase| *phase >= last).await) }
    }
}

/// What a node does, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodePhase {
    Serving,
    /// The doors finish their requests in flight.
    Draining,
    /// The doors are closed.
    Drained,
}

/// Opens the listeners of the node, in the order of the start message.
pub async fn open_all(node: &NodeParts<'_>) -> Result<Vec<NodeListener>, CommandError> {
    let mut listeners = Vec::new();
    if node.mode == ServeMode::AllDoors {
        listeners.push(open_check_api(node).await?);
        if let Some(config) = &node.config.grpc {
            listeners.push(grpc::open(config, node).await?);
        }
        if let Some(config) = &node.config.resp {
            listeners.push(resp::open(config, node).await?);
        }
    }
    if let Some(config) = &node.config.gateway {
        listeners.push(gateway::open(config, node)?);
    }
    if let Some(config) = &node.config.admin {
        listeners.push(admin::open(config, node).await?);
    }
    Ok(listeners)
}

/// The doors of a node, for warnings about rules that they do not support.
pub fn open_doors(config: &ServeConfig, mode: ServeMode) -> Vec<OpenDoor> {
    let checks = (mode == ServeMode::AllDoors).then(HttpDoor::describe);
    let gateway = config.gateway.as_ref().map(|_| Gateway::describe(&config.identities));
    let resp = config.resp.as_ref().filter(|_| mode == ServeMode::AllDoors).map(|_| RespDoor::describe());
    // It is always open, and few nodes use it: the settings say so.
    let auth = config.forward_auth.as_ref().filter(|_| mode == ServeMode::AllDoors);
    let auth = auth.map(|_| ForwardAuth::describe(&config.identities));
    let grpc = config.grpc.as_ref().filter(|_| mode == ServeMode::AllDoors).map(|_| RlsDoor::describe());
    checks.into_iter().chain(auth).chain(grpc).chain(resp).chain(gateway).collect()
}

/// Binds the address of the setting `flag`.
pub async fn bind(
    address: SocketAddr,
    flag: &'static str,
) -> Result<(TcpListener, SocketAddr), CommandError> {
    let listen_error = |error| CommandError::Listen { address, flag, error };
    let listener = TcpListener::bind(address).await.map_err(listen_error)?;
    let address = listener.local_addr().map_err(listen_error)?;
    Ok((listener, address))
}

async fn open_check_api(node: &NodeParts<'_>) -> Result<NodeListener, CommandError> {
    let role = ListenerRole::Door;
    let (listener, address) = bind(node.config.listen, "listen").await?;
    let identities = &node.config.identities;
    let forward_auth = ForwardAuth::new(
        Arc::clone(node.limiter),
        node.config.headers,
        Arc::clone(identities),
        node.config.forward_auth.clone().unwrap_or_default(),
    );
    let door = HttpDoor {
        limiter: Arc::clone(node.limiter),
        headers: node.config.headers,
        forward_auth,
        readiness: Arc::clone(node.readiness),
    };
    // With a gateway, its listener watches them.
    let keys = identities.key_file().filter(|_| node.config.gateway.is_none());
    let keys = keys.map(|file| watch_keys(Arc::clone(identities), file.to_owned()));
    let reloads = keys.transpose().map_err(CommandError::Thread)?.into_iter().collect();
    let mut summary = format!("  checks  http://{address}/v1/check\n");
    if !address.ip().is_loopback() {
        summary += "  note    every client that can reach this address can spend the limits of all keys; keep it internal\n";
    }
    let example = format!(
        "Try it; five checks return 200, then 429:\n\n  \
         for i in 1 2 3 4 5 6 7; do curl -s -o /dev/null -w '%{{http_code}}\\n' http://{address}/v1/check \
         -d '{{\"key\":\"alice\",\"endpoint\":\"/hello\"}}'; done\n"
    );
    let serving = Arc::new(door).serve(listener, node.stop_of(role), HttpDoor::default_options());
    Ok(NodeListener { role, summary, example: Some(example), reloads, serving: Box::pin(serving) })
}
