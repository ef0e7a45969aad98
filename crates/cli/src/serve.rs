//! `tollgate serve` and `tollgate gateway`: the composition root of a node.

mod gateway;
mod housekeeping;
mod logging;
mod node;
mod reload;
mod signals;
mod start_message;

use crate::command_error::CommandError;
use crate::config::{ServeArgs, ServeConfig, SettingError, StoreConfig};
use crate::output;
use node::ServingNode;
use reload::ReloadTargets;
use signals::ProcessSignals;
use start_message::{RuleOrigin, StartMessage};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tollgate_control::{RuleFileError, RuleFileSettings, WatchedRuleFile};
use tollgate_core::rules::{self, OpenDoor};
use tollgate_gateway::Gateway;
use tollgate_http::RateLimitLayer;
use tollgate_limiter::{Clock, Limiter, MemoryStore};
use tollgate_redis::{NodeAddress, RedisStore};
use tollgate_server::{HttpDoor, Readiness};

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
pub fn run(args: ServeArgs, mode: ServeMode) -> Result<ExitCode, CommandError> {
    let config = ServeConfig::load(args, mode)?;
    if mode == ServeMode::GatewayOnly && config.gateway.is_none() {
        return Err(SettingError::NoUpstream.into());
    }
    let log = logging::start()?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(CommandError::Thread)?;
    let outcome = runtime.block_on(serve(config, mode));
    // A disk that hangs blocks its threads, but not the end of the process.
    runtime.shutdown_background();
    log.flush();
    outcome
}

async fn serve(config: ServeConfig, mode: ServeMode) -> Result<ExitCode, CommandError> {
    let mut signals = ProcessSignals::listen()?;
    // The start reads files and resolves names, which may hang: it runs in a thread that is not waited for.
    let runtime = Handle::current();
    let starting = tokio::task::spawn_blocking(move || runtime.block_on(assemble(&config, mode)));
    let node = tokio::select! {
        started = starting => started.map_err(CommandError::Start)??,
        () = signals.wait_for_stop() => {
            tracing::info!("stopped before the start was complete");
            return Ok(ExitCode::SUCCESS);
        }
    };
    node.run(signals).await
}

/// Assembles a node: store, limiter, rules, check API, gateway, reloads. Its listeners are open afterwards.
async fn assemble(config: &ServeConfig, mode: ServeMode) -> Result<ServingNode, CommandError> {
    let clock = Clock::system();
    let redis = open_redis(config, mode, &clock).await?;
    let limiter = build_limiter(config, clock, redis.as_ref());

    let readiness = Arc::new(Readiness::default());
    let rule_file = load_rules(config, mode, &limiter)?;
    let rule_origin = rule_origin(rule_file.as_ref());
    readiness.set_rules_installed();

    let check_listener = match mode {
        ServeMode::AllDoors => Some(listen_for_checks(config).await?),
        ServeMode::GatewayOnly => None,
    };
    let check_address = check_listener.as_ref().and_then(|listener| listener.local_addr().ok());
    let check_api = HttpDoor { limiter: Arc::clone(&limiter), headers: config.headers, readiness };

    let layer = RateLimitLayer::new(Arc::clone(&limiter))
        .identities(Arc::clone(&config.identities))
        .headers(config.headers);
    let start_gateway = |gateway| gateway::start(gateway, &config.identities, &layer);
    let gateway = config.gateway.as_ref().map(start_gateway).transpose()?;

    let reloads = ReloadTargets::watch(&config.identities, rule_file, gateway.as_ref());
    let reloads = reloads.map_err(CommandError::Thread)?;
    let gateway = gateway.map(|started| started.gateway);

    let message = StartMessage {
        config,
        checks: check_address,
        gateway: gateway.as_ref().map(Gateway::address),
        rules: rule_origin,
    };
    if let Err(error) = output::try_print(message) {
        tracing::warn!(%error, "start message cannot be written to standard output");
    }
    Ok(ServingNode { limiter, redis, check_api, check_listener, gateway, reloads })
}

/// The doors of a node, for warnings about rules that they do not support.
pub fn open_doors(config: &ServeConfig, mode: ServeMode) -> Vec<OpenDoor> {
    let checks = (mode == ServeMode::AllDoors).then(HttpDoor::describe);
    let gateway = config.gateway.as_ref().map(|_| Gateway::describe(&config.identities));
    checks.into_iter().chain(gateway).collect()
}

async fn open_redis(
    config: &ServeConfig,
    mode: ServeMode,
    clock: &Clock,
) -> Result<Option<RedisStore>, CommandError> {
    let StoreConfig::Redis(store) = &config.store else { return Ok(None) };
    let address = match (mode, &config.gateway) {
        (ServeMode::GatewayOnly, Some(gateway)) => gateway.listen,
        _ => config.listen,
    };
    let mut settings = store.settings.clone();
    settings.node = NodeAddress(address.to_string());
    Ok(Some(RedisStore::open(&store.url, settings, clock.clone()).await?))
}

fn build_limiter(config: &ServeConfig, clock: Clock, redis: Option<&RedisStore>) -> Arc<Limiter> {
    let limiter = Limiter::new(MemoryStore::new(config.store_memory), clock).watching(config.abuse);
    Arc::new(match (&config.store, redis) {
        (StoreConfig::Redis(store), Some(redis)) => limiter.sharing(redis.shared_store(), store.failure),
        _ => limiter,
    })
}

/// Puts the rules of the rule file in force; without a file, those of the built-in example.
fn load_rules(
    config: &ServeConfig,
    mode: ServeMode,
    limiter: &Arc<Limiter>,
) -> Result<Option<WatchedRuleFile>, CommandError> {
    let Some(path) = &config.rules else {
        let loaded = rules::load("the built-in example", EXAMPLE_RULES)?;
        limiter.install(loaded.rules, loaded.lists).map_err(RuleFileError::Names)?;
        return Ok(None);
    };
    let settings = RuleFileSettings {
        path: path.clone(),
        failed_tests: config.failed_tests,
        data: config.data.clone(),
        doors: open_doors(config, mode),
    };
    Ok(Some(WatchedRuleFile::open(settings, Arc::clone(limiter))?))
}

fn rule_origin(file: Option<&WatchedRuleFile>) -> RuleOrigin {
    match file {
        None => RuleOrigin::Example,
        Some(file) if file.status().borrow().error.is_some() => RuleOrigin::LastGood,
        Some(_) => RuleOrigin::File,
    }
}

async fn listen_for_checks(config: &ServeConfig) -> Result<TcpListener, CommandError> {
    let address = config.listen;
    TcpListener::bind(address).await.map_err(|error| CommandError::Listen { address, error })
}
