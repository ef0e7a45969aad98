//! The limit as a client sees it, over real HTTP and in real time.

#![expect(clippy::disallowed_methods, reason = "real time is what is measured")]

use crate::client::{Client, Reply};
use crate::fixture::door;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tollgate_limiter::Clock;
use tollgate_listen::ServeOptions;

const CAPACITY: f64 = 100.0;
const REFILL_RATE: f64 = 1.67;
const CONNECTIONS: usize = 10;
const CHECKS_EACH: usize = 50;

/// 500 checks in one second: no more are admitted than the bucket held and gained, and a client that waits for its
/// `Retry-After` is admitted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_gets_its_limit_and_an_exact_retry_after() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = door(Clock::system()).serve(listener, std::future::pending(), ServeOptions::default());
    let server = tokio::spawn(server);

    let first_sent = Instant::now();
    let senders: Vec<_> = (0..CONNECTIONS).map(|_| tokio::spawn(send(address))).collect();
    let mut replies = Vec::new();
    for sender in senders {
        replies.extend(sender.await.unwrap());
    }
    let took = first_sent.elapsed();

    assert_eq!(replies.len(), CONNECTIONS * CHECKS_EACH);
    let (passed, limited): (Vec<_>, Vec<_>) = replies.iter().partition(|reply| reply.status == 200);
    let most = CAPACITY + REFILL_RATE * took.as_secs_f64();
    assert!(passed.len() as f64 <= most, "{} passed in {took:?}", passed.len());
    assert!(passed.len() as f64 >= CAPACITY, "only {} passed", passed.len());
    assert!(limited.iter().all(|reply| reply.status == 429 && reply.header("retry-after") == "1"));

    let mut client = Client::connect(address).await;
    let mut last = client.post("/v1/check", ORDER).await;
    while last.status == 200 {
        last = client.post("/v1/check", ORDER).await;
    }
    let retry_after: u64 = last.header("retry-after").parse().unwrap();
    tokio::time::sleep(Duration::from_secs(retry_after)).await;
    assert_eq!(client.post("/v1/check", ORDER).await.status, 200);
    server.abort();
}

const ORDER: &str = r#"{"key":"sk_1","endpoint":"/v1/orders"}"#;

/// Checks spread over one second.
async fn send(address: SocketAddr) -> Vec<Reply> {
    let mut client = Client::connect(address).await;
    let mut pace = tokio::time::interval(Duration::from_secs(1) / CHECKS_EACH as u32);
    let mut replies = Vec::with_capacity(CHECKS_EACH);
    for _ in 0..CHECKS_EACH {
        pace.tick().await;
        replies.push(client.post("/v1/check", ORDER).await);
    }
    replies
}
