//! The gateway beside nginx (`limit_req` and `proxy_pass`): the same upstream, the same client, in turns.
//!
//! The proxy is a process of its own, so its processor time can be told apart: on a machine with two
//! cores the client and the upstream need their share, and requests per second alone would measure them
//! too.

mod load;
mod nginx;
mod process;
mod storm;
mod upstream;

use crate::setting::{median, verdict};
use load::{Clients, Load, Outcome};
use nginx::{Limits, Nginx};
use process::Process;
use std::time::Duration;

/// How often both servers are started anew.
const STARTS: usize = 16;
/// How often each has its turn between two starts, and for how long. Short, because what else the machine does
/// changes within seconds, and a ratio is one of two turns that follow each other.
const TURNS: usize = 8;
const TURN: Duration = Duration::from_millis(80);
const WARM_UP: Duration = Duration::from_millis(200);

/// Which cores a proxy has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cores {
    /// The second; client and upstream have the first.
    One,
    /// Both, and shares them with client and upstream.
    Both,
}

impl Cores {
    fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::Both => 2,
        }
    }
}

/// A part of the comparison.
#[derive(Clone, Copy, Debug)]
enum Part {
    Forwarded,
    Refused,
    /// At so much of what could be forwarded.
    Storm(f64),
}

pub fn run() {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => compare(&[Part::Forwarded, Part::Refused, Part::Storm(storm::SHARE)]),
        ["forwarded"] => compare(&[Part::Forwarded]),
        ["refused"] => compare(&[Part::Refused]),
        ["storm"] => compare(&[Part::Storm(storm::SHARE)]),
        ["storm", share] => match share.parse() {
            Ok(share) if (0.01..=0.9).contains(&share) => compare(&[Part::Storm(share)]),
            _ => eprintln!("`{share}` is not a share of the capacity; write it like 0.25"),
        },
        ["upstream"] => upstream::serve(),
        ["proxy", threads, upstream, rules] => process::serve_gateway(threads, upstream, rules),
        ["once", address] => once(address),
        _ => eprintln!("`gateway` takes no argument, or one of forwarded, refused and storm"),
    }
}

/// One measurement of a server that runs already, to look at it closely.
fn once(address: &str) {
    let Ok(address) = address.parse() else { return eprintln!("`{address}` is not an address") };
    let outcome = Load::default().run(address);
    println!("{:.0} requests/s, {} other than 200", outcome.per_second, outcome.refused);
}

fn compare(parts: &[Part]) {
    if !nginx::is_there() {
        return eprintln!(
            "gateway: nginx is not installed (apt-get install nginx-light); nothing is compared"
        );
    }
    println!(
        "gateway: {} connections, in turns of {} ms, medians of {}, servers started anew after every {TURNS}",
        Load::default().connections,
        TURN.as_millis(),
        STARTS * TURNS
    );
    let upstream = Process::bench(&["upstream"]);
    for part in parts {
        match part {
            Part::Forwarded => measure("forwarded", &upstream, Limits::Generous, Load::default(), 0.9),
            Part::Refused => {
                measure("refused", &upstream, Limits::Tiny, Load::default(), 1.0);
                let varied = Load { varied: true, ..Load::default() };
                measure("refused, other targets", &upstream, Limits::Tiny, varied, 1.0);
            }
            Part::Storm(share) => storm::run(&upstream, *share),
        }
    }
}

fn measure(what: &str, upstream: &Process, limits: Limits, load: Load, bar: f64) {
    for (cores, ours) in [(Cores::One, "0"), (Cores::Both, "0,1")] {
        process::pin(std::process::id(), ours);
        process::pin(upstream.pid(), ours);
        measure_on(what, cores, upstream, limits, Load { threads: cores.count(), ..load }, bar);
    }
}

fn measure_on(what: &str, cores: Cores, upstream: &Process, limits: Limits, load: Load, bar: f64) {
    let rules = match limits {
        Limits::Generous => "rules: [{ id: all, key: ip, limit: 1000000/s }]",
        Limits::Tiny => "rules: [{ id: all, key: ip, limit: 1/min }]",
    };
    let (threads, upstream_address) = (cores.count().to_string(), upstream.address.to_string());
    let (mut our, mut their) = (Sums::default(), Sums::default());
    // Where a process comes to lie in memory makes it faster or slower for all its life, by a tenth and more.
    for _ in 0..STARTS {
        let ours = Process::bench(&["proxy", &threads, &upstream_address, rules]);
        let nginx = Nginx::start(upstream.address, cores.count(), limits);
        if cores == Cores::One {
            process::pin(ours.pid(), "1");
            nginx.process.pin_all("1");
        }
        let (ours, theirs) = (Server::open(&ours, load), Server::open(&nginx.process, load));
        for turn in 0..TURNS {
            if turn % 2 == 0 {
                our.add(&ours.timed(), limits);
                their.add(&theirs.timed(), limits);
            } else {
                their.add(&theirs.timed(), limits);
                our.add(&ours.timed(), limits);
            }
        }
    }
    let mut ratios: Vec<f64> = our.rates.iter().zip(&their.rates).map(|(our, their)| our / their).collect();
    let (our_rate, their_rate) = (median(&mut our.rates), median(&mut their.rates));
    let (our_cost, their_cost) = (median(&mut our.costs), median(&mut their.costs));
    let what = match cores {
        Cores::One => format!("{what}, one core"),
        Cores::Both => format!("{what}, both cores"),
    };
    println!(
        "  {what}: tollgate {our_rate:.0}/s at {our_cost:.1} µs of processor each, nginx {their_rate:.0}/s at {their_cost:.1} µs"
    );
    verdict(&format!("{what}: requests/s, ratio to nginx"), median(&mut ratios), bar, false);
}

#[derive(Default)]
struct Sums {
    rates: Vec<f64>,
    /// Microseconds of processor time for a request.
    costs: Vec<f64>,
}

impl Sums {
    fn add(&mut self, (outcome, cpu_seconds): &(Outcome, f64), limits: Limits) {
        let wrong = match limits {
            Limits::Generous => outcome.refused,
            // The first few of a burst pass.
            Limits::Tiny => outcome.passed.saturating_sub(10_000.min(outcome.refused / 100)),
        };
        assert_eq!(wrong, 0, "{outcome:?}");
        self.rates.push(outcome.per_second);
        self.costs.push(cpu_seconds * 1e6 / (outcome.passed + outcome.refused) as f64);
    }
}

/// A server and its clients.
struct Server<'a> {
    process: &'a Process,
    clients: Clients,
}

impl<'a> Server<'a> {
    fn open(process: &'a Process, load: Load) -> Self {
        let clients = Clients::open(load, process.address);
        // The first requests find neither connections nor warm code.
        clients.ask(WARM_UP);
        Self { process, clients }
    }

    fn timed(&self) -> (Outcome, f64) {
        let before = self.process.cpu_seconds();
        let outcome = self.clients.ask(TURN);
        (outcome, self.process.cpu_seconds() - before)
    }
}
