//! Long bodies and slow clients: memory holds only what is in transit.

use crate::fixture::{self, Pair};
use crate::raw_client::RawClient;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tollgate_gateway::settings::GatewaySettings;
use tollgate_testbed::{TestUpstream, eventually};

const GIGABYTE: u64 = 1 << 30;
/// The buffers of the connections in use, and what the allocator keeps of them.
const MOST_GROWTH_KB: u64 = 16 << 10;

/// A gateway in a separate process, whose memory can be measured.
struct Process {
    child: Child,
    address: std::net::SocketAddr,
}

impl Process {
    fn start(upstream: &TestUpstream) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "bodies::gateway_process", "--nocapture"]);
        command.env("GATEWAY_TEST_UPSTREAM", upstream.address().to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut addresses = lines.filter_map(|line| line.unwrap().strip_prefix("at ").map(str::to_owned));
        let address = addresses.next().expect("the process prints its address").parse().unwrap();
        Self { child, address }
    }

    /// The peak resident memory. The kernel updates it in steps, so it may seem to shrink a little.
    fn peak_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
// Not a test by itself: the gateway of other tests runs here, in a separate process.
fn gateway_process() {
    let Ok(upstream) = std::env::var("GATEWAY_TEST_UPSTREAM") else { return };
    let gateway = fixture::start(&GatewaySettings::to(fixture::at([upstream.parse().unwrap()])));
    println!("\nat {}", gateway.address());
    // Ends with the test that started it.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gigabyte_is_forwarded_in_constant_memory() {
    let server = TestUpstream::start("one").await;
    let gateway = Process::start(&server);
    let mut client = RawClient::connect(gateway.address).await;
    // Allocates the buffers that any request needs.
    assert_eq!(client.get("/big/1000000").await.body.len(), 1_000_000);
    client.ask("POST /count HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\nabc").await;
    let before = gateway.peak_kb();

    client.send(format!("GET /big/{GIGABYTE} HTTP/1.1\r\nHost: test\r\n\r\n")).await;
    assert_eq!(client.head().await.header("content-length"), GIGABYTE.to_string());
    let copied = tokio::io::copy(&mut (&mut client.stream).take(GIGABYTE), &mut tokio::io::sink()).await;
    assert_eq!(copied.unwrap(), GIGABYTE);
    let down = gateway.peak_kb().saturating_sub(before);

    client.send(format!("POST /count HTTP/1.1\r\nHost: test\r\nContent-Length: {GIGABYTE}\r\n\r\n")).await;
    let piece = vec![0; 256 << 10];
    for _ in 0..GIGABYTE / piece.len() as u64 {
        client.stream.get_mut().write_all(&piece).await.unwrap();
    }
    assert_eq!(client.reply().await.body, GIGABYTE.to_string());
    let both = gateway.peak_kb().saturating_sub(before);
    assert!(down < MOST_GROWTH_KB && both < MOST_GROWTH_KB, "{down} kB down, {both} kB in all");
}

#[tokio::test]
async fn clients_that_do_not_read_delay_no_others() {
    let server = TestUpstream::start("one").await;
    let gateway = Process::start(&server);
    let mut warm = RawClient::connect(gateway.address).await;
    warm.get("/big/1000000").await;
    let before = gateway.peak_kb();
    let mut slow = Vec::new();
    for number in 1..=50 {
        let mut client = RawClient::connect(gateway.address).await;
        client.send(format!("GET /big/{GIGABYTE} HTTP/1.1\r\nHost: test\r\n\r\n")).await;
        client.head().await;
        eventually("it was forwarded", async || server.seen().len() > number).await;
        slow.push(client);
    }
    for _ in 0..20 {
        assert_eq!(warm.get("/").await.body, "hello");
    }
    let each = gateway.peak_kb().saturating_sub(before) / 50;
    // Hyper fills its buffers on both sides.
    assert!(each < 1_024, "{each} kB per client that does not read");
}

#[tokio::test]
async fn bodies_are_forwarded_before_they_are_complete() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    client.send("POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n").await;
    let head = client.head().await;
    assert_eq!((head.status, head.header("transfer-encoding")), (200, "chunked"));
    let mut piece = [0; 8];
    client.stream.read_exact(&mut piece).await.unwrap();
    assert_eq!(&piece, b"3\r\nabc\r\n", "the response begins while the body is still being sent");
    client.send("2\r\nde\r\n0\r\n\r\n").await;
    let mut rest = [0; 12];
    client.stream.read_exact(&mut rest).await.unwrap();
    assert_eq!(&rest, b"2\r\nde\r\n0\r\n\r\n");
    assert_eq!(client.get("/").await.status, 200);
}

#[tokio::test]
async fn slow_clients_are_disconnected() {
    let pair = Pair::listening(|listen| {
        listen.options.head_time = Duration::from_millis(60);
        listen.options.idle_time = Duration::from_millis(120);
    })
    .await;
    // A head that does not end, one that never begins, and a partial HTTP/2 preface.
    for beginning in ["GET / HTTP/1.1\r\nHost: te", "", "PRI * HTTP"] {
        let mut client = pair.client().await;
        client.send(beginning).await;
        assert!(client.closed().await.is_empty(), "{beginning:?}");
    }
    // A client that requests a large response and does not read it.
    let mut client = pair.client().await;
    client.send(format!("GET /big/{GIGABYTE} HTTP/1.1\r\nHost: test\r\n\r\n")).await;
    client.head().await;
    eventually("it is cut", async || {
        // Its upstream connection is closed as well, so the next request needs another one.
        let mut other = pair.client().await;
        other.get("/").await;
        pair.server.connections() > 1
    })
    .await;
}

#[tokio::test]
async fn an_unfinished_upload_ends_its_upstream_connection() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    client.send("POST /count HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\nabc").await;
    eventually("it was forwarded", async || pair.server.seen().len() == 1).await;
    drop(client);
    // The upstream connection is not reused: the next request would be part of the body.
    let mut next = pair.client().await;
    assert_eq!(next.get("/").await.body, "hello");
}
