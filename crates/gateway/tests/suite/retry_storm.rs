//! A storm of refused requests, ten for each admitted one, does not slow down the admitted ones.
//!
//! Below saturation most requests arrive at a gateway that is idle, so the median latency grows only by what refused
//! requests leave behind, and by those that are in flight. Both are in the storm here: of four admitted requests, one is
//! sent while a refused one is in flight. Requests with and without the storm take turns within milliseconds and are
//! compared in pairs, so that a machine that is busy with other things slows down both.
//!
//! What is compared is the work that stands between an admitted request and its response: the CPU time that client, gateway
//! and upstream, which are one process with nothing else to do, use meanwhile. It does not depend on what else the machine
//! does, so there is one measurement, and its result is final. That it can find a slow storm is tested too: one in which
//! every admitted request is sent behind ten refused ones in flight. Latencies at a given load are in the benchmarks.
//!
//! The gateway's own histogram must have each admitted request and no refused one, with a time that the client can confirm.

use crate::fixture;
use crate::raw_client::RawClient;
use rustix::time::{ClockId, clock_gettime};
use std::process::Command;
use tokio::time::Instant;
use tollgate_gateway::Gateway;
use tollgate_gateway::settings::GatewaySettings;
use tollgate_limiter::metrics::{MetricSamples, MetricValue, catalog};
use tollgate_listen::RefusalFastPath;
use tollgate_testbed::TestUpstream;

const RULES: &str = "rules: [{ id: all, key: api_key, limit: 1/h, override: { good: { capacity: 1000000, refill_rate: 1 } } }]";
/// The refused requests for each admitted one, each of a client of its own.
const REFUSED: usize = 10;
/// Pairs of turns, one without and one with the storm.
const PAIRS: usize = 120;
/// The admitted requests of a turn.
const TURN: usize = 8;
const MOST: f64 = 1.2;
/// Set in the process that measures.
const MEASURING: &str = "TOLLGATE_TEST_RETRY_STORM";
const THIS_TEST: &str = "retry_storm::a_retry_storm_does_not_slow_down_admitted_requests";

/// What is sent beside the admitted requests of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Storm {
    None,
    /// Ten refused requests before each admitted one; one of them is in flight with every fourth.
    BelowSaturation,
    /// All ten are in flight with each admitted request.
    AllInFlight,
}

impl Storm {
    fn is_in_flight(self, admitted: usize, refused: usize) -> bool {
        match self {
            Self::None => false,
            Self::BelowSaturation => admitted.is_multiple_of(4) && refused == admitted % REFUSED,
            Self::AllInFlight => true,
        }
    }
}

/// A client that is admitted, and others that are over their limit.
struct StormClients {
    good: RawClient,
    bad: Vec<RawClient>,
}

fn request(key: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: test\r\nX-Api-Key: {key}\r\n\r\n")
}

impl StormClients {
    /// Connects all clients, and spends what the bad ones have.
    async fn connect(gateway: &Gateway) -> Self {
        let good = RawClient::connect(gateway.address()).await;
        let mut bad = Vec::new();
        for number in 0..REFUSED {
            let mut client = RawClient::connect(gateway.address()).await;
            assert_eq!(client.ask(&request(&format!("bad{number}"))).await.status, 200);
            bad.push(client);
        }
        Self { good, bad }
    }

    /// The median work of a turn's admitted requests.
    async fn run_turn(&mut self, gateway: &Gateway, storm: Storm) -> f64 {
        let mut work = Vec::new();
        let refused = if storm == Storm::None { 0 } else { REFUSED };
        for number in 0..TURN {
            for (index, client) in self.bad.iter_mut().enumerate().take(refused) {
                client.send(request(&format!("bad{index}"))).await;
                if !storm.is_in_flight(number, index) {
                    assert_eq!(client.reply().await.status, 429);
                }
            }
            let (count, sum) = admitted_times(gateway);
            let (start, work_before) = (Instant::now(), cpu_seconds());
            assert_eq!(self.good.ask(&request("good")).await.status, 200);
            work.push(cpu_seconds() - work_before);
            let elapsed = start.elapsed().as_secs_f64();
            let (count_after, sum_after) = admitted_times(gateway);
            assert_eq!(count_after, count + 1, "an admitted request is measured, a refused one is not");
            let own = sum_after - sum;
            assert!(0.0 < own && own <= elapsed, "the histogram has {own} s, the client {elapsed} s");
            for (index, client) in self.bad.iter_mut().enumerate().take(refused) {
                if storm.is_in_flight(number, index) {
                    assert_eq!(client.reply().await.status, 429);
                }
            }
        }
        median(work)
    }
}

/// The CPU time of all threads of this process.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The number of admitted requests, and the sum of their times.
fn admitted_times(gateway: &Gateway) -> (u64, f64) {
    let metrics = MetricSamples::of([gateway.metrics().as_ref()]);
    let mut samples = metrics.of_metric(&catalog::GATEWAY_DURATION).iter();
    let admitted = samples.find(|sample| &*sample.labels[0] == "admitted").unwrap();
    match &admitted.value {
        MetricValue::Histogram(histogram) => (histogram.count(), histogram.sum),
        other => panic!("{other:?}"),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The work with the storm as a multiple of that without it.
async fn measure(fast_path: RefusalFastPath, storm: Storm) -> f64 {
    let server = TestUpstream::start("one").await;
    let mut listen = fixture::listen();
    (listen.threads, listen.options.refusal_fast_path) = (1, fast_path);
    let settings = GatewaySettings::to(fixture::upstream(&[&server]));
    let gateway = Gateway::start(&settings, &fixture::limits(RULES), &listen).unwrap();
    let mut clients = StormClients::connect(&gateway).await;
    let mut ratios = Vec::new();
    for pair in 0..PAIRS {
        let turns = if pair % 2 == 0 { [Storm::None, storm] } else { [storm, Storm::None] };
        let first = clients.run_turn(&gateway, turns[0]).await;
        let second = clients.run_turn(&gateway, turns[1]).await;
        ratios.push(if pair % 2 == 0 { second / first } else { first / second });
    }
    let ratio = median(ratios);
    println!("{fast_path:?}, {storm:?}: {ratio:.2}");
    ratio
}

/// This test is also the process that measures: it starts itself with a variable.
#[tokio::test]
async fn a_retry_storm_does_not_slow_down_admitted_requests() {
    if std::env::var_os(MEASURING).is_none() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", THIS_TEST, "--nocapture", "--test-threads=1"]).env(MEASURING, "1");
        let measured = command.output().unwrap();
        let printed = String::from_utf8_lossy(&measured.stdout);
        println!("{printed}");
        assert!(measured.status.success(), "{}", String::from_utf8_lossy(&measured.stderr));
        return assert!(printed.contains("1 passed"), "the test has another name");
    }
    for fast_path in [RefusalFastPath::Enabled, RefusalFastPath::Disabled] {
        let ratio = measure(fast_path, Storm::BelowSaturation).await;
        assert!(ratio < MOST, "{fast_path:?}: work with a storm × without: {ratio}");
        let ratio = measure(fast_path, Storm::AllInFlight).await;
        assert!(ratio > MOST, "{fast_path:?}: a slow storm is not found: {ratio}");
    }
}
