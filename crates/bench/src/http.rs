//! `POST /v1/check` beside a bare hyper server that reads the same body and answers the same bytes, and with all telemetry
//! beside none: same machine, client and runtime, in turns.
//!
//! All telemetry: decisions are counted and observed (durations, top keys), a file has the decision log with its default
//! shares, and `/metrics` is scraped every second.

use crate::admin;
use crate::http_peer::{MeasuredEndpoint, RULES, compare, serve_role};
use crate::measurement::{median, report_at_least};
use crate::workload::limiter;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tollgate_http::{ForwardAuthOptions, HeaderOptions};
use tollgate_limiter::line_log::LogDestination;
use tollgate_limiter::{Counting, DecisionLog, DecisionLogSettings, Limiter, ObservationSettings};
use tollgate_server::{ForwardAuth, HttpDoor, Readiness};
use tollgate_telemetry::{MetricRegistry, ProcessMetrics};

const CONNECTIONS: usize = 32;
/// The turns with and without telemetry. They are short, because the load of the machine changes within seconds.
const TELEMETRY_TURNS: usize = 100;
const TURN_REQUESTS: usize = 6_400;
const SCRAPE_EVERY: Duration = Duration::from_secs(1);
const TIDY_EVERY: Duration = Duration::from_millis(100);

pub fn run() {
    if serve_role(MeasuredEndpoint::Check) {
        return;
    }
    if std::env::args().nth(2).as_deref() == Some("peer") {
        return compare(MeasuredEndpoint::Check, 0.85);
    }
    // In a process of its own, because it pins itself.
    let program = std::env::current_exe().expect("this program has a path");
    let compared = Command::new(program).args(["http", "peer"]).status();
    assert!(compared.is_ok_and(|status| status.success()), "the comparison with hyper ends");
    let Ok(runtime) = tokio::runtime::Runtime::new() else {
        eprintln!("cannot start a runtime");
        return;
    };
    compare_with_telemetry(&runtime);
}

fn compare_with_telemetry(runtime: &Runtime) {
    let folder = tempfile::tempdir().expect("a folder");
    let log = LogDestination::File(folder.path().join("decisions.log"));
    let log = Arc::new(DecisionLog::open(&DecisionLogSettings::new(log)).expect("a log"));
    let silent = Arc::new(limiter(RULES, 1 << 28).counting(Counting::Off));
    let observed = limiter(RULES, 1 << 28).observed_by(Arc::clone(&log) as _, ObservationSettings::default());
    let observed = Arc::new(observed);
    let registry = Arc::new(MetricRegistry::default());
    registry.register(Arc::clone(&observed) as _);
    registry.register(Arc::new(ProcessMetrics::new("bench")));
    let admin = runtime.block_on(admin::serve(registry, Arc::clone(&observed)));
    let without = serve_checks(runtime, Arc::clone(&silent));
    let with = serve_checks(runtime, Arc::clone(&observed));
    let (mut rates, mut ratios): ([Vec<f64>; 2], Vec<f64>) = Default::default();
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let scrapes = scope.spawn(|| {
            let mut count = 0;
            while !has_ended.load(Ordering::Relaxed) {
                thread::sleep(SCRAPE_EVERY);
                assert!(admin::scrape(admin).contains("tollgate_decisions_total{"), "checks are counted");
                count += 1;
            }
            count
        });
        for turn in 0..=TELEMETRY_TURNS {
            let (without_rate, with_rate) = if turn % 2 == 0 {
                let rate = requests_per_second_of(without, TURN_REQUESTS);
                (rate, requests_per_second_of(with, TURN_REQUESTS))
            } else {
                let rate = requests_per_second_of(with, TURN_REQUESTS);
                (requests_per_second_of(without, TURN_REQUESTS), rate)
            };
            // The first turn only warms up.
            if turn > 0 {
                rates[0].push(without_rate);
                rates[1].push(with_rate);
                ratios.push(with_rate / without_rate);
            }
        }
        has_ended.store(true, Ordering::Relaxed);
        println!("  {} scrapes", scrapes.join().expect("the scraper ends"));
    });
    let lines = std::fs::read_to_string(folder.path().join("decisions.log")).unwrap_or_default();
    let [without_rate, with_rate] = rates.each_mut().map(|rates| median(rates));
    println!(
        "  POST /v1/check without telemetry {without_rate:>8.0}/s   with all of it {with_rate:>8.0}/s, {} lines logged, {} dropped",
        lines.lines().count(),
        log.lines().dropped()
    );
    report_at_least("POST /v1/check, all telemetry × none", median(&mut ratios), 0.95);
}

/// Serves checks in the runtime, with the housekeeping of a node.
fn serve_checks(runtime: &Runtime, limiter: Arc<Limiter>) -> SocketAddr {
    let listener = runtime.block_on(listen());
    let address = address(&listener);
    let readiness = Arc::new(Readiness::default());
    readiness.set_rules_installed();
    let tidied = Arc::clone(&limiter);
    runtime.spawn(async move {
        let mut every = tokio::time::interval(TIDY_EVERY);
        loop {
            every.tick().await;
            tidied.tidy();
        }
    });
    let (headers, options) = (HeaderOptions::default(), ForwardAuthOptions::default());
    let forward_auth = ForwardAuth::new(Arc::clone(&limiter), headers, Arc::default(), options);
    let door = HttpDoor { limiter, headers, forward_auth, readiness };
    runtime.spawn(Arc::new(door).serve(listener, std::future::pending(), HttpDoor::default_options()));
    address
}

async fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port")
}

fn address(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().expect("a bound listener has an address")
}

/// One thread keeps all connections busy, with one request on each at a time.
fn requests_per_second_of(address: SocketAddr, requests: usize) -> f64 {
    let mut connections: Vec<(TcpStream, Vec<u8>)> = (0..CONNECTIONS)
        .map(|number| {
            let stream = TcpStream::connect(address).expect("the server listens");
            stream.set_nodelay(true).expect("a connected socket takes options");
            (stream, request(number))
        })
        .collect();
    let start = Instant::now();
    let mut buffer = [0; 4096];
    for _ in 0..requests / CONNECTIONS {
        for (stream, request) in &mut connections {
            stream.write_all(request).expect("the server reads");
        }
        for (stream, _) in &mut connections {
            read_response(stream, &mut buffer);
        }
    }
    requests as f64 / start.elapsed().as_secs_f64()
}

fn request(number: usize) -> Vec<u8> {
    let body = format!(r#"{{"key":"sk_prod_{number:04}","endpoint":"/v1/orders/17","method":"GET"}}"#);
    let length = body.len();
    format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

/// Responses are short and come in one or two pieces; the last byte of the JSON ends them.
fn read_response(stream: &mut TcpStream, buffer: &mut [u8]) {
    let mut length = 0;
    while length == 0 || buffer[length - 1] != b'}' {
        let read = stream.read(&mut buffer[length..]).expect("the server answers");
        assert!(read > 0, "the server closed the connection");
        length += read;
    }
    assert!(buffer.starts_with(b"HTTP/1.1 200"), "every request passes");
}
