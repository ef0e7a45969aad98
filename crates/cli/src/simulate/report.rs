//! The report of a simulation, as text.

use super::SimulateArgs;
use std::fmt;
use tollgate_core::rate::{duration_text, grouped};
use tollgate_simulate::Findings;

/// What a load needs.
pub struct CapacityNeed {
    pub checks: u64,
    pub nodes: u16,
    /// With random and with sticky routing.
    pub charges_per_check: [f64; 2],
}

/// The report.
pub struct SimulationReport<'r> {
    pub args: &'r SimulateArgs,
    pub rules: &'r str,
    pub found: &'r [Findings; 2],
    pub needs: Vec<CapacityNeed>,
}

impl fmt::Display for SimulationReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_heading(f)?;
        self.write_findings(f)?;
        self.write_needs(f)
    }
}

impl SimulationReport<'_> {
    fn write_heading(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let args = self.args;
        writeln!(f, "{} virtual seconds, seed {}", args.seconds, args.seed)?;
        let clients = format!("{} clients (Zipf {})", grouped(args.clients.into()), args.zipf);
        writeln!(f, "  load    {} checks/s from {clients}", grouped(args.rate))?;
        let shards = counted(args.shards.into(), "Redis primary", "Redis primaries");
        let nodes = counted(args.nodes.into(), "node", "nodes");
        writeln!(f, "  fleet   {nodes}, {shards}, round trip {}", duration_text(args.rtt))?;
        writeln!(f, "  rules   {}", self.rules)?;
        if self.found[0].meters.is_empty() {
            writeln!(f, "  note    no rule limits `{}`; choose another path with --endpoint", args.endpoint)?;
        }
        writeln!(f)
    }

    fn write_findings(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:44}{:>14}{:>14}", "", "random", "sticky")?;
        let mut row = |name: &str, value: &dyn Fn(&Findings) -> String| {
            let [random, sticky] = self.found;
            writeln!(f, "{name:44}{:>14}{:>14}", value(random), value(sticky))
        };
        row("checks", &|found| grouped(found.tally.arrivals))?;
        row("  admitted", &|found| grouped(found.tally.admitted))?;
        row("  refused", &|found| grouped(found.tally.refused))?;
        row("decided without a Redis call", &|found| percent(found.local_share(), 1))?;
        row("  of those admitted", &|found| percent(found.local_share_admitted(), 1))?;
        row("  of those refused", &|found| percent(found.local_share_refused(), 1))?;
        let seconds = |found: &Findings| found.length_us.max(1) as f64 / 1e6;
        let of_shard =
            |found: &Findings| found.charges_per_second() / found.charges_by_shard.len().max(1) as f64;
        row("charges per second, each primary", &|found| grouped(of_shard(found) as u64))?;
        row("  CPU load of the busiest primary", &|found| {
            let busiest = found.busy_ns_by_shard.iter().max().copied().unwrap_or(0);
            percent(busiest as f64 / 1e9 / seconds(found), 1)
        })?;
        let of_node = |found: &Findings| found.calls as f64 / found.calls_by_node.len().max(1) as f64;
        row("client calls per second, each node", &|found| {
            grouped((of_node(found) / seconds(found)) as u64)
        })?;
        row("admitted above a limit, at worst", &|found| match found.over_admission() {
            _ if found.meters.is_empty() => "-".to_owned(),
            ..=0 => "none".to_owned(),
            tokens => counted(tokens as u64, "token", "tokens"),
        })?;
        row("refused, but not by an exact store", &|found| percent(found.lost_share(), 3))?;
        row("  from clients within their limits", &|found| percent(found.false_rejections(), 3))?;
        if self.found.iter().any(|found| found.tally.degraded > 0) {
            row("decided by the failure policy", &|found| grouped(found.tally.degraded))?;
        }
        writeln!(f)
    }

    fn write_needs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let args = self.args;
        writeln!(
            f,
            "Capacity for other loads, with {} checks/s per node and",
            grouped(args.checks_per_node)
        )?;
        writeln!(f, "{} charges/s per Redis core:", grouped(args.charges_per_core))?;
        writeln!(f)?;
        writeln!(
            f,
            "{:>12}{:>8}{:>26}{:>26}",
            "checks/s", "nodes", "Redis cores, random", "Redis cores, sticky"
        )?;
        for need in &self.needs {
            let [random, sticky] = need.charges_per_check.map(|per_check| {
                let cores = (per_check * need.checks as f64 / args.charges_per_core as f64).ceil().max(1.0);
                format!("{} ({per_check:.2} per check)", grouped(cores as u64))
            });
            let checks = format!("{:.1} M", need.checks as f64 / 1e6);
            writeln!(f, "{checks:>12}{:>8}{random:>26}{sticky:>26}", need.nodes)?;
        }
        writeln!(f)?;
        writeln!(f, "Assumes that the number of clients grows with the load and that each keeps its rate.")
    }
}

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(count), if count == 1 { one } else { many })
}

fn percent(share: f64, digits: usize) -> String {
    format!("{:.digits$} %", 100.0 * share)
}
