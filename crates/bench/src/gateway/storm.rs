//! A storm of retries, with the machine far from busy: what ten refused requests for each admitted one do to
//! the admitted ones.
//!
//! Requests come when they come, whatever became of those before: each client has a thread that sleeps for a random
//! time between two of them. A runtime's timers would let all clients ask in the same millisecond, and then the
//! admitted ones would wait for the client of the others.

use super::load::{Load, Outcome, is_whole, request};
use super::process::{self, Process};
use crate::setting::{median, verdict};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_secs(1);
/// For each client that is admitted there are so many that are not.
const REFUSED: usize = 10;
/// All of them together ask so often, of what is admitted when all ask as fast as they can. Requests that come one
/// by one, from a thread each, cost the machine several times as much as those, so it is busier than this.
pub const SHARE: f64 = 0.1;
const RULES: &str = "rules: [{ id: all, key: api_key, limit: 1/hour, \
                     override: { good: { capacity: 1000000, refill_rate: 1000000 } } }]";

pub fn run(upstream: &Process, share: f64) {
    let gateway = Process::bench(&["proxy", "2", &upstream.address.to_string(), RULES]);
    let Outcome { per_second: most, refused: 0, .. } =
        Load { key: "good", ..Load::default() }.run(gateway.address)
    else {
        return eprintln!("  a storm: the good client was refused");
    };
    let each = most * share / (1 + REFUSED) as f64;
    let (mut calm, mut stormy, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut busy = Vec::new();
    for round in 0..=ROUNDS {
        let alone = admitted_us(gateway.address, each, 0);
        let before = process::machine_times();
        let among = admitted_us(gateway.address, each, REFUSED);
        let after = process::machine_times();
        // The first round only warms up.
        if round > 0 {
            calm.push(alone);
            stormy.push(among);
            busy.push((after.0 - before.0) / (after.1 - before.1));
            ratios.push(among / alone);
        }
    }
    let (calm, stormy) = (median(&mut calm), median(&mut stormy));
    println!(
        "  a storm: {each:.0} admitted requests/s ({most:.0}/s would pass) take {calm:.0} µs at the median alone, {stormy:.0} µs among {REFUSED} refused each, with the machine busy for {:.0} % of the time",
        median(&mut busy) * 100.0
    );
    verdict("a storm: p50 of admitted requests × without it", median(&mut ratios), 1.5, true);
}

/// The median time of admitted requests, while `refused` clients are refused as often.
fn admitted_us(address: SocketAddr, per_second: f64, refused: usize) -> f64 {
    let until = Instant::now() + ROUND;
    let storm: Vec<_> = (0..refused)
        .map(|number| thread::spawn(move || ask(address, &format!("bad{number}"), per_second, until)))
        .collect();
    let (mut times, statuses) = ask(address, "good", per_second, until);
    assert_eq!(statuses[1], 0, "all of the good one's pass");
    for client in storm {
        let (_, [passed, _]) = client.join().expect("a client ends well");
        assert!(passed <= 1, "the others are over their limit");
    }
    median(&mut times)
}

/// Asks so often on average; answers the times in microseconds, and how many passed and how many did not.
fn ask(address: SocketAddr, key: &str, per_second: f64, until: Instant) -> (Vec<f64>, [usize; 2]) {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_nodelay(true).expect("a connected socket takes options");
    let (request, mut buffer) = (request(key), vec![0; 16 << 10]);
    let (mut times, mut statuses) = (Vec::new(), [0, 0]);
    let mut next = Instant::now();
    loop {
        // The times between independent events are distributed like this.
        next += Duration::from_secs_f64(-(1.0 - fastrand::f64()).ln() / per_second);
        if next >= until {
            return (times, statuses);
        }
        thread::sleep(next.saturating_duration_since(Instant::now()));
        let start = Instant::now();
        stream.write_all(request.as_bytes()).expect("the server reads");
        let mut filled = 0;
        while !is_whole(&buffer[..filled]) {
            let count = stream.read(&mut buffer[filled..]).expect("the server answers");
            assert!(count > 0, "the server closed the connection");
            filled += count;
        }
        times.push(start.elapsed().as_secs_f64() * 1e6);
        statuses[usize::from(!buffer.starts_with(b"HTTP/1.1 200"))] += 1;
    }
}
