//! The `tollgate` binary: reads what it is asked, puts the parts together, and nothing else.

mod config;
mod gateway;
mod rules;
mod serve;
mod simulate;

use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tollgate_core::problem::shown;

/// A gateway allocates a dozen times for each request, and many requests are under way at a time: with the system's
/// allocator it takes some 6 % more processor time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A distributed rate limiter: decides for every request whether it may pass now, and if not, when.
#[derive(Parser)]
#[command(name = "tollgate", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Answers checks. Without arguments: example rules, the embedded store, on 127.0.0.1:8080.
    Serve(config::ServeArgs),
    /// Stands in front of upstreams, and nothing else: `serve` with the gateway alone.
    Gateway(config::ServeArgs),
    /// Checks, tests and explains rule files.
    #[command(subcommand)]
    Rules(rules::RulesCommand),
    /// Runs a whole fleet on virtual time and says what it would do to Redis.
    Simulate(Box<simulate::SimulateArgs>),
}

fn main() -> ExitCode {
    let outcome = match Cli::try_parse().unwrap_or_else(|error| without_secrets(error).exit()).command {
        Command::Serve(args) => serve::run(args, serve::Doors::All),
        Command::Gateway(args) => serve::run(args, serve::Doors::GatewayAlone),
        Command::Rules(command) => rules::run(command),
        Command::Simulate(args) => simulate::run(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// An error of the command line without the words that are no flags: a store's address or an API key that lacks its
/// flag is not shown.
fn without_secrets(mut error: clap::Error) -> clap::Error {
    for kind in [ContextKind::InvalidArg, ContextKind::InvalidSubcommand] {
        let Some(ContextValue::String(word)) = error.get(kind) else { continue };
        if !word.starts_with('-') && !word.starts_with('<') {
            let hidden = ContextValue::String("***".to_owned());
            error.insert(kind, hidden);
            error.remove(ContextKind::Suggested);
        }
    }
    error
}

/// What stops a command.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("error: {}", shown(.0))]
    Plain(String),
    #[error("{0}")]
    Report(#[from] tollgate_core::problem::Report),
    #[error("{0}")]
    Load(#[from] tollgate_control::LoadError),
}

impl Failure {
    fn plain(text: impl Into<String>) -> Self {
        Self::Plain(text.into())
    }
}
