//! `tollgate simulate`: a fleet on paper, before there is one.

mod progress;
mod table;

use crate::Failure;
use clap::Args;
use progress::Progress;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use table::{Need, Report};
use tollgate_core::rate::{SECOND_US, parse_duration_us};
use tollgate_core::rules::RuleSet;
use tollgate_simulate::{Client, Findings, Fleet, Population, Routing};

/// What the scale of a service is measured by: an ordinary day, its peak, and ten times as much.
const TARGETS: [u64; 3] = [1_700_000, 5_100_000, 17_000_000];
/// More than this takes too long and too much memory.
const MOST_CHECKS: u64 = 50_000_000;

#[derive(Args)]
pub struct SimulateArgs {
    /// The rules; without them, one limit for each API key
    #[arg(long, value_name = "FILE", conflicts_with = "limit")]
    rules: Option<PathBuf>,
    /// The one limit
    #[arg(long, value_name = "LIMIT", default_value = "10000/min")]
    limit: String,
    /// How many nodes decide
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    nodes: u16,
    /// How many Redis primaries they share
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    shards: u16,
    /// How many clients send
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    clients: u32,
    /// How unequal they are: the k-th sends as often as 1/k^ZIPF says; 0 makes all equal
    #[arg(long, default_value_t = 1.0, value_parser = zipf, allow_negative_numbers = true)]
    zipf: f64,
    /// How many checks a second they send together
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// From a node to Redis and back
    #[arg(long, default_value = "500us", value_parser = rtt)]
    rtt: u64,
    /// For how long
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// The path that they ask for
    #[arg(long, default_value = "/", value_name = "PATH")]
    endpoint: String,
    /// What chance comes from: the same number gives the same run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many charges a second one core of Redis takes
    #[arg(long, default_value_t = 150_000, value_parser = clap::value_parser!(u64).range(1..))]
    charges_per_core: u64,
    /// How many checks a second one node answers
    #[arg(long, default_value_t = 85_000, value_parser = clap::value_parser!(u64).range(1..))]
    checks_per_node: u64,
}

fn zipf(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=5.0).contains(&value) => Ok(value),
        _ => Err("a number between 0 and 5 is meant".to_owned()),
    }
}

fn rtt(text: &str) -> Result<u64, String> {
    match parse_duration_us(text)? {
        us @ 1..=40_000 => Ok(us),
        _ => {
            Err("between 1us and 40ms is meant: nodes wait 50ms for the store, and then do without it"
                .to_owned())
        }
    }
}

/// Runs it.
pub fn run(args: &SimulateArgs) -> Result<ExitCode, Failure> {
    if args.rate.saturating_mul(args.seconds) > MOST_CHECKS {
        let most = table::grouped(MOST_CHECKS);
        return Err(Failure::plain(format!("that is more than {most} checks; lower --rate or --seconds")));
    }
    if !args.endpoint.starts_with('/') {
        return Err(Failure::plain(format!(
            "--endpoint is a path and begins with `/`, unlike `{}`",
            args.endpoint
        )));
    }
    let (rules, described) = rules(args)?;
    let clients: Vec<Client> = (0..args.clients).map(|n| Client::numbered(n, &args.endpoint)).collect();
    let needed: Vec<(u64, u16)> = TARGETS.iter().map(|target| (*target, nodes_for(args, *target))).collect();
    let sizes = needed.iter().filter(|(_, nodes)| *nodes != args.nodes).count() + 1;
    let mut progress = Progress::new(2 * sizes as u64 * args.seconds * SECOND_US);
    let mut both = |nodes: u16| {
        [Routing::Random, Routing::Sticky]
            .map(|routing| simulate(args, &rules, &clients, nodes, routing, &mut progress))
    };
    let found = both(args.nodes);
    let needs = needed.into_iter().map(|(checks, nodes)| {
        let charges_per_check = match nodes == args.nodes {
            true => [0, 1].map(|index| per_check(&found[index])),
            false => both(nodes).map(|found| per_check(&found)),
        };
        Need { checks, nodes, charges_per_check }
    });
    let needs = needs.collect();
    progress.end();
    crate::output::print(Report { args, rules: &described, found: &found, needs })?;
    Ok(ExitCode::SUCCESS)
}

/// The rules, and what to call them.
fn rules(args: &SimulateArgs) -> Result<(Arc<RuleSet>, String), Failure> {
    if let Some(file) = &args.rules {
        let loaded = crate::rules::load(file)?;
        return Ok((Arc::new(loaded.rules), file.display().to_string()));
    }
    tollgate_core::rate::LimitShorthand::parse(&args.limit).map_err(Failure::plain)?;
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
    progress: &mut Progress,
) -> Findings {
    let fleet = Fleet {
        shards: args.shards,
        rtt_us: args.rtt,
        jitter_us: args.rtt / 10,
        charge_ns: 1_000_000_000 / args.charges_per_core,
        seed: args.seed,
        ..Fleet::new(Arc::clone(rules), nodes)
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

/// How many charges at the store one check comes to.
fn per_check(found: &Findings) -> f64 {
    found.charges_by_shard.iter().sum::<u64>() as f64 / found.tally.arrivals.max(1) as f64
}
