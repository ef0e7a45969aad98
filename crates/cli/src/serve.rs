//! `tollgate serve`: the composition root.

use crate::Failure;
use crate::config::{Config, ServeArgs, Store};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tollgate_control::RuleFile;
use tollgate_core::rules;
use tollgate_http::ServeOptions;
use tollgate_limiter::{Clock, Limiter, MemoryStore, NodeAddress, RedisStore};
use tollgate_server::{Door, Readiness};
use tracing_subscriber::EnvFilter;

const EXAMPLE: &str = include_str!("../../../examples/rules/quickstart.yaml");
const TIDY_EVERY: Duration = Duration::from_millis(100);
/// A warning that goes on is repeated every ten seconds.
const SAY_EVERY_TICKS: u32 = 100;

/// Runs until it is told to stop.
pub fn run(args: ServeArgs) -> Result<ExitCode, Failure> {
    let config = Config::load(args)?;
    start_logging()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::plain(format!("cannot start: {error}")))?;
    runtime.block_on(serve(config))
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

async fn serve(config: Config) -> Result<ExitCode, Failure> {
    let (limiter, redis) = open_limiter(&config).await?;
    let readiness = Arc::new(Readiness::default());
    let rules = install_rules(&config, &limiter)?;
    readiness.rules_installed();

    let listener = TcpListener::bind(config.listen).await.map_err(|error| {
        Failure::plain(format!(
            "cannot listen on {}: {error}\n  hint: choose another address with --listen",
            config.listen
        ))
    })?;
    let address = listener.local_addr().map_err(|error| Failure::plain(error.to_string()))?;
    greet(&config, address);

    let following = rules.map(|file| tokio::spawn(file.follow()));
    let tidying = tokio::spawn(tidy(Arc::clone(&limiter)));
    let door = Arc::new(Door { limiter, headers: config.headers, readiness });
    let cut = tollgate_server::run(listener, door, told_to_stop(), ServeOptions::default()).await;
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
fn greet(config: &Config, address: std::net::SocketAddr) {
    println!("tollgate {}", env!("CARGO_PKG_VERSION"));
    match &config.rules {
        Some(path) => println!("  rules   {} (watched)", path.display()),
        None => println!(
            "  rules   built-in example: 5 requests, then one every 2 s, for each key (--rules FILE for yours)"
        ),
    }
    match &config.store {
        Store::Memory => println!("  store   memory, at most {} MB", config.store_memory >> 20),
        Store::Redis(store) => println!("  store   {}", store.url),
    }
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
    println!("Ctrl-C stops it.");
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
