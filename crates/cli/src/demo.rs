//! `tollgate demo`: a gateway, a sample upstream and changing traffic in one process, with the admin page, to see limits at
//! work.
//!
//! Everything listens on loopback addresses, and everything that is written is in a temporary folder, which is removed at
//! the end.

mod clients;
mod upstream;

use crate::command_error::CommandError;
use crate::config::WrittenSettings;
use crate::{output, serve};
use clap::Args;
use std::fmt::{self, Display, Formatter};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tollgate_core::rate::{duration_text, parse_duration_us};

const RULES: &str = include_str!("demo/rules.yaml");
/// The ports that are used if they are free.
const ADMIN_PORT: u16 = 9090;
const GATEWAY_PORT: u16 = 8000;
/// A demo ends by itself.
const LONGEST_US: u64 = 24 * 3_600_000_000;
/// How long the node may take to start before the message is printed without the token.
const START_PATIENCE: Duration = Duration::from_secs(10);
const START_PAUSE: Duration = Duration::from_millis(50);

/// The arguments of `tollgate demo`.
#[derive(Args)]
pub struct DemoArgs {
    /// Stop after this time
    #[arg(long = "for", value_name = "DURATION", default_value = "10m")]
    stop_after: String,
}

/// Runs the demo until its time is over or a signal stops it.
pub fn run(args: &DemoArgs) -> Result<ExitCode, CommandError> {
    let stop_after = demo_duration(&args.stop_after)?;
    let folder = tempfile::Builder::new().prefix("tollgate-demo-").tempdir().map_err(CommandError::Folder)?;
    let admin = free_address(ADMIN_PORT).map_err(CommandError::Thread)?;
    let gateway = free_address(GATEWAY_PORT).map_err(CommandError::Thread)?;
    let runtime = companions().map_err(CommandError::Thread)?;
    let upstream = runtime.block_on(upstream::start()).map_err(CommandError::Thread)?;
    let settings = write_settings(&folder, admin, gateway, upstream).map_err(CommandError::Folder)?;
    let token_file = folder.path().join("data/operate.token");
    runtime.spawn(async move {
        wait_for(gateway).await;
        let token = read_token(&token_file).await;
        let message = DemoMessage { admin, gateway, token, token_file, stop_after };
        if let Err(error) = output::try_print(message) {
            tracing::warn!(%error, "message of the demo cannot be written to standard output");
        }
        clients::run_all(gateway).await;
    });
    let outcome =
        serve::run_until(WrittenSettings::of_file(settings), serve::ServeMode::GatewayOnly, Some(stop_after));
    runtime.shutdown_background();
    outcome
}

/// A runtime for the upstream and the clients.
fn companions() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("demo").enable_all().build()
}

fn demo_duration(text: &str) -> Result<Duration, CommandError> {
    let us = parse_duration_us(text).map_err(|error| CommandError::DemoDuration(error.to_string()))?;
    if us == 0 || us > LONGEST_US {
        let problem = format!("it must be between 1us and {}", duration_text(LONGEST_US));
        return Err(CommandError::DemoDuration(problem));
    }
    Ok(Duration::from_micros(us))
}

/// The loopback address with this port, or with another one if it is taken.
fn free_address(port: u16) -> io::Result<SocketAddr> {
    let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    bind(port).or_else(|_| bind(0))?.local_addr()
}

/// Writes the settings and the rules of the node, and returns the path of the settings.
fn write_settings(
    folder: &TempDir,
    admin: SocketAddr,
    gateway: SocketAddr,
    upstream: SocketAddr,
) -> io::Result<PathBuf> {
    let (rules, data) = (folder.path().join("rules.yaml"), folder.path().join("data"));
    std::fs::create_dir(&data)?;
    std::fs::write(&rules, RULES)?;
    // Paths are quoted as JSON, which YAML reads. The clients of the demo say in a header which address they have.
    let settings = format!(
        "rules: {}\ndata: {}\nadmin_listen: {admin}\ngateway_listen: {gateway}\nupstream: http://{upstream}\n\
         identity: {{ client_ip: {{ trusted: [127.0.0.0/8] }} }}\n",
        serde_json::Value::from(rules.display().to_string()),
        serde_json::Value::from(data.display().to_string()),
    );
    let path = folder.path().join("tollgate.yaml");
    std::fs::write(&path, settings)?;
    Ok(path)
}

/// Waits until the address accepts connections, but not for ever.
async fn wait_for(address: SocketAddr) {
    let connecting = async {
        while tokio::net::TcpStream::connect(address).await.is_err() {
            tokio::time::sleep(START_PAUSE).await;
        }
    };
    let _ = tokio::time::timeout(START_PATIENCE, connecting).await;
}

/// The token with which the page can be opened, once the node has written it.
async fn read_token(path: &Path) -> Option<String> {
    let reading = async {
        loop {
            match tokio::fs::read_to_string(path).await {
                Ok(token) if !token.trim().is_empty() => return token.trim().to_owned(),
                _ => tokio::time::sleep(START_PAUSE).await,
            }
        }
    };
    tokio::time::timeout(START_PATIENCE, reading).await.ok()
}

/// What to look at and to try.
struct DemoMessage {
    admin: SocketAddr,
    gateway: SocketAddr,
    token: Option<String>,
    token_file: PathBuf,
    stop_after: Duration,
}

impl Display for DemoMessage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { admin, gateway, token, token_file, stop_after } = self;
        writeln!(f, "\nThe demo runs: clients of several plans send requests through the gateway.\n")?;
        writeln!(f, "  Open the page      http://{admin}/")?;
        match token {
            Some(token) => writeln!(f, "  with the token     {token}")?,
            None => writeln!(f, "  with the token in  {}", token_file.display())?,
        }
        writeln!(
            f,
            "  In a terminal      tollgate top --to http://{admin} --token-file {}",
            token_file.display()
        )?;
        writeln!(f, "  Be a client        curl -i http://{gateway}/v1/search -H 'X-Api-Key: sk_free_you'")?;
        writeln!(
            f,
            "  Be limited         for i in $(seq 30); do curl -s -o /dev/null -w '%{{http_code}} ' http://{gateway}/login; done"
        )?;
        writeln!(f, "  Change a limit     in the page, under Rules: raise `login`, and publish")?;
        let stop_after = duration_text(stop_after.as_micros() as u64);
        writeln!(f, "\nIt ends by itself after {stop_after}; Ctrl-C ends it at once.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_are_good_and_pass_their_tests() {
        let loaded =
            tollgate_core::rules::load("demo/rules.yaml", RULES).unwrap_or_else(|error| panic!("{error}"));
        assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
        let results = tollgate_core::rules::run_tests(&loaded);
        assert!(results.len() == 2 && results.iter().all(|result| result.failures.is_empty()), "{results:?}");
    }

    #[test]
    fn a_port_that_is_taken_is_replaced() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let found = free_address(port).unwrap();
        assert_ne!(found.port(), port);
    }

    #[test]
    fn durations_are_checked() {
        assert_eq!(demo_duration("3s").unwrap(), Duration::from_secs(3));
        for wrong in ["0", "soon", "30days"] {
            assert!(demo_duration(wrong).is_err(), "{wrong}");
        }
    }
}
