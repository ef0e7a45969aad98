//! `tollgate simulate`: runs a fleet on virtual time, to size it before it is built.

mod progress_bar;
mod report;

use crate::command_error::CommandError;
use clap::Args;
use progress_bar::ProgressBar;
use report::{CapacityNeed, SimulationReport};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use tollgate_core::rate::{DurationTextError, SECOND_US, grouped, parse_duration_us};
use tollgate_core::rules::RuleSet;
use tollgate_simulate::{Client, Findings, Population, Routing, SimulatedFleet};

/// The loads in the capacity table, in checks per second: an ordinary day of a large service, its peak, and ten times
/// as much.
const TARGETS: [u64; 3] = [1_700_000, 5_100_000, 17_000_000];
/// More checks take too long and too much memory.
const MAX_CHECKS: u64 = 50_000_000;

#[derive(Args)]
pub struct SimulateArgs {
    /// Rule file [default: one limit for each API key]
    #[arg(long, value_name = "FILE", conflicts_with = "limit")]
    rules: Option<PathBuf>,
    /// Limit of each API key, without a rule file
    #[arg(long, value_name = "LIMIT", default_value = "10000/min")]
    limit: String,
    /// Number of nodes
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    nodes: u16,
    /// Number of Redis primaries
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    shards: u16,
    /// Number of clients
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    clients: u32,
    /// Skew of the clients: the rate of the k-th is proportional to 1/k^ZIPF; 0 makes all equal
    #[arg(long, default_value_t = 1.0, value_parser = zipf, allow_negative_numbers = true)]
    zipf: f64,
    /// Checks per second of all clients together
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// Round-trip time between a node and Redis
    #[arg(long, default_value = "500us", value_parser = rtt)]
    rtt: u64,
    /// Duration in virtual seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Path of all requests
    #[arg(long, default_value = "/", value_name = "PATH")]
    endpoint: String,
    /// Random seed: the same seed gives the same run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Charges per second that one Redis core handles
    #[arg(long, default_value_t = 150_000, value_parser = clap::value_parser!(u64).range(1..))]
    charges_per_core: u64,
    /// Checks per second that one node answers
    #[arg(long, default_value_t = 85_000, value_parser = clap::value_parser!(u64).range(1..))]
    checks_per_node: u64,
}

/// Why the value of a flag cannot be used.
#[derive(Debug, thiserror::Error)]
enum SimulateFlagError {
    #[error("expected a number between 0 and 5")]
    Zipf,
    #[error("{0}")]
    Duration(#[from] DurationTextError),
    #[error("expected a time between 1us and 40ms: nodes wait at most 50ms for the store")]
    RoundTrip,
}

fn zipf(text: &str) -> Result<f64, SimulateFlagError> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=5.0).contains(&value) => Ok(value),
        _ => Err(SimulateFlagError::Zipf),
    }
}

fn rtt(text: &str) -> Result<u64, SimulateFlagError> {
    match parse_duration_us(text)? {
        us @ 1..=40_000 => Ok(us),
        _ => Err(SimulateFlagError::RoundTrip),
    }
}

/// Runs the simulation for both routings, and prints the report.
pub fn run(args: &SimulateArgs) -> Result<ExitCode, CommandError> {
    if args.rate.saturating_mul(args.seconds) > MAX_CHECKS {
        return Err(CommandError::TooManyChecks(grouped(MAX_CHECKS)));
    }
    if !args.endpoint.starts_with('/') {
        return Err(CommandError::NotAPath(args.endpoint.clone()));
    }
    let (rules, described) = rules(args)?;
    let clients: Vec<Client> = (0..args.clients).map(|n| Client::numbered(n, &args.endpoint)).collect();
    let needed: Vec<(u64, u16)> = TARGETS.iter().map(|target| (*target, nodes_for(args, *target))).collect();
    let sizes = needed.iter().filter(|(_, nodes)| *nodes != args.nodes).count() + 1;
    let mut progress = ProgressBar::new(2 * sizes as u64 * args.seconds * SECOND_US);
    let mut both = |nodes: u16| {
        [Routing::Random, Routing::Sticky]
            .map(|routing| simulate(args, &rules, &clients, nodes, routing, &mut progress))
    };
    let found = both(args.nodes);
    let needs = needed.into_iter().map(|(checks, nodes)| {
        let charges_per_check = match nodes == args.nodes {
            true => [0, 1].map(|index| charges_per_check(&found[index])),
            false => both(nodes).map(|found| charges_per_check(&found)),
        };
        CapacityNeed { checks, nodes, charges_per_check }
    });
    let needs = needs.collect();
    progress.end();
    crate::output::print(SimulationReport { args, rules: &described, found: &found, needs })?;
    Ok(ExitCode::SUCCESS)
}

/// The rules, and their name in the report.
fn rules(args: &SimulateArgs) -> Result<(Arc<RuleSet>, String), CommandError> {
    if let Some(file) = &args.rules {
        let loaded = crate::rules::load(file)?;
        return Ok((Arc::new(loaded.rules), file.display().to_string()));
    }
    tollgate_core::rate::LimitShorthand::parse(&args.limit)?;
    let text = format!("rules: [{{id: limit, key: [api_key], limit: {}}}]", args.limit);
    let loaded = tollgate_core::rules::load("--limit", &text)?;
    Ok((Arc::new(loaded.rules), format!("{} for each API key", args.limit)))
}

fn nodes_for(args: &SimulateArgs, checks: u64) -> u16 {
    checks.div_ceil(args.checks_per_node).clamp(1, 1_000) as u16
}

fn simulate(
    args: &SimulateArgs,
    rules: &Arc<RuleSet>,
    clients: &[Client],
    nodes: u16,
    routing: Routing,
    progress: &mut ProgressBar,
) -> Findings {
    let fleet = SimulatedFleet {
        shards: args.shards,
        rtt_us: args.rtt,
        jitter_us: args.rtt / 10,
        charge_ns: 1_000_000_000 / args.charges_per_core,
        seed: args.seed,
        ..SimulatedFleet::new(Arc::clone(rules), nodes)
    };
    let length_us = args.seconds * SECOND_US;
    let population = Population {
        clients: args.clients,
        zipf: args.zipf,
        per_second: args.rate as f64,
        length_us,
        nodes,
        routing,
        seed: args.seed,
    };
    let found = fleet.run(clients, population.arrivals(), &mut |now_us| progress.reach(now_us));
    progress.advance(length_us);
    found
}

/// Charges at the store per check.
fn charges_per_check(found: &Findings) -> f64 {
    found.charges_by_shard.iter().sum::<u64>() as f64 / found.tally.arrivals.max(1) as f64
}
