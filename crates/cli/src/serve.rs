//! `tollgate serve`: the composition root.

use crate::config::{Config, ServeArgs, Store};
use crate::gateway;
use crate::greeting::{RulesInForce, StartMessage};
use crate::output;
use crate::reload::{Reloads, watch_certificate, watch_keys};
use crate::signals::{SignalMeaning, Signals};
use crate::{Failure, logging};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;
use tollgate_control::{RuleFileSettings, WatchedRuleFile};
use tollgate_core::rules::{self, OpenDoor};
use tollgate_gateway::Gateway;
use tollgate_http::RateLimitLayer;
use tollgate_limiter::{Clock, Limiter, MemoryStore};
use tollgate_listen::ServeOptions;
use tollgate_redis::{NodeAddress, RedisStore};
use tollgate_server::{HttpDoor, Readiness};

const EXAMPLE: &str = include_str!("quickstart.yaml");
const TIDY_EVERY: Duration = Duration::from_millis(100);
/// Watched files are looked at every second. When they were not for so long, that is an error.
const STUCK_AFTER: Duration = Duration::from_secs(10);
/// A warning that goes on is repeated every ten seconds.
const SAY_EVERY_TICKS: u32 = 100;

/// Which doors are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doors {
    /// Those that have an address.
    All,
    /// Only the gateway.
    GatewayAlone,
}

/// Runs until it is told to stop.
pub fn run(args: ServeArgs, doors: Doors) -> Result<ExitCode, Failure> {
    let config = Config::load(args, doors)?;
    if doors == Doors::GatewayAlone && config.gateway.is_none() {
        let message = "a gateway needs an upstream: --upstream http://127.0.0.1:3000";
        return Err(Failure::plain(message));
    }
    let log = logging::start()?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::plain(format!("cannot start: {error}")))?;
    let outcome = runtime.block_on(serve(config, doors));
    // A disk that hangs keeps its threads, but not the process.
    runtime.shutdown_background();
    log.flush();
    outcome
}

async fn serve(config: Config, doors: Doors) -> Result<ExitCode, Failure> {
    let mut signals = Signals::listen()?;
    // Files are read and names are looked up, which may hang: in a thread that is not waited for.
    let runtime = Handle::current();
    let starting = tokio::task::spawn_blocking(move || runtime.block_on(OpenNode::start(config, doors)));
    let node = tokio::select! {
        started = starting => started.map_err(|error| Failure::plain(format!("cannot start: {error}")))??,
        () = signals.stop() => {
            tracing::info!("stopped before it served");
            return Ok(ExitCode::SUCCESS);
        }
    };
    node.run(signals).await
}

/// A node that serves, with its listeners open.
struct OpenNode {
    limiter: Arc<Limiter>,
    redis: Option<RedisStore>,
    door: HttpDoor,
    listener: Option<TcpListener>,
    gateway: Option<Gateway>,
    reloads: Reloads,
}

impl OpenNode {
    async fn start(config: Config, doors: Doors) -> Result<Self, Failure> {
        let (limiter, redis) = open_limiter(&config, doors).await?;
        let readiness = Arc::new(Readiness::default());
        let rules = install_rules(&config, open_doors(&config, doors), &limiter)?;
        let in_force = rules_in_force(rules.as_ref());
        readiness.set_rules_installed();

        let listener = match doors {
            Doors::All => Some(listen(config.listen).await?),
            Doors::GatewayAlone => None,
        };
        let limits = RateLimitLayer::new(Arc::clone(&limiter))
            .identities(Arc::clone(&config.identities))
            .headers(config.headers);
        let start = |gateway| gateway::start(gateway, &config.identities, &limits);
        let gateway = config.gateway.as_ref().map(start).transpose()?;
        let (reloads, gateway) = watch_files(&config, rules, gateway)
            .map_err(|error| Failure::plain(format!("cannot start a thread: {error}")))?;
        let greeting = StartMessage {
            config: &config,
            checks: listener.as_ref().and_then(|listener| listener.local_addr().ok()),
            gateway: gateway.as_ref().map(Gateway::address),
            rules: in_force,
        };
        if let Err(error) = output::try_print(greeting) {
            tracing::warn!(%error, "the greeting cannot be written to standard output");
        }
        let door = HttpDoor { limiter: Arc::clone(&limiter), headers: config.headers, readiness };
        Ok(Self { limiter, redis, door, listener, gateway, reloads })
    }

    /// Serves until it is told to stop and everything in flight is answered, or told a second time.
    async fn run(self, mut signals: Signals) -> Result<ExitCode, Failure> {
        let Self { limiter, redis, door, listener, gateway, reloads } = self;
        let tidying = tokio::spawn(tidy(limiter));
        let (stop, stopped) = watch::channel(false);
        // A sender that is gone says stop, too.
        let shutdown =
            |mut stopped: watch::Receiver<bool>| async move { drop(stopped.wait_for(|stop| *stop).await) };
        let checks = async {
            let Some(listener) = listener else { return 0 };
            let shutdown = shutdown(stopped.clone());
            tollgate_server::serve_http(listener, Arc::new(door), shutdown, ServeOptions::default()).await
        };
        let forwarding = async {
            shutdown(stopped.clone()).await;
            match gateway {
                Some(gateway) => gateway.stop().await,
                None => 0,
            }
        };
        let mut serving = pin!(async {
            let (cut_checks, cut_forwards) = tokio::join!(checks, forwarding);
            if let Some(redis) = redis {
                redis.close().await;
            }
            cut_checks + cut_forwards
        });
        let mut looks = tokio::time::interval_at(Instant::now() + STUCK_AFTER, STUCK_AFTER);
        let cut = loop {
            tokio::select! {
                cut = &mut serving => break cut,
                _ = looks.tick() => reloads.report_stuck(),
                told = signals.next() => match told {
                    SignalMeaning::Reload => reloads.reload(),
                    SignalMeaning::Reopen => reloads.reopen_logs(),
                    SignalMeaning::Stop(number) => {
                        if stop.send_replace(true) {
                            tracing::warn!("stopped at once by a second signal; requests in flight were cut");
                            return Ok(ExitCode::from(128 + number));
                        }
                        tracing::info!("stopping: requests in flight are finished first; a second signal cuts them");
                    }
                }
            }
        };
        tidying.abort();
        match cut {
            0 => tracing::info!("stopped; every request was answered"),
            cut => {
                tracing::warn!(connections = cut, "stopped; some connections were still busy and were cut")
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        Failure::plain(format!(
            "cannot listen on {address}: {error}\n  hint: choose another address with --listen"
        ))
    })
}

/// The limiter on its store.
async fn open_limiter(config: &Config, doors: Doors) -> Result<(Arc<Limiter>, Option<RedisStore>), Failure> {
    let clock = Clock::system();
    let limiter = Limiter::new(MemoryStore::new(config.store_memory), clock.clone()).watching(config.abuse);
    match &config.store {
        Store::Memory => Ok((Arc::new(limiter), None)),
        Store::Redis(store) => {
            let mut settings = store.settings.clone();
            let address = match (doors, &config.gateway) {
                (Doors::GatewayAlone, Some(gateway)) => gateway.listen,
                _ => config.listen,
            };
            settings.node = NodeAddress(address.to_string());
            let redis = RedisStore::open(&store.url, settings, clock)
                .await
                .map_err(|error| Failure::plain(error.to_string()))?;
            Ok((Arc::new(limiter.sharing(redis.shared_store(), store.failure)), Some(redis)))
        }
    }
}

/// The doors that requests come through.
pub fn open_doors(config: &Config, doors: Doors) -> Vec<OpenDoor> {
    let checks = (doors == Doors::All).then(tollgate_server::describe_door);
    let gateway = config.gateway.as_ref().map(|_| tollgate_gateway::describe_door(&config.identities));
    checks.into_iter().chain(gateway).collect()
}

/// The rule file's rules, or the example's if there is none.
fn install_rules(
    config: &Config,
    doors: Vec<OpenDoor>,
    limiter: &Arc<Limiter>,
) -> Result<Option<WatchedRuleFile>, Failure> {
    match &config.rules {
        Some(path) => {
            let settings = RuleFileSettings {
                path: path.clone(),
                failed_tests: config.failed_tests,
                data: config.data.clone(),
                doors,
            };
            Ok(Some(WatchedRuleFile::open(settings, Arc::clone(limiter))?))
        }
        None => {
            let loaded = rules::load("the built-in example", EXAMPLE)?;
            limiter.install(loaded.rules, loaded.lists);
            Ok(None)
        }
    }
}

fn rules_in_force(file: Option<&WatchedRuleFile>) -> RulesInForce {
    match file {
        None => RulesInForce::Example,
        Some(file) if file.status().borrow().error.is_some() => RulesInForce::LastGood,
        Some(_) => RulesInForce::File,
    }
}

/// Watches the rule file, and what the gateway has been given as files.
fn watch_files(
    config: &Config,
    rules: Option<WatchedRuleFile>,
    gateway: Option<gateway::Started>,
) -> io::Result<(Reloads, Option<Gateway>)> {
    let mut reloads =
        Reloads { rules: rules.map(WatchedRuleFile::follow).transpose()?, ..Reloads::default() };
    let Some(gateway::Started { gateway, certificate, access_log }) = gateway else {
        return Ok((reloads, None));
    };
    let identities = &config.identities;
    let keys = identities.key_file().map(Path::to_owned);
    reloads.keys = keys.map(|file| watch_keys(Arc::clone(identities), file)).transpose()?;
    reloads.certificate = certificate.map(watch_certificate).transpose()?;
    reloads.access_log = access_log;
    Ok((reloads, Some(gateway)))
}

/// Housekeeping of the embedded store; says when its memory is used up, and again while that lasts.
async fn tidy(limiter: Arc<Limiter>) {
    let mut every = tokio::time::interval(TIDY_EVERY);
    let mut said = 0;
    let mut quiet_ticks = 0;
    loop {
        every.tick().await;
        limiter.tidy();
        let crowded = limiter.store().crowded();
        if crowded > said && quiet_ticks == 0 {
            tracing::warn!(
                checks = crowded - said,
                "the store's memory is used up: new keys share a limit with their neighbours (--store-memory)"
            );
            said = crowded;
            quiet_ticks = SAY_EVERY_TICKS;
        }
        quiet_ticks = u32::saturating_sub(quiet_ticks, 1);
    }
}
