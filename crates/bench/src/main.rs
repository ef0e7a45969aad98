//! Measures Tollgate beside its peers, in one run: `cargo run --release -p tollgate-bench [check|memory|attack]`.
//!
//! Machines differ and stall, so no time is judged alone: what counts are ratios to a peer measured in
//! turns with it, and the median over the rounds.
#![expect(clippy::disallowed_methods, reason = "measuring time is what this program is for")]

mod attack;
mod check;
mod memory;
mod setting;

/// The allocator of the product, for all that are measured.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let wanted = std::env::args().nth(1);
    let run = |name: &str| wanted.as_deref().is_none_or(|wanted| wanted == name);
    let benches: [(&str, fn()); 3] =
        [("check", check::run), ("memory", memory::run), ("attack", attack::run)];
    if let Some(unknown) = wanted.as_deref().filter(|name| benches.iter().all(|(known, _)| known != name)) {
        eprintln!("no bench `{unknown}`; there are check, memory and attack");
        std::process::exit(2);
    }
    for (name, bench) in benches {
        if run(name) {
            bench();
        }
    }
}
