//! The RLS door beside a bare tonic service that answers the same messages with a constant: each is a process with one core,
//! the client has the other.
//!
//! The client writes frames that are encoded once, and reads frames without decoding them: it needs a fraction of the CPU time
//! of a server, so that the server is what is measured.

mod frame_client;

use crate::gateway::process::{ServerProcess, exit_with_parent, pin};
use crate::measurement::{median, report_at_least};
use frame_client::FrameClient;
use prost::Message;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tollgate_http::HeaderOptions;
use tollgate_listen::ListenerSetup;
use tollgate_server::rls_door::DescriptorCharging;
use tollgate_server::rls_door::proto::{
    Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse, RateLimitService,
    RateLimitServiceClient, RateLimitServiceServer,
};
use tollgate_server::{Readiness, RlsDoor};
use tonic::{Request, Response, Status};

const RULES: &str = r#"
rules:
  - { id: client, domain: edge, match: { exactly: [api_key, endpoint] }, key: api_key, limit: 1000000/min }
  - { id: address, domain: edge, match: { exactly: [ip] }, key: ip, limit: 1000000000/min }
"#;
const CONNECTIONS: usize = 4;
/// Calls in flight on each connection.
const IN_FLIGHT: usize = 32;
/// Different clients.
const KEYS: usize = 4_096;
const ROUNDS: usize = 31;
const ROUND: Duration = Duration::from_millis(400);
const TIDY_EVERY: Duration = Duration::from_millis(100);
const SERVER_CORE: &str = "1";
const CLIENT_CORE: &str = "0";

pub fn run() {
    match std::env::args().nth(2).as_deref() {
        Some("door") => return serve(Served::Door),
        Some("echo") => return serve(Served::Echo),
        _ => {}
    }
    pin(std::process::id(), CLIENT_CORE);
    println!(
        "rls: {CONNECTIONS} connections with {IN_FLIGHT} calls in flight, {KEYS} clients, medians of {ROUNDS} rounds in turns"
    );
    let servers = ["door", "echo"].map(|role| {
        let server = ServerProcess::start("rls", &[role]);
        server.pin_all(SERVER_CORE);
        server
    });
    for (descriptors, bar) in [(1, Some(0.85)), (2, None)] {
        compare(&servers, descriptors, bar);
    }
}

fn compare([door, echo]: &[ServerProcess; 2], descriptors: usize, bar: Option<f64>) {
    let messages: Vec<Vec<u8>> = (0..KEYS).map(|key| request(key, descriptors).encode_to_vec()).collect();
    let mut results: [[Vec<f64>; 2]; 2] = Default::default();
    let mut ratios = Vec::new();
    for round in 0..=ROUNDS {
        let rates = [door, echo].map(|server| {
            let before = server.cpu_seconds();
            let (calls, seconds) = measure(server.address, &messages);
            (calls / seconds, (server.cpu_seconds() - before) / calls * 1e6)
        });
        // The first round only warms up.
        if round > 0 {
            for (result, (rate, cpu_us)) in results.iter_mut().zip(rates) {
                result[0].push(rate);
                result[1].push(cpu_us);
            }
            ratios.push(rates[0].0 / rates[1].0);
        }
    }
    let [[door_rate, door_cpu], [echo_rate, echo_cpu]] =
        results.each_mut().map(|result| result.each_mut().map(|values| median(values)));
    println!(
        "  {descriptors} descriptor(s): RLS door {door_rate:>7.0}/s ({door_cpu:.1} µs of CPU), bare tonic {echo_rate:>7.0}/s ({echo_cpu:.1} µs)"
    );
    let what = format!("RLS door × bare tonic, {descriptors} descriptor(s)");
    match bar {
        Some(bar) => report_at_least(&what, median(&mut ratios), bar),
        None => println!("  {what:<58} {:>8.2}", median(&mut ratios)),
    }
}

/// The calls that are answered in a round, and its seconds.
fn measure(address: SocketAddr, messages: &[Vec<u8>]) -> (f64, f64) {
    let mut clients: Vec<FrameClient> = (0..CONNECTIONS).map(|_| FrameClient::connect(address)).collect();
    let mut next = messages.iter().cycle();
    let mut send = |client: &mut FrameClient| client.send(next.by_ref().take(IN_FLIGHT));
    clients.iter_mut().for_each(&mut send);
    let (start, mut calls) = (Instant::now(), 0);
    while start.elapsed() < ROUND {
        for client in &mut clients {
            client.receive(IN_FLIGHT);
            send(client);
            calls += IN_FLIGHT;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    clients.iter_mut().for_each(|client| client.receive(IN_FLIGHT));
    (calls as f64, seconds)
}

fn request(key: usize, descriptors: usize) -> RateLimitRequest {
    let entry = |key: &str, value: String| Entry { key: key.into(), value: value.into() };
    let descriptor = |entries| RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
    let client = descriptor(vec![
        entry("api_key", format!("sk_prod_{key:010}")),
        entry("path", "/v1/orders/7?page=2".to_owned()),
    ]);
    let address = descriptor(vec![entry("remote_address", format!("10.0.{}.{}", key / 256, key % 256))]);
    let descriptors = [client, address].into_iter().take(descriptors).collect();
    RateLimitRequest { domain: "edge".to_owned(), descriptors, hits_addend: 0 }
}

/// What a server process serves.
enum Served {
    Door,
    Echo,
}

fn serve(served: Served) {
    exit_with_parent();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it listens");
        match served {
            Served::Door => {
                println!("{address}");
                serve_door(listener).await;
            }
            Served::Echo => serve_echo(listener, address).await,
        }
    });
}

fn new_door() -> RlsDoor {
    let limiter = Arc::new(crate::workload::limiter(RULES, 1 << 26));
    let readiness = Arc::new(Readiness::default());
    readiness.set_rules_installed();
    let (headers, descriptors) = (HeaderOptions::default(), DescriptorCharging::default());
    RlsDoor { limiter, headers, descriptors, readiness }
}

async fn serve_door(listener: TcpListener) {
    let door = new_door();
    let tidied = Arc::clone(&door.limiter);
    tokio::spawn(async move {
        let mut every = tokio::time::interval(TIDY_EVERY);
        loop {
            every.tick().await;
            tidied.tidy();
        }
    });
    let options = RlsDoor::default_options();
    Arc::new(door).serve(listener, ListenerSetup::default(), std::future::pending(), options).await;
}

/// Answers with a copy of what the door answers to requests with as many descriptors.
struct EchoService([RateLimitResponse; 2]);

#[tonic::async_trait]
impl RateLimitService for EchoService {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let index = request.get_ref().descriptors.len().clamp(1, 2) - 1;
        Ok(Response::new(self.0[index].clone()))
    }
}

async fn serve_echo(listener: TcpListener, address: SocketAddr) {
    let door = new_door();
    let mut answers = Vec::new();
    for descriptors in [1, 2] {
        answers.push(door.decide(&request(0, descriptors)).await.expect("an answer"));
    }
    let answers = answers.try_into().expect("two answers");
    let service = RateLimitServiceServer::new(EchoService(answers));
    let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
    let serving = tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming);
    let verified = async {
        let mut client =
            RateLimitServiceClient::connect(format!("http://{address}")).await.expect("it listens");
        let answer = client.should_rate_limit(request(1, 1)).await.expect("it answers").into_inner();
        assert_eq!(answer.statuses.len(), 1);
        println!("{address}");
        std::future::pending::<()>().await;
    };
    tokio::select! {
        served = serving => served.expect("it serves"),
        () = verified => {}
    }
}
