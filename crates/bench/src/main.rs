//! Measures Tollgate beside its peers, in one run: `cargo run --release -p tollgate-bench`, or one of
//! `check`, `memory`, `attack`, `http`, `redis`, `gateway` and `layer` after `--`.
//!
//! Machines differ and stall, so no time is judged alone: what counts are ratios to a peer measured in
//! turns with it, and the median over the rounds.
#![expect(clippy::disallowed_methods, reason = "measuring time is what this program is for")]

mod attack;
mod check;
mod gateway;
mod http;
mod layer;
mod memory;
mod redis;
mod setting;

use std::process::{Command, ExitCode};

/// As in the product.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BENCHES: [(&str, fn()); 7] = [
    ("check", check::run),
    ("memory", memory::run),
    ("attack", attack::run),
    ("http", http::run),
    ("redis", redis::run),
    ("gateway", gateway::run),
    ("layer", layer::run),
];

fn main() -> ExitCode {
    let Some(wanted) = std::env::args().nth(1) else { return run_each() };
    match BENCHES.iter().find(|(name, _)| *name == wanted) {
        Some((_, bench)) => {
            bench();
            ExitCode::SUCCESS
        }
        None => {
            let names: Vec<&str> = BENCHES.iter().map(|(name, _)| *name).collect();
            eprintln!("no bench `{wanted}`; there are {}", names.join(", "));
            ExitCode::from(2)
        }
    }
}

/// Each in a process of its own, so that none starts with another's memory.
fn run_each() -> ExitCode {
    let run = |name: &str| Command::new(std::env::current_exe()?).arg(name).status();
    for (name, _) in BENCHES {
        match run(name) {
            Ok(status) if status.success() => {}
            Ok(status) => eprintln!("{name} ended with {status}"),
            Err(error) => eprintln!("{name} could not be run: {error}"),
        }
    }
    ExitCode::SUCCESS
}
