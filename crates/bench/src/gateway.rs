//! The gateway beside nginx (`limit_req` and `proxy_pass`): same upstream and client, in turns.
//!
//! The proxy is a process of its own, so that its CPU time can be measured: on a machine with two cores, the client and
//! the upstream need their share, and requests per second alone would measure them, too.

mod load;
mod nginx;
pub mod process;
mod storm;
mod upstream;

use crate::measurement::{median, report_at_least};
use load::{ClosedLoopLoad, LoadClients, LoadOutcome, RequestTargets};
use nginx::{NginxProcess, ProxyLimits};
use process::ServerProcess;
use std::time::Duration;

/// How often both proxies are restarted.
const STARTS: usize = 16;
/// How many turns each proxy has between two starts, and their length. They are short, because the load of the machine
/// changes within seconds, and a ratio compares two consecutive turns.
const TURNS: usize = 8;
const TURN: Duration = Duration::from_millis(80);
const WARM_UP: Duration = Duration::from_millis(200);

/// The cores of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxyCores {
    /// The second core; client and upstream have the first.
    One,
    /// Both cores, shared with client and upstream.
    Both,
}

impl ProxyCores {
    fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::Both => 2,
        }
    }
}

/// What is compared.
#[derive(Clone, Copy, Debug)]
enum GatewayComparison {
    Forwarded,
    Refused,
    /// A retry storm, at this share of the capacity.
    Storm(f64),
}

pub fn run() {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => compare(&[
            GatewayComparison::Forwarded,
            GatewayComparison::Refused,
            GatewayComparison::Storm(storm::SHARE),
        ]),
        ["forwarded"] => compare(&[GatewayComparison::Forwarded]),
        ["refused"] => compare(&[GatewayComparison::Refused]),
        ["storm"] => compare(&[GatewayComparison::Storm(storm::SHARE)]),
        ["storm", share] => match share.parse() {
            Ok(share) if (0.01..=0.9).contains(&share) => compare(&[GatewayComparison::Storm(share)]),
            _ => {
                eprintln!("`{share}` is not a share of the capacity between 0.01 and 0.9; write it like 0.25")
            }
        },
        ["upstream"] => upstream::serve(),
        ["proxy", threads, upstream, rules] => process::serve_gateway(threads, upstream, rules),
        ["once", address] => once(address),
        _ => eprintln!("`gateway` takes no argument, or one of forwarded, refused and storm"),
    }
}

/// Measures a running server once, for profiling.
fn once(address: &str) {
    let Ok(address) = address.parse() else { return eprintln!("`{address}` is not an address") };
    let outcome = ClosedLoopLoad::default().run(address);
    println!("{:.0} requests/s, {} other than 200", outcome.per_second, outcome.refused);
}

fn compare(parts: &[GatewayComparison]) {
    if !nginx::is_installed() {
        return eprintln!("gateway: skipped, nginx is not installed (apt-get install nginx-light)");
    }
    println!(
        "gateway: {} connections, in turns of {} ms, medians of {}, proxies restarted after every {TURNS}",
        ClosedLoopLoad::default().connections,
        TURN.as_millis(),
        STARTS * TURNS
    );
    let upstream = ServerProcess::bench(&["upstream"]);
    for part in parts {
        match part {
            GatewayComparison::Forwarded => {
                measure("forwarded", &upstream, ProxyLimits::Generous, ClosedLoopLoad::default(), 0.9)
            }
            GatewayComparison::Refused => {
                measure("refused", &upstream, ProxyLimits::Tiny, ClosedLoopLoad::default(), 1.0);
                let varied = ClosedLoopLoad { targets: RequestTargets::Varied, ..ClosedLoopLoad::default() };
                measure("refused, other targets", &upstream, ProxyLimits::Tiny, varied, 1.0);
            }
            GatewayComparison::Storm(share) => storm::run(&upstream, *share),
        }
    }
}

fn measure(what: &str, upstream: &ServerProcess, limits: ProxyLimits, load: ClosedLoopLoad, bar: f64) {
    for (cores, ours) in [(ProxyCores::One, "0"), (ProxyCores::Both, "0,1")] {
        process::pin(std::process::id(), ours);
        process::pin(upstream.pid(), ours);
        measure_on(what, cores, upstream, limits, ClosedLoopLoad { threads: cores.count(), ..load }, bar);
    }
}

fn measure_on(
    what: &str,
    cores: ProxyCores,
    upstream: &ServerProcess,
    limits: ProxyLimits,
    load: ClosedLoopLoad,
    bar: f64,
) {
    let rules = match limits {
        ProxyLimits::Generous => "rules: [{ id: all, key: ip, limit: 1000000/s }]",
        ProxyLimits::Tiny => "rules: [{ id: all, key: ip, limit: 1/min }]",
    };
    let (threads, upstream_address) = (cores.count().to_string(), upstream.address.to_string());
    let (mut our, mut their) = (RateSamples::default(), RateSamples::default());
    // The memory layout of a process makes it faster or slower for its whole life, by 10 % and more.
    for _ in 0..STARTS {
        let ours = ServerProcess::bench(&["proxy", &threads, &upstream_address, rules]);
        let nginx = NginxProcess::start(upstream.address, cores.count(), limits);
        if cores == ProxyCores::One {
            process::pin(ours.pid(), "1");
            nginx.process.pin_all("1");
        }
        let (ours, theirs) = (MeasuredProxy::open(&ours, load), MeasuredProxy::open(&nginx.process, load));
        for turn in 0..TURNS {
            if turn % 2 == 0 {
                our.add(&ours.run_turn(), limits);
                their.add(&theirs.run_turn(), limits);
            } else {
                their.add(&theirs.run_turn(), limits);
                our.add(&ours.run_turn(), limits);
            }
        }
    }
    let mut ratios: Vec<f64> = our.rates.iter().zip(&their.rates).map(|(our, their)| our / their).collect();
    let (our_rate, their_rate) = (median(&mut our.rates), median(&mut their.rates));
    let (our_cost, their_cost) = (median(&mut our.costs), median(&mut their.costs));
    let what = match cores {
        ProxyCores::One => format!("{what}, one core"),
        ProxyCores::Both => format!("{what}, both cores"),
    };
    println!(
        "  {what}: tollgate {our_rate:.0}/s at {our_cost:.1} µs of CPU time each, nginx {their_rate:.0}/s at {their_cost:.1} µs"
    );
    report_at_least(&format!("{what}: requests/s, ratio to nginx"), median(&mut ratios), bar);
}

#[derive(Default)]
struct RateSamples {
    rates: Vec<f64>,
    /// Microseconds of CPU time per request.
    costs: Vec<f64>,
}

impl RateSamples {
    fn add(&mut self, (outcome, cpu_seconds): &(LoadOutcome, f64), limits: ProxyLimits) {
        let wrong = match limits {
            ProxyLimits::Generous => outcome.refused,
            // The first requests of a burst pass.
            ProxyLimits::Tiny => outcome.passed.saturating_sub(10_000.min(outcome.refused / 100)),
        };
        assert_eq!(wrong, 0, "{outcome:?}");
        self.rates.push(outcome.per_second);
        self.costs.push(cpu_seconds * 1e6 / (outcome.passed + outcome.refused) as f64);
    }
}

/// A proxy and its connected clients.
struct MeasuredProxy<'a> {
    process: &'a ServerProcess,
    clients: LoadClients,
}

impl<'a> MeasuredProxy<'a> {
    fn open(process: &'a ServerProcess, load: ClosedLoopLoad) -> Self {
        let clients = LoadClients::open(load, process.address);
        // Warm-up: connections, caches and branch prediction.
        clients.run_for(WARM_UP);
        Self { process, clients }
    }

    fn run_turn(&self) -> (LoadOutcome, f64) {
        let before = self.process.cpu_seconds();
        let outcome = self.clients.run_for(TURN);
        (outcome, self.process.cpu_seconds() - before)
    }
}
