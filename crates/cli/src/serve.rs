//! `tollgate serve`: the composition root.

use crate::Failure;
use crate::config::{Config, ServeArgs, Store};
use crate::gateway;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tollgate_control::RuleFile;
use tollgate_core::rules;
use tollgate_gateway::Gateway;
use tollgate_http::{RateLimitLayer, ServeOptions};
use tollgate_limiter::{Clock, Limiter, MemoryStore, NodeAddress, RedisStore};
use tollgate_server::{Door, Readiness};
use tracing_subscriber::EnvFilter;

const EXAMPLE: &str = include_str!("../../../examples/rules/quickstart.yaml");
const TIDY_EVERY: Duration = Duration::from_millis(100);
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
    let config = Config::load(args)?;
    if doors == Doors::GatewayAlone && config.gateway.is_none() {
        let message = "a gateway needs an upstream: --upstream http://127.0.0.1:3000";
        return Err(Failure::plain(message));
    }
    start_logging()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::plain(format!("cannot start: {error}")))?;
    runtime.block_on(serve(config, doors))
}

/// Logs go to stderr, in colour only if a person is watching.
fn start_logging() -> Result<(), Failure> {
    let wanted = std::env::var("TOLLGATE_LOG").unwrap_or_default();
    let filter = if wanted.is_empty() { "info" } else { &wanted };
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        Failure::plain(format!(
            "TOLLGATE_LOG is `{wanted}`: {error}\n  hint: use error, warn, info, debug or trace"
        ))
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    Ok(())
}

async fn serve(config: Config, doors: Doors) -> Result<ExitCode, Failure> {
    let (limiter, redis) = open_limiter(&config).await?;
    let readiness = Arc::new(Readiness::default());
    let rules = install_rules(&config, &limiter)?;
    readiness.rules_installed();

    let listener = match doors {
        Doors::All => Some(listen(config.listen).await?),
        Doors::GatewayAlone => None,
    };
    let limits = RateLimitLayer::new(Arc::clone(&limiter))
        .identities(Arc::clone(&config.identities))
        .headers(config.headers);
    let gateway = config
        .gateway
        .as_ref()
        .map(|gateway| gateway::start(gateway, &config.identities, &limits))
        .transpose()?;
    greet(&config, listener.as_ref(), gateway.as_ref());

    let following = rules.map(|file| tokio::spawn(file.follow()));
    let tidying = tokio::spawn(tidy(Arc::clone(&limiter)));
    let (stop, stopped) = watch::channel(false);
    let stopping = tokio::spawn(async move {
        told_to_stop().await;
        stop.send_replace(true);
    });
    // Who stops to wait for the signal was told to stop, too.
    let shutdown =
        |mut stopped: watch::Receiver<bool>| async move { drop(stopped.wait_for(|stop| *stop).await) };
    let checks = async {
        let Some(listener) = listener else { return 0 };
        let door = Arc::new(Door { limiter, headers: config.headers, readiness });
        tollgate_server::run(listener, door, shutdown(stopped.clone()), ServeOptions::default()).await
    };
    let forwarding = async {
        shutdown(stopped.clone()).await;
        match gateway {
            Some(gateway) => gateway.stop().await,
            None => 0,
        }
    };
    let (cut_checks, cut_forwards) = tokio::join!(checks, forwarding);
    let cut = cut_checks + cut_forwards;
    stopping.abort();
    tidying.abort();
    if let Some(redis) = redis {
        redis.close().await;
    }
    if let Some(following) = following {
        following.abort();
    }
    match cut {
        0 => tracing::info!("stopped; every request was answered"),
        cut => tracing::warn!(connections = cut, "stopped; some connections were still busy and were cut"),
    }
    Ok(ExitCode::SUCCESS)
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        Failure::plain(format!(
            "cannot listen on {address}: {error}\n  hint: choose another address with --listen"
        ))
    })
}

/// The limiter on its store.
async fn open_limiter(config: &Config) -> Result<(Arc<Limiter>, Option<RedisStore>), Failure> {
    let clock = Clock::system();
    let limiter = Limiter::new(MemoryStore::new(config.store_memory), clock.clone()).watching(config.abuse);
    match &config.store {
        Store::Memory => Ok((Arc::new(limiter), None)),
        Store::Redis(store) => {
            let mut settings = store.settings.clone();
            settings.node = NodeAddress(config.listen.to_string());
            let redis = RedisStore::open(&store.url, settings, clock)
                .await
                .map_err(|error| Failure::plain(error.to_string()))?;
            Ok((Arc::new(limiter.sharing(&redis, store.failure)), Some(redis)))
        }
    }
}

/// The rule file's rules, or the example's if there is none.
fn install_rules(config: &Config, limiter: &Arc<Limiter>) -> Result<Option<RuleFile>, Failure> {
    match &config.rules {
        Some(path) => Ok(Some(RuleFile::open(path, Arc::clone(limiter))?)),
        None => {
            let loaded = rules::load("the built-in example", EXAMPLE)?;
            limiter.install(loaded.rules, loaded.lists);
            Ok(None)
        }
    }
}

/// Says what runs where, and how to see it work.
fn greet(config: &Config, checks: Option<&TcpListener>, gateway: Option<&Gateway>) {
    println!("tollgate {}", env!("CARGO_PKG_VERSION"));
    match &config.rules {
        Some(path) => println!("  rules   {} (watched)", path.display()),
        None => println!(
            "  rules   built-in example: 5 requests, then one every 2 s, for each key (--rules FILE for yours)"
        ),
    }
    match &config.store {
        Store::Memory => println!("  store   memory, at most {} MB", config.store_memory >> 20),
        Store::Redis(store) => {
            println!("  store   {}", store.url);
            if let Some(folder) = &store.settings.data {
                println!("  data    {}", folder.display());
            }
        }
    }
    if let Some(address) = checks.and_then(|listener| listener.local_addr().ok()) {
        greet_checks(config, address);
    }
    if let (Some(gateway), Some(config)) = (gateway, &config.gateway) {
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        let addresses = config.settings.upstreams.iter().flat_map(|upstream| &upstream.addresses);
        let addresses: Vec<String> = addresses.map(ToString::to_string).collect();
        println!("  gateway {scheme}://{}/ to {}", gateway.address(), addresses.join(", "));
    }
    println!("Ctrl-C stops it.");
}

fn greet_checks(config: &Config, address: SocketAddr) {
    println!("  checks  http://{address}/v1/check");
    if !address.ip().is_loopback() {
        println!("  note    anybody who can reach this address can spend anybody's limit; keep it inside");
    }
    if config.rules.is_none() {
        println!(
            "\nTry it; after five answers of 200 comes a 429:\n\n  \
             for i in 1 2 3 4 5 6 7; do curl -s -o /dev/null -w '%{{http_code}}\\n' http://{address}/v1/check \
             -d '{{\"key\":\"alice\",\"endpoint\":\"/hello\"}}'; done\n"
        );
    }
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

async fn told_to_stop() {
    let terminate = async {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => {
                terminate.recv().await;
            }
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminate => {}
    }
    tracing::info!("stopping: requests in flight are finished first");
}
