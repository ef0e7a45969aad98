//! `tollgate rules …`: checks, tests and explains rule files without a server, and publishes them to a control plane.

mod import;
mod published;

use crate::command_error::CommandError;
use crate::config::{ServeConfig, WrittenSettings};
use crate::output;
use crate::serve::{ServeMode, open_doors};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, Subcommand};
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tollgate_core::path;
use tollgate_core::request::{Method, NamedIdentity, PerIdentity, Request};
use tollgate_core::rules::{self, LoadedRules, OpenDoor};
use tollgate_limiter::{Clock, file};

#[derive(Subcommand)]
pub enum RulesCommand {
    /// Check rule files, and show all of their errors
    Check {
        /// Rule files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Settings file of the server that will use them: adds warnings about features that its doors do not support
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Run the tests in rule files, on a virtual clock
    Test {
        /// Rule files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Show which rules apply to a request, which do not and why, and what is left
    Explain(Box<ExplainArgs>),
    /// Print the JSON Schema of rule files, for editors
    Schema,
    /// Print the limits of another rate limiter as a rule file. What has no equivalent is a warning on standard error
    #[command(subcommand)]
    Import(import::ImportCommand),
    /// Publish a rule file to a control plane. Exits with 3 if another revision was published meanwhile, with 4 if the
    /// rules are refused
    Publish(Box<published::PublishArgs>),
    /// Get the rules of a control plane
    Pull(Box<published::PullArgs>),
    /// Compare a rule file, or an old revision, with the rules of a control plane
    Diff(Box<published::DiffArgs>),
    /// List the revisions of the rules, the newest first
    History(Box<published::HistoryArgs>),
    /// Publish the rules of an old revision again
    Rollback(Box<published::RollbackArgs>),
}

#[derive(Args)]
pub struct ExplainArgs {
    /// Rule file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    identities: IdentityFlags,
    /// Client address
    #[arg(long)]
    ip: Option<IpAddr>,
    /// Tier, if the caller states it
    #[arg(long)]
    tier: Option<String>,
    /// Custom identity; may be repeated
    #[arg(long = "id", value_name = "NAME=VALUE", value_parser = name_and_value)]
    ids: Vec<(String, String)>,
    /// Envoy domain
    #[arg(long)]
    domain: Option<String>,
    /// Path
    #[arg(long, default_value = "/")]
    endpoint: String,
    /// HTTP method
    #[arg(long, default_value = "GET")]
    method: String,
    /// Cost of the request
    #[arg(long, default_value_t = 1)]
    cost: u64,
}

/// A flag for each kind of identity: `--key`, `--user` and so on.
struct IdentityFlags(PerIdentity<Option<String>>);

impl Args for IdentityFlags {
    fn augment_args(command: Command) -> Command {
        let flag = |kind: NamedIdentity| {
            let field = kind.request_field();
            Arg::new(field).long(field).value_name("VALUE").help(kind.label())
        };
        command.args(NamedIdentity::ALL.map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for IdentityFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(PerIdentity::from_fn(|kind| matches.get_one::<String>(kind.request_field()).cloned())))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it like invoice=EU-17")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Runs one of the commands.
pub fn run(command: RulesCommand) -> Result<ExitCode, CommandError> {
    match command {
        RulesCommand::Check { files, config } => {
            let doors = config.map_or_else(|| Ok(Vec::new()), doors_of)?;
            for_each_file(&files, &doors, check)
        }
        RulesCommand::Test { files } => for_each_file(&files, &[], test),
        RulesCommand::Explain(args) => explain(&args),
        RulesCommand::Schema => {
            let schema = serde_json::to_string_pretty(&rules::schema())?;
            output::print(format_args!("{schema}\n"))?;
            Ok(ExitCode::SUCCESS)
        }
        RulesCommand::Import(command) => import::run(&command),
        RulesCommand::Publish(args) => published::publish(&args),
        RulesCommand::Pull(args) => published::pull(&args),
        RulesCommand::Diff(args) => published::show_diff(&args),
        RulesCommand::History(args) => published::history(&args),
        RulesCommand::Rollback(args) => published::rollback(&args),
    }
}

/// The result of a command for one file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RuleFileVerdict {
    Passed,
    Failed,
}

/// Runs `command` for all files, also after errors, and fails if one of them fails.
fn for_each_file(
    files: &[PathBuf],
    doors: &[OpenDoor],
    command: fn(&Path, &LoadedRules) -> Result<RuleFileVerdict, CommandError>,
) -> Result<ExitCode, CommandError> {
    let mut code = ExitCode::SUCCESS;
    for file in files {
        let verdict = match load_for(file, doors) {
            Ok(loaded) => command(file, &loaded)?,
            Err(error) => {
                output::print_error(error.message());
                RuleFileVerdict::Failed
            }
        };
        if verdict == RuleFileVerdict::Failed {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

/// The doors that `serve` opens with this settings file.
fn doors_of(config: PathBuf) -> Result<Vec<OpenDoor>, CommandError> {
    let config = ServeConfig::load(WrittenSettings::in_file(config), ServeMode::AllDoors)?;
    Ok(open_doors(&config, ServeMode::AllDoors))
}

pub fn load(file: &Path) -> Result<LoadedRules, CommandError> {
    load_for(file, &[])
}

fn load_for(file: &Path, doors: &[OpenDoor]) -> Result<LoadedRules, CommandError> {
    let name = file.display().to_string();
    let text = read(file)?;
    let loaded = rules::load_for(&name, &text, doors)?;
    if !loaded.warnings.is_empty() {
        output::print_error(&loaded.warnings);
    }
    Ok(loaded)
}

fn read(file: &Path) -> Result<String, CommandError> {
    // Unlike a server, a command also reads pipes.
    let text = File::open(file).and_then(|source| file::read_stream(source, file::MOST_BYTES));
    let text = text.and_then(file::text);
    text.map_err(|error| CommandError::Read { path: file.display().to_string(), error })
}

fn check(file: &Path, loaded: &LoadedRules) -> Result<RuleFileVerdict, CommandError> {
    let (rules, tests) = (counted(loaded.rules.rules().len(), "rule"), counted(loaded.tests.len(), "test"));
    output::print(format_args!("{}: {rules}, {tests}, no errors\n", file.display()))?;
    Ok(RuleFileVerdict::Passed)
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn test(file: &Path, loaded: &LoadedRules) -> Result<RuleFileVerdict, CommandError> {
    let (results, file) = (rules::run_tests(loaded), file.display());
    let mut lines = String::new();
    for result in &results {
        let mark = if result.failures.is_empty() { "ok  " } else { "FAIL" };
        lines += &format!("{mark} {}  ({} requests)\n", result.name, result.requests);
        for (step, difference) in &result.failures {
            lines += &format!("       {file}:{}: step {step}, {difference}\n", result.line);
        }
    }
    let failed = results.iter().filter(|result| !result.failures.is_empty()).count();
    output::print(format_args!("{lines}{file}: {} passed, {failed} failed\n", results.len() - failed))?;
    Ok(if failed == 0 { RuleFileVerdict::Passed } else { RuleFileVerdict::Failed })
}

fn explain(args: &ExplainArgs) -> Result<ExitCode, CommandError> {
    let loaded = load(&args.file)?;
    let ids: Vec<(&str, &str)> =
        args.ids.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let endpoint = path::endpoint(&args.endpoint)?;
    let mut named = Request::default();
    for (kind, value) in args.identities.0.iter() {
        *named.named_mut(kind) = value.as_deref();
    }
    let request = Request {
        ip: args.ip,
        tier: args.tier.as_deref(),
        ids: &ids,
        domain: args.domain.as_deref(),
        endpoint: &endpoint,
        method: Some(Method::from_name(&args.method)),
        cost: args.cost,
        priority: None,
        ..named
    };
    let explanation = rules::explain(&loaded, &request, Clock::system().now());
    output::print(format_args!("{explanation}\n"))?;
    Ok(ExitCode::SUCCESS)
}
