//! `tollgate rules …`: looks at rule files without a server.

use crate::config::{Config, ServeArgs};
use crate::serve::{Doors, open_doors};
use crate::{Failure, output};
use clap::{Args, Subcommand};
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tollgate_core::path;
use tollgate_core::request::{Method, Request};
use tollgate_core::rules::{self, LoadedRules, OpenDoor};
use tollgate_limiter::{Clock, file};

#[derive(Subcommand)]
pub enum RulesCommand {
    /// Says everything that is wrong with rule files.
    Check {
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// The settings of the server that is to use them: warns of what its doors cannot do
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// Runs the tests that stand beside the rules, on a virtual clock.
    Test {
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Says which rules meet a request, which do not and why, and what would let it pass.
    Explain(Box<ExplainArgs>),
    /// Prints the JSON Schema of rule files, for editors.
    Schema,
}

#[derive(Args)]
pub struct ExplainArgs {
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The API key
    #[arg(long)]
    key: Option<String>,
    /// The user
    #[arg(long)]
    user: Option<String>,
    /// The tenant
    #[arg(long)]
    tenant: Option<String>,
    /// The client's address
    #[arg(long)]
    ip: Option<IpAddr>,
    /// The tier, if the caller knows it
    #[arg(long)]
    tier: Option<String>,
    /// A custom identity; may be repeated
    #[arg(long = "id", value_name = "NAME=VALUE", value_parser = name_and_value)]
    ids: Vec<(String, String)>,
    /// The Envoy domain
    #[arg(long)]
    domain: Option<String>,
    /// The path
    #[arg(long, default_value = "/")]
    endpoint: String,
    /// The HTTP method
    #[arg(long, default_value = "GET")]
    method: String,
    /// What the request costs
    #[arg(long, default_value_t = 1)]
    cost: u64,
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it like invoice=EU-17")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Runs one of them.
pub fn run(command: RulesCommand) -> Result<ExitCode, Failure> {
    match command {
        RulesCommand::Check { files, config } => {
            let doors = config.map_or_else(|| Ok(Vec::new()), doors_of)?;
            for_each_file(&files, &doors, check)
        }
        RulesCommand::Test { files } => for_each_file(&files, &[], test),
        RulesCommand::Explain(args) => explain(&args),
        RulesCommand::Schema => {
            let schema = serde_json::to_string_pretty(&rules::schema());
            let schema = schema.map_err(|error| Failure::plain(error.to_string()))?;
            output::print(format_args!("{schema}\n"))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Does all of them, and fails if one did.
fn for_each_file(
    files: &[PathBuf],
    doors: &[OpenDoor],
    what: fn(&Path, &LoadedRules) -> Result<bool, Failure>,
) -> Result<ExitCode, Failure> {
    let mut fine = true;
    for file in files {
        match load_for(file, doors) {
            Ok(loaded) => fine &= what(file, &loaded)?,
            Err(failure) => {
                output::complain(failure);
                fine = false;
            }
        }
    }
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The doors that `serve` opens with these settings.
fn doors_of(config: PathBuf) -> Result<Vec<OpenDoor>, Failure> {
    let config = Config::load(ServeArgs { config: Some(config), ..ServeArgs::default() }, Doors::All)?;
    Ok(open_doors(&config, Doors::All))
}

pub fn load(file: &Path) -> Result<LoadedRules, Failure> {
    load_for(file, &[])
}

fn load_for(file: &Path, doors: &[OpenDoor]) -> Result<LoadedRules, Failure> {
    let name = file.display().to_string();
    // A person runs this: it may be a pipe.
    let text = File::open(file).and_then(|source| file::read_stream(source, file::MOST_BYTES));
    let text = text.and_then(file::text);
    let text = text.map_err(|error| Failure::plain(format!("cannot read {name}: {error}")))?;
    let loaded = rules::load_for(&name, &text, doors)?;
    if !loaded.warnings.is_empty() {
        output::complain(&loaded.warnings);
    }
    Ok(loaded)
}

fn check(file: &Path, loaded: &LoadedRules) -> Result<bool, Failure> {
    let (rules, tests) = (counted(loaded.rules.rules().len(), "rule"), counted(loaded.tests.len(), "test"));
    output::print(format_args!("{}: {rules}, {tests}, no errors\n", file.display()))?;
    Ok(true)
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

fn test(file: &Path, loaded: &LoadedRules) -> Result<bool, Failure> {
    let (results, file) = (rules::run_tests(loaded), file.display());
    let mut said = String::new();
    for result in &results {
        let mark = if result.failures.is_empty() { "ok  " } else { "FAIL" };
        said += &format!("{mark} {}  ({} requests)\n", result.name, result.requests);
        for (step, difference) in &result.failures {
            said += &format!("       {file}:{}: step {step}, {difference}\n", result.line);
        }
    }
    let failed = results.iter().filter(|result| !result.failures.is_empty()).count();
    output::print(format_args!("{said}{file}: {} passed, {failed} failed\n", results.len() - failed))?;
    Ok(failed == 0)
}

fn explain(args: &ExplainArgs) -> Result<ExitCode, Failure> {
    let loaded = load(&args.file)?;
    let ids: Vec<(&str, &str)> =
        args.ids.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let endpoint = path::endpoint(&args.endpoint).map_err(|fault| Failure::plain(fault.to_string()))?;
    let request = Request {
        api_key: args.key.as_deref(),
        user: args.user.as_deref(),
        tenant: args.tenant.as_deref(),
        ip: args.ip,
        tier: args.tier.as_deref(),
        ids: &ids,
        domain: args.domain.as_deref(),
        endpoint: &endpoint,
        method: Some(Method::from_name(&args.method)),
        cost: args.cost,
        priority: None,
    };
    let explanation = rules::explain(&loaded, &request, Clock::system().now_us());
    output::print(format_args!("{explanation}\n"))?;
    Ok(ExitCode::SUCCESS)
}
