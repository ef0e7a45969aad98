//! A storm of refused requests, ten for each admitted one, does not slow down the admitted ones.
//!
//! Below saturation most requests arrive at a gateway that is idle, so the median latency grows only by what refused
//! requests leave behind, and by those that are in flight. Both are in the storm here: of four admitted requests, one is
//! sent while a refused one is in flight. Requests with and without the storm take turns within milliseconds and are
//! compared in pairs, so that a machine that is busy with other things slows down both. Where all cores are taken, the
//! scheduler lets a thread wait longer the more it has run: such a run judges nothing, and is repeated for a while. A
//! storm that really costs a fifth does so in every run. The figure at a given load is in the benchmarks.

use crate::fixture;
use crate::raw_client::RawClient;
use tokio::time::Instant;
use tollgate_gateway::Gateway;
use tollgate_gateway::settings::GatewaySettings;
use tollgate_limiter::metrics::{MetricSamples, MetricValue, catalog};
use tollgate_listen::RefusalFastPath;
use tollgate_testbed::{PATIENCE, TestUpstream};

const RULES: &str = "rules: [{ id: all, key: api_key, limit: 1/h, override: { good: { capacity: 1000000, refill_rate: 1 } } }]";
/// The refused requests for each admitted one, each of a client of its own.
const REFUSED: usize = 10;
/// Pairs of turns, one without and one with the storm.
const PAIRS: usize = 48;
/// The admitted requests of a turn.
const TURN: usize = 8;
const MOST: f64 = 1.2;

/// A client that is admitted, and others that are over their limit.
struct StormClients {
    good: RawClient,
    bad: Vec<RawClient>,
}

/// The median time of a turn's admitted requests, as the client measures it and in the gateway's histogram. There is one
/// admitted request at a time, so the growth of the histogram's sum is its time.
#[derive(Clone, Copy, Debug)]
struct AdmittedTimes {
    client: f64,
    own: f64,
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

    async fn run_turn(&mut self, gateway: &Gateway, refused: usize) -> AdmittedTimes {
        let (mut client_times, mut own_times) = (Vec::new(), Vec::new());
        for number in 0..TURN {
            let in_flight = (refused > 0 && number % 4 == 0).then_some(number % REFUSED);
            for (index, client) in self.bad.iter_mut().enumerate().take(refused) {
                client.send(request(&format!("bad{index}"))).await;
                if Some(index) != in_flight {
                    assert_eq!(client.reply().await.status, 429);
                }
            }
            let (count, sum) = admitted_times(gateway);
            let start = Instant::now();
            assert_eq!(self.good.ask(&request("good")).await.status, 200);
            client_times.push(start.elapsed().as_secs_f64());
            let (count_after, sum_after) = admitted_times(gateway);
            assert_eq!(count_after, count + 1, "an admitted request is measured, a refused one is not");
            own_times.push(sum_after - sum);
            if let Some(index) = in_flight {
                assert_eq!(self.bad[index].reply().await.status, 429);
            }
        }
        AdmittedTimes { client: median(client_times), own: median(own_times) }
    }
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

/// The times with the storm as multiples of those without it.
async fn measure(gateway: &Gateway, clients: &mut StormClients) -> AdmittedTimes {
    let (mut client, mut own) = (Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        let turns = if pair % 2 == 0 { [0, REFUSED] } else { [REFUSED, 0] };
        let first = clients.run_turn(gateway, turns[0]).await;
        let second = clients.run_turn(gateway, turns[1]).await;
        let (calm, storm) = if pair % 2 == 0 { (first, second) } else { (second, first) };
        client.push(storm.client / calm.client);
        own.push(storm.own / calm.own);
    }
    AdmittedTimes { client: median(client), own: median(own) }
}

#[tokio::test]
async fn a_retry_storm_does_not_slow_down_admitted_requests() {
    for fast_path in [RefusalFastPath::Enabled, RefusalFastPath::Disabled] {
        let server = TestUpstream::start("one").await;
        let mut listen = fixture::listen();
        (listen.threads, listen.options.refusal_fast_path) = (1, fast_path);
        let settings = GatewaySettings::to(fixture::upstream(&[&server]));
        let gateway = Gateway::start(&settings, &fixture::limits(RULES), &listen).unwrap();
        let mut clients = StormClients::connect(&gateway).await;
        let (start, mut attempts) = (Instant::now(), Vec::new());
        loop {
            let ratios = measure(&gateway, &mut clients).await;
            attempts.push(ratios);
            if ratios.client < MOST && ratios.own < MOST {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "{fast_path:?}: times with a storm × without: {attempts:?}");
        }
    }
}
