//! Benchmarks of Tollgate and its peers: `cargo run --release -p tollgate-bench` runs all; `check`, `memory`, `attack`,
//! `http`, `auth`, `redis`, `resp`, `rls`, `gateway`, `layer`, `telemetry` or `scrape` after `--` runs one.
//!
//! Machines differ and stall, so no time is judged by itself: the results are ratios to a peer that is measured in
//! turns with Tollgate, as medians over rounds. The exit code is 1 if a bar was missed.
#![expect(clippy::disallowed_methods, reason = "this program measures time")]

mod admin;
mod attack;
mod auth;
mod check;
mod gateway;
mod http;
mod http_peer;
mod layer;
mod measurement;
mod memory;
mod redis;
mod resp;
mod rls;
mod scrape;
mod telemetry;
mod workload;

use std::process::{Command, ExitCode};

/// The allocator of the `tollgate` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BENCHES: [(&str, fn()); 12] = [
    ("check", check::run),
    ("memory", memory::run),
    ("attack", attack::run),
    ("http", http::run),
    ("auth", auth::run),
    ("redis", redis::run),
    ("resp", resp::run),
    ("rls", rls::run),
    ("gateway", gateway::run),
    ("layer", layer::run),
    ("telemetry", telemetry::run),
    ("scrape", scrape::run),
];

fn main() -> ExitCode {
    let Some(wanted) = std::env::args().nth(1) else { return run_each() };
    match BENCHES.iter().find(|(name, _)| *name == wanted) {
        Some((_, bench)) => {
            bench();
            ExitCode::from(u8::from(!measurement::all_met()))
        }
        None => {
            let names: Vec<&str> = BENCHES.iter().map(|(name, _)| *name).collect();
            eprintln!("unknown bench `{wanted}`; use one of {}", names.join(", "));
            ExitCode::from(2)
        }
    }
}

/// Runs each bench in its own process, so that none starts with the memory of another.
fn run_each() -> ExitCode {
    let run = |name: &str| Command::new(std::env::current_exe()?).arg(name).status();
    let mut failed = Vec::new();
    for (name, _) in BENCHES {
        match run(name) {
            Ok(status) if status.success() => {}
            Ok(_) => failed.push(name),
            Err(error) => {
                eprintln!("{name} cannot be run: {error}");
                failed.push(name);
            }
        }
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("a bar was missed, or the run failed: {}", failed.join(", "));
    ExitCode::FAILURE
}
