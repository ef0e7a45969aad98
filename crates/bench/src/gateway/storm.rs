//! A storm of retries, with the machine far from busy: what ten refused requests for each admitted one do to
//! the admitted ones.

use super::load::{answer, request};
use super::process::Process;
use crate::setting::{median, verdict};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_secs(1);
/// How often each client asks: one that is admitted, and ten that are not.
const EVERY: Duration = Duration::from_millis(3);
const REFUSED: usize = 10;
const RULES: &str = "rules: [{ id: all, key: api_key, limit: 1/hour, \
                     override: { good: { capacity: 1000000, refill_rate: 1000000 } } }]";

pub fn run(upstream: &Process) {
    let gateway = Process::bench(&["proxy", "2", &upstream.address.to_string(), RULES]);
    let (mut calm, mut stormy, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let alone = admitted_us(gateway.address, 0);
        let among = admitted_us(gateway.address, REFUSED);
        // The first round only warms up.
        if round > 0 {
            calm.push(alone);
            stormy.push(among);
            ratios.push(among / alone);
        }
    }
    let (calm, stormy) = (median(&mut calm), median(&mut stormy));
    println!(
        "  a storm: admitted requests take {calm:.0} µs at the median alone, {stormy:.0} µs among ten refused each"
    );
    verdict("a storm: p50 of admitted requests × without it", median(&mut ratios), 1.5, true);
}

/// The median time of admitted requests, while `refused` clients are refused as often.
fn admitted_us(address: SocketAddr, refused: usize) -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let until = Instant::now() + ROUND;
        let mut storm = JoinSet::new();
        for number in 0..refused {
            storm.spawn(ask(address, format!("bad{number}"), until));
        }
        let (mut times, statuses) = ask(address, "good".to_owned(), until).await;
        assert_eq!(statuses[1], 0, "all of the good one's pass");
        for (_, [passed, _]) in storm.join_all().await {
            assert!(passed <= 1, "the others are over their limit");
        }
        median(&mut times)
    })
}

/// Asks at a steady pace; answers the times in microseconds, and how many passed and how many did not.
async fn ask(address: SocketAddr, key: String, until: Instant) -> (Vec<f64>, [usize; 2]) {
    let mut stream = TcpStream::connect(address).await.expect("the server listens");
    stream.set_nodelay(true).expect("a connected socket takes options");
    let (request, mut buffer) = (request(&key), vec![0; 16 << 10]);
    let (mut times, mut statuses) = (Vec::new(), [0, 0]);
    let mut pace = tokio::time::interval(EVERY);
    while Instant::now() < until {
        pace.tick().await;
        let start = Instant::now();
        let passed = answer(&mut stream, &request, &mut buffer).await;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        statuses[usize::from(!passed)] += 1;
    }
    (times, statuses)
}
