//! The command line: parsing, help, and errors without secrets.

use crate::{config, rules, simulate, token};
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// A distributed rate limiter: decides for every request whether it may pass now, and if not, when
#[derive(Parser)]
#[command(name = "tollgate", version, arg_required_else_help = true)]
struct CommandLine {
    #[command(subcommand)]
    command: TollgateCommand,
}

/// A command and its arguments.
#[derive(Subcommand)]
pub enum TollgateCommand {
    /// Run a node: the check API, and a gateway if there is an upstream. Without arguments: example rules, on
    /// 127.0.0.1:8080
    #[command(after_help = LOG_HELP)]
    Serve(config::WrittenSettings),
    /// Run a node with the gateway only: a reverse proxy that limits requests
    #[command(after_help = LOG_HELP)]
    Gateway(config::WrittenSettings),
    /// Check, test and explain rule files; publish them to a control plane
    #[command(subcommand)]
    Rules(rules::RulesCommand),
    /// Create, list and revoke access tokens of a control plane
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Simulate a fleet on virtual time, and show its load on Redis
    Simulate(Box<simulate::SimulateArgs>),
}

const LOG_HELP: &str = "\
Environment:
  TOLLGATE_LOG  Log level on standard error: error, warn, info, debug or trace, also by module, such as
                warn,tollgate_control=debug [default: info]";

/// Parses the command line and the environment.
pub fn parse() -> Result<TollgateCommand, clap::Error> {
    let matches = CommandLine::command().try_get_matches().map_err(without_secrets)?;
    let mut command = CommandLine::from_arg_matches(&matches).map_err(without_secrets)?.command;
    if let (TollgateCommand::Serve(args) | TollgateCommand::Gateway(args), Some((_, matches))) =
        (&mut command, matches.subcommand())
    {
        args.record_environment(matches);
    }
    Ok(command)
}

/// Hides the words of an error that are not flags: a store URL or an API key may have been given without its flag.
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
