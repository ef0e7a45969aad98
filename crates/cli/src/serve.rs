//! `tollgate serve` and `tollgate gateway`: the composition root of a node.

mod admin;
mod decision_log;
mod exporters;
mod gateway;
mod grpc;
mod housekeeping;
mod listeners;
mod logging;
mod node;
mod node_metrics;
mod reload;
mod resp;
mod rules;
mod signals;
mod start_message;

use crate::command_error::CommandError;
use crate::config::{RuleSourceConfig, ServeConfig, SettingError, StoreConfig, WrittenSettings};
use crate::output;
use decision_log::NodeDecisionLog;
use exporters::NodeExporters;
pub use listeners::open_doors;
use listeners::{ListenerRole, NodeParts, NodePhase};
use node::ServingNode;
use node_metrics::NodeMetrics;
use reload::{ReloadTarget, ReloadTargets};
use rules::NodeRepository;
use signals::ProcessSignals;
use start_message::StartMessage;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tollgate_control::live::{LiveMonitor, LiveParts, LiveSettings, NodeProfile};
use tollgate_control::{ControlStateFollower, RuleOwner, StatusPoster};
use tollgate_limiter::metrics::SpanSink;
use tollgate_limiter::{Clock, Limiter, MemoryStore};
use tollgate_redis::{NodeAddress, RedisStore};
use tollgate_server::Readiness;

/// Which doors a node opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeMode {
    /// All that have an address.
    AllDoors,
    /// Only the gateway.
    GatewayOnly,
}

/// Runs a node until it is stopped.
pub fn run(args: WrittenSettings, mode: ServeMode) -> Result<ExitCode, CommandError> {
    run_until(args, mode, None)
}

/// Runs a node until it is stopped, or for this time.
pub fn run_until(
    args: WrittenSettings,
    mode: ServeMode,
    stop_after: Option<Duration>,
) -> Result<ExitCode, CommandError> {
    let config = ServeConfig::load(args, mode)?;
    if mode == ServeMode::GatewayOnly && config.gateway.is_none() {
        return Err(SettingError::NoUpstream.into());
    }
    let log = logging::start(config.log_format)?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(CommandError::Thread)?;
    let metrics = NodeMetrics::new(log.dropped_lines());
    let outcome = runtime.block_on(serve(config, mode, metrics, stop_after));
    // A disk that hangs blocks its threads, but not the end of the process.
    runtime.shutdown_background();
    log.flush();
    outcome
}

async fn serve(
    config: ServeConfig,
    mode: ServeMode,
    metrics: NodeMetrics,
    stop_after: Option<Duration>,
) -> Result<ExitCode, CommandError> {
    let mut signals = ProcessSignals::listen(stop_after)?;
    // The start reads files and resolves names, which may hang: it runs in a thread that is not waited for.
    let runtime = Handle::current();
    let starting = tokio::task::spawn_blocking(move || runtime.block_on(assemble(&config, mode, &metrics)));
    let mut node = tokio::select! {
        started = starting => started.map_err(CommandError::Start)??,
        () = signals.wait_for_stop() => {
            tracing::info!("stopped before the start was complete");
            return Ok(ExitCode::SUCCESS);
        }
    };
    // A client that has read the message may send a signal at once, and from here on a signal drains the node. Standard output
    // may be a pipe that is not read: nothing waits for the message.
    let message = std::mem::take(&mut node.start_message);
    drop(tokio::task::spawn_blocking(move || {
        if let Err(error) = output::try_print(message) {
            tracing::warn!(%error, "start message cannot be written to standard output");
        }
    }));
    node.run(signals).await
}

/// Assembles a node: store, limiter, rules, listeners, exporters, reloads. Its listeners are open afterwards.
async fn assemble(
    config: &ServeConfig,
    mode: ServeMode,
    metrics: &NodeMetrics,
) -> Result<ServingNode, CommandError> {
    let clock = Clock::system();
    let exporters = NodeExporters::new(&config.telemetry, metrics, &clock)?;
    let redis = open_redis(config, mode, &clock, exporters.spans()).await?;
    let decision_log = config.telemetry.decision_log.as_ref();
    let decision_log = decision_log.map(|log| NodeDecisionLog::open(log, &exporters, metrics)).transpose()?;
    let limiter = build_limiter(config, clock, redis.as_ref(), decision_log.as_ref());
    metrics.0.register(Arc::clone(&limiter) as _);
    if let Some(redis) = &redis {
        metrics.0.register(redis.metrics());
    }

    let readiness = Arc::new(Readiness::default());
    let repository = NodeRepository::open(config, redis.as_ref(), limiter.clock())?;
    let rules = rules::load(config, mode, &limiter, &repository, metrics).await?;
    // The control state of another control plane is followed with its rules.
    let control_state = (!matches!(rules.owner, RuleOwner::ControlPlane(_))).then(|| {
        ControlStateFollower::start(repository.repository.clone(), Arc::clone(&limiter), config.rules_poll)
    });
    readiness.set_rules_installed();

    let gateway_metrics = Arc::new(OnceLock::new());
    let live = LiveParts {
        profile: NodeProfile {
            name: config.node_name.clone(),
            address: first_address(config, mode).to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        },
        limiter: Arc::clone(&limiter),
        store: redis.as_ref().map(RedisStore::observer),
        rules: rules.status.clone(),
        gateway: Arc::clone(&gateway_metrics),
    };
    let live = LiveMonitor::start(live, LiveSettings::default()).map_err(CommandError::Thread)?;

    let status_poster = match &config.rule_source {
        RuleSourceConfig::ControlPlane(client) => Some(StatusPoster::start(client.clone(), live.view())),
        RuleSourceConfig::Repository | RuleSourceConfig::FileOnly => None,
    };

    let (phase, watched_phase) = watch::channel(NodePhase::Serving);
    let parts = NodeParts {
        config,
        mode,
        limiter: &limiter,
        readiness: &readiness,
        metrics,
        repository: &repository,
        rule_owner: &rules.owner,
        live: live.view(),
        gateway_metrics: &gateway_metrics,
        phase: watched_phase,
    };
    let mut listeners = listeners::open_all(&parts).await?;
    let exporters = exporters.start(|| parts.stop_of(ListenerRole::Admin))?;

    let start_message = StartMessage {
        config,
        rules: &rules.summary,
        repository: &repository,
        rule_owner: &rules.owner,
        listeners: &listeners,
    };
    let start_message = start_message.to_string();
    let reloads = listeners.iter_mut().flat_map(|listener| std::mem::take(&mut listener.reloads));
    let decision_lines = decision_log.as_ref().and_then(|log| log.lines().cloned());
    let logs = decision_lines.clone().map(ReloadTarget::Log);
    let reloads = ReloadTargets(rules.reloads.into_iter().chain(reloads).chain(logs).collect());
    Ok(ServingNode {
        start_message,
        limiter,
        redis,
        live,
        _repository: repository,
        _control_state: control_state,
        _status_poster: status_poster,
        listeners,
        exporters,
        decision_lines,
        reloads,
        readiness,
        phase,
    })
}

async fn open_redis(
    config: &ServeConfig,
    mode: ServeMode,
    clock: &Clock,
    spans: Option<Arc<dyn SpanSink>>,
) -> Result<Option<RedisStore>, CommandError> {
    let StoreConfig::Redis(store) = &config.store else { return Ok(None) };
    let mut settings = store.settings.clone();
    settings.node = NodeAddress(first_address(config, mode).to_string());
    settings.spans = spans;
    Ok(Some(RedisStore::open(&store.url, settings, clock.clone()).await?))
}

/// The address of the first door.
fn first_address(config: &ServeConfig, mode: ServeMode) -> SocketAddr {
    match (mode, &config.gateway) {
        (ServeMode::GatewayOnly, Some(gateway)) => gateway.listen,
        _ => config.listen,
    }
}

fn build_limiter(
    config: &ServeConfig,
    clock: Clock,
    redis: Option<&RedisStore>,
    decision_log: Option<&Arc<NodeDecisionLog>>,
) -> Arc<Limiter> {
    let limiter = Limiter::new(MemoryStore::new(config.store_memory), clock).watching(config.abuse);
    let mut limiter = limiter.keeping_samples();
    if let (Some(settings), Some(log)) = (&config.telemetry.decision_log, decision_log) {
        limiter = limiter.observed_by(Arc::clone(log) as _, settings.observation);
    }
    Arc::new(match (&config.store, redis) {
        (StoreConfig::Redis(store), Some(redis)) => limiter.sharing(redis.shared_store(), store.failure),
        _ => limiter.with_emergency(config.emergency, config.emergency_per_second),
    })
}
