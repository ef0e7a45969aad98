//! `tollgate serve` and `tollgate gateway`: the composition root of a node.

mod decision_log;
mod exporters;
mod gateway;
mod housekeeping;
mod listeners;
mod logging;
mod node;
mod node_metrics;
mod reload;
mod signals;
mod start_message;

use crate::command_error::CommandError;
use crate::config::{ServeConfig, SettingError, StoreConfig, WrittenSettings};
use crate::output;
use decision_log::NodeDecisionLog;
use exporters::NodeExporters;
pub use listeners::open_doors;
use listeners::{ListenerRole, NodeParts, NodePhase};
use node::ServingNode;
use node_metrics::NodeMetrics;
use reload::{ReloadTarget, ReloadTargets};
use signals::ProcessSignals;
use start_message::StartMessage;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tollgate_control::{InstallSettings, RuleMetrics, RuleSourceError, WatchedRuleFile};
use tollgate_core::rules;
use tollgate_limiter::metrics::SpanSink;
use tollgate_limiter::{Clock, Limiter, MemoryStore};
use tollgate_redis::{NodeAddress, RedisStore};
use tollgate_server::Readiness;

const EXAMPLE_RULES: &str = include_str!("quickstart.yaml");

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
    let outcome = runtime.block_on(serve(config, mode, metrics));
    // A disk that hangs blocks its threads, but not the end of the process.
    runtime.shutdown_background();
    log.flush();
    outcome
}

async fn serve(config: ServeConfig, mode: ServeMode, metrics: NodeMetrics) -> Result<ExitCode, CommandError> {
    let mut signals = ProcessSignals::listen()?;
    // The start reads files and resolves names, which may hang: it runs in a thread that is not waited for.
    let runtime = Handle::current();
    let starting = tokio::task::spawn_blocking(move || runtime.block_on(assemble(&config, mode, &metrics)));
    let node = tokio::select! {
        started = starting => started.map_err(CommandError::Start)??,
        () = signals.wait_for_stop() => {
            tracing::info!("stopped before the start was complete");
            return Ok(ExitCode::SUCCESS);
        }
    };
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
    let rules = load_rules(config, mode, &limiter, metrics)?;
    readiness.set_rules_installed();

    let (phase, watched_phase) = watch::channel(NodePhase::Serving);
    let parts =
        NodeParts { config, mode, limiter: &limiter, readiness: &readiness, metrics, phase: watched_phase };
    let mut listeners = listeners::open_all(&parts).await?;
    let exporters = exporters.start(|| parts.stop_of(ListenerRole::Admin))?;

    let message = StartMessage { config, rules: &rules.summary, listeners: &listeners };
    if let Err(error) = output::try_print(message) {
        tracing::warn!(%error, "start message cannot be written to standard output");
    }
    let reloads = listeners.iter_mut().flat_map(|listener| std::mem::take(&mut listener.reloads));
    let decision_lines = decision_log.as_ref().and_then(|log| log.lines().cloned());
    let logs = decision_lines.clone().map(ReloadTarget::Log);
    let reloads = ReloadTargets(rules.reloads.into_iter().chain(reloads).chain(logs).collect());
    Ok(ServingNode { limiter, redis, listeners, exporters, decision_lines, reloads, readiness, phase })
}

async fn open_redis(
    config: &ServeConfig,
    mode: ServeMode,
    clock: &Clock,
    spans: Option<Arc<dyn SpanSink>>,
) -> Result<Option<RedisStore>, CommandError> {
    let StoreConfig::Redis(store) = &config.store else { return Ok(None) };
    let address = match (mode, &config.gateway) {
        (ServeMode::GatewayOnly, Some(gateway)) => gateway.listen,
        _ => config.listen,
    };
    let mut settings = store.settings.clone();
    settings.node = NodeAddress(address.to_string());
    settings.spans = spans;
    Ok(Some(RedisStore::open(&store.url, settings, clock.clone()).await?))
}

fn build_limiter(
    config: &ServeConfig,
    clock: Clock,
    redis: Option<&RedisStore>,
    decision_log: Option<&Arc<NodeDecisionLog>>,
) -> Arc<Limiter> {
    let mut limiter = Limiter::new(MemoryStore::new(config.store_memory), clock).watching(config.abuse);
    if let (Some(settings), Some(log)) = (&config.telemetry.decision_log, decision_log) {
        limiter = limiter.observed_by(Arc::clone(log) as _, settings.observation);
    }
    Arc::new(match (&config.store, redis) {
        (StoreConfig::Redis(store), Some(redis)) => limiter.sharing(redis.shared_store(), store.failure),
        _ => limiter,
    })
}

/// The rules in force at the start.
struct StartRules {
    /// Where they come from, for the start message.
    summary: String,
    /// How they follow their source.
    reloads: Option<ReloadTarget>,
}

/// Puts the rules of their source in force: of the rule file, else of the built-in example. Other rule sources are
/// registered here.
fn load_rules(
    config: &ServeConfig,
    mode: ServeMode,
    limiter: &Arc<Limiter>,
    metrics: &NodeMetrics,
) -> Result<StartRules, CommandError> {
    let Some(path) = &config.rules else {
        let loaded = rules::load("the built-in example", EXAMPLE_RULES)?;
        limiter.install(loaded.rules, loaded.lists).map_err(RuleSourceError::Names)?;
        let summary =
            "built-in example: 5 requests, then one every 2 s, for each key (set your own with --rules FILE)";
        metrics.0.register(Arc::new(RuleMetrics::constant(EXAMPLE_RULES, limiter.clock().now())));
        return Ok(StartRules { summary: summary.to_owned(), reloads: None });
    };
    let settings = InstallSettings {
        failed_tests: config.failed_tests,
        data: config.data.clone(),
        doors: open_doors(config, mode),
    };
    let file = WatchedRuleFile::open(path, settings, Arc::clone(limiter))?;
    metrics.0.register(Arc::new(RuleMetrics::new(file.status())));
    let path = path.display();
    let summary = match file.status().borrow().error {
        Some(_) => format!("{path} cannot be used; the last good rules are in force (watched)"),
        None => format!("{path} (watched)"),
    };
    let watcher = file.follow().map_err(CommandError::Thread)?;
    Ok(StartRules { summary, reloads: Some(ReloadTarget::Files("rules", watcher)) })
}
