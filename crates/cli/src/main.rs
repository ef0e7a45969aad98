//! The `tollgate` binary: reads what it is asked, puts the parts together, and nothing else.

mod config;
mod gateway;
mod greeting;
mod logging;
mod output;
mod reload;
mod rules;
mod serve;
mod signals;
mod simulate;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use output::complain;
use std::io;
use std::process::ExitCode;
use tollgate_core::diagnostic::sanitized;

/// A gateway allocates a dozen times for each request, and many requests are under way at a time: with the system's
/// allocator it takes some 6 % more processor time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// As a shell tells of a program that a closed pipe has ended: 128 and the number of the signal.
const CLOSED_PIPE: u8 = 128 + 13;

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
    let outcome = match parse() {
        Ok(command) => run(command),
        Err(error) => show(&without_secrets(error)),
    };
    match outcome {
        Ok(code) => code,
        // Whatever reads the output has seen enough.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => CLOSED_PIPE.into(),
        Err(error) => {
            complain(error);
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Serve(args) => serve::run(args, serve::Doors::All),
        Command::Gateway(args) => serve::run(args, serve::Doors::GatewayAlone),
        Command::Rules(command) => rules::run(command),
        Command::Simulate(args) => simulate::run(&args),
    }
}

fn parse() -> Result<Command, clap::Error> {
    let matches = Cli::command().try_get_matches()?;
    let mut command = Cli::from_arg_matches(&matches)?.command;
    if let (Command::Serve(args) | Command::Gateway(args), Some((_, matches))) =
        (&mut command, matches.subcommand())
    {
        args.note_origins(matches);
    }
    Ok(command)
}

/// Shows the help or the version, which are asked for, or what is wrong with the command line.
fn show(error: &clap::Error) -> Result<ExitCode, Failure> {
    if error.use_stderr() {
        // There is no place to complain about that.
        let _ = error.print();
        return Ok(ExitCode::from(2));
    }
    let printed = error.print().and_then(|()| io::Write::flush(&mut io::stdout()));
    printed.map_err(Failure::Output).map(|()| ExitCode::SUCCESS)
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
    #[error("error: {}", sanitized(.0))]
    Plain(String),
    #[error("error: cannot write to standard output: {0}")]
    Output(io::Error),
    #[error("{0}")]
    Report(#[from] tollgate_core::diagnostic::DiagnosticReport),
    #[error("{0}")]
    Load(#[from] tollgate_control::RuleFileError),
}

impl Failure {
    fn plain(text: impl Into<String>) -> Self {
        Self::Plain(text.into())
    }
}
