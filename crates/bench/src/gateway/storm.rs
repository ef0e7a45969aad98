//! A retry storm while the machine is far from busy: how ten refused requests for each admitted one affect the latency
//! of the admitted ones.
//!
//! The load is open: a request is sent at its time, whatever happened to those before. Each client has a thread that
//! sleeps for a random time between two requests. The timers of a runtime would let all clients send in the same
//! millisecond, and the admitted requests would wait for the clients of the others.
//!
//! The gateway has a core of its own. The admitted client and the upstream have real-time priority on the other, so that
//! they do not wait for the clients of the storm: what is left is what the storm does to the gateway.
//!
//! The latency is measured by the client, and read from the gateway's own histogram in `/metrics`.

use super::load::{ClosedLoopLoad, LoadOutcome, is_complete, request};
use super::process::{self, ServerProcess};
use crate::admin::{ScrapedHistogram, scrape};
use crate::measurement::{median, report_at_most};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_secs(1);
/// Admitted requests may take a fifth longer.
const BAR: f64 = 1.2;
/// The number of refused clients beside the admitted one.
const REFUSED: usize = 10;
/// The rate of all clients together, as a share of the closed-loop capacity. Requests of one thread each cost several
/// times as much CPU time, so the machine is busier than this.
pub const SHARE: f64 = 0.1;
/// The time of admitted requests, as the gateway measures it.
const SERIES: &str = "tollgate_gateway_request_duration_seconds_bucket{result=\"admitted\",";
const RULES: &str = "rules: [{ id: all, key: api_key, limit: 1/hour, \
                     override: { good: { capacity: 1000000, refill_rate: 1000000 } } }]";

pub fn run(upstream: &ServerProcess, share: f64) {
    let gateway = ServerProcess::bench(&["proxy", "1", &upstream.address.to_string(), RULES]);
    process::pin(gateway.pid(), "1");
    process::pin(std::process::id(), "0");
    process::pin(upstream.pid(), "0");
    let LoadOutcome { per_second: most, refused: 0, .. } =
        ClosedLoopLoad { key: "good", ..ClosedLoopLoad::default() }.run(gateway.address)
    else {
        return eprintln!("  retry storm: the good client was refused");
    };
    process::raise_priority(upstream.pid());
    // The thread of the admitted client.
    process::raise_priority(std::process::id());
    let each = most * share / (1 + REFUSED) as f64;
    let (mut calm, mut stormy, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut busy = Vec::new();
    let admin = gateway.admin.expect("the gateway has an admin listener");
    let histogram = || ScrapedHistogram::find(&scrape(admin), SERIES);
    let (mut own_calm, mut own_stormy) = (ScrapedHistogram::default(), ScrapedHistogram::default());
    for round in 0..=ROUNDS {
        let first = histogram();
        let alone = admitted_latency_us(gateway.address, each, 0);
        let second = histogram();
        let before = process::machine_times();
        let among = admitted_latency_us(gateway.address, each, REFUSED);
        let after = process::machine_times();
        // The first round is a warm-up.
        if round > 0 {
            calm.push(alone);
            stormy.push(among);
            busy.push((after.0 - before.0) / (after.1 - before.1));
            ratios.push(among / alone);
            own_calm.add_growth(&first, &second);
            own_stormy.add_growth(&second, &histogram());
        }
    }
    let (calm, stormy) = (median(&mut calm), median(&mut stormy));
    println!(
        "  retry storm: {each:.0} admitted requests/s (capacity {most:.0}/s) take {calm:.0} µs at the median alone, {stormy:.0} µs beside {REFUSED} refused each; CPU {:.0} % busy",
        median(&mut busy) * 100.0
    );
    let (own_calm, own_stormy) = (own_calm.median() * 1e6, own_stormy.median() * 1e6);
    println!("  retry storm: the gateway's histogram has {own_calm:.0} µs, and {own_stormy:.0} µs");
    report_at_most("retry storm: p50 of admitted × without it, client", median(&mut ratios), BAR);
    report_at_most("retry storm: the same, own histogram", own_stormy / own_calm, BAR);
}

/// The median latency of admitted requests, beside `refused` clients at the same rate each.
fn admitted_latency_us(address: SocketAddr, per_second: f64, refused: usize) -> f64 {
    let until = Instant::now() + ROUND;
    let storm: Vec<_> = (0..refused)
        .map(|number| thread::spawn(move || send_until(address, &format!("bad{number}"), per_second, until)))
        .collect();
    let (mut times, statuses) = send_until(address, "good", per_second, until);
    assert_eq!(statuses[1], 0, "all requests of the good client pass");
    for client in storm {
        let (_, [passed, _]) = client.join().expect("a client thread ends");
        assert!(passed <= 1, "the others are over their limit");
    }
    median(&mut times)
}

/// Sends at this average rate; returns the latencies in microseconds, and how many requests passed and were refused.
fn send_until(address: SocketAddr, key: &str, per_second: f64, until: Instant) -> (Vec<f64>, [usize; 2]) {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_nodelay(true).expect("a connected socket takes options");
    let (request, mut buffer) = (request(key), vec![0; 16 << 10]);
    let (mut times, mut statuses) = (Vec::new(), [0, 0]);
    let mut next = Instant::now();
    loop {
        // Exponentially distributed intervals: a Poisson process.
        next += Duration::from_secs_f64(-(1.0 - fastrand::f64()).ln() / per_second);
        if next >= until {
            return (times, statuses);
        }
        thread::sleep(next.saturating_duration_since(Instant::now()));
        let start = Instant::now();
        stream.write_all(request.as_bytes()).expect("the server reads");
        let mut filled = 0;
        while !is_complete(&buffer[..filled]) {
            let count = stream.read(&mut buffer[filled..]).expect("the server answers");
            assert!(count > 0, "the server closed the connection");
            filled += count;
        }
        times.push(start.elapsed().as_secs_f64() * 1e6);
        statuses[usize::from(!buffer.starts_with(b"HTTP/1.1 200"))] += 1;
    }
}
