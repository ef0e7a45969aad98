//! The accept loop: bounds, keep-alive and drain, over real sockets.

use crate::client::{Client, post};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tollgate_http::{FullResponse, response};
use tollgate_listen::{ListenerSetup, Peer, ServeOptions, read_body, serve};

/// A server under test. `/gated` reports that it was called, and waits for a permit; `/echo` reads a body of at most 1,000 bytes;
/// everything else responds at once.
struct Server {
    address: SocketAddr,
    begun: Arc<Semaphore>,
    gate: Arc<Semaphore>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<usize>,
}

impl Server {
    async fn start(options: ServeOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (begun, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (stop, stopped) = oneshot::channel::<()>();
        let gates = (Arc::clone(&begun), Arc::clone(&gate));
        let connect = move |peer: Peer| {
            assert!(peer.address.ip().is_loopback());
            let gates = gates.clone();
            service_fn(move |request| {
                let gates = gates.clone();
                async move { Ok::<_, Infallible>(respond(request, &gates.0, &gates.1).await) }
            })
        };
        let shutdown = async { stopped.await.unwrap_or_default() };
        let served = tokio::spawn(serve(listener, ListenerSetup::default(), connect, shutdown, options));
        Self { address, begun, gate, stop, served }
    }

    /// A connection with a request in flight.
    async fn begin(&self) -> Client {
        let mut client = Client::connect(self.address).await;
        client.send("GET /gated HTTP/1.1\r\nHost: test\r\n\r\n").await;
        self.begun.acquire().await.unwrap().forget();
        client
    }
}

async fn respond(request: Request<Incoming>, begun: &Semaphore, gate: &Semaphore) -> FullResponse {
    match request.uri().path() {
        "/gated" => {
            begun.add_permits(1);
            gate.acquire().await.unwrap().forget();
            response::text("finished")
        }
        "/echo" => match read_body(request.into_body(), 1_000, Duration::from_millis(50)).await {
            Ok(body) => Response::new(Full::new(body)),
            Err(error) => error.response(),
        },
        _ => Response::new(Full::new(Bytes::from_static(b"ok"))),
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = Server::start(ServeOptions::default()).await;
    let mut client = Client::connect(server.address).await;
    let bodies: Vec<String> = (0..50).map(|index| "x".repeat(index)).collect();
    let requests: Vec<u8> = bodies.iter().flat_map(|body| post("/echo", "", body)).collect();
    client.send(requests).await;
    for body in bodies {
        assert_eq!(client.reply().await.body, body);
    }
    assert_eq!(client.get("/").await.status, 200);
}

#[tokio::test]
async fn bodies_are_bounded_in_size_and_time() {
    let server = Server::start(ServeOptions::default()).await;
    let head = "POST /echo HTTP/1.1\r\nHost: test\r\n";
    let chunked = |size: usize| {
        format!("{head}Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n{}\r\n0\r\n\r\n", "x".repeat(size))
    };
    let table = [
        (String::from_utf8(post("/echo", "", "x".repeat(1_000))).unwrap(), 200),
        (String::from_utf8(post("/echo", "", "x".repeat(1_001))).unwrap(), 413),
        // Refused by its announced length.
        (format!("{head}Content-Length: 9000000000\r\n\r\n"), 413),
        (format!("{head}Content-Length: 1001\r\nExpect: 100-continue\r\n\r\n"), 413),
        (chunked(1_000), 200),
        (chunked(1_001), 413),
        // The announced bytes do not come.
        (format!("{head}Content-Length: 10\r\n\r\nx"), 408),
        (format!("{head}Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"), 400),
    ];
    for (request, status) in table {
        let mut client = Client::connect(server.address).await;
        client.send(&request).await;
        let shown: String = request.chars().take(120).collect();
        assert_eq!(client.reply().await.status, status, "{shown}");
    }
}

#[tokio::test]
async fn heads_are_bounded() {
    let server = Server::start(ServeOptions::default()).await;
    let table = [
        (format!("GET / HTTP/1.1\r\nHost: test\r\nX: {}\r\n\r\n", "x".repeat(15_000)), 200),
        (format!("GET / HTTP/1.1\r\nHost: test\r\nX: {}\r\n\r\n", "x".repeat(17_000)), 431),
        (format!("GET / HTTP/1.1\r\nHost: test\r\nX: {}\r\n\r\n", "x".repeat(1_000_000)), 431),
        (format!("GET / HTTP/1.1\r\nHost: test\r\n{}\r\n", "X: x\r\n".repeat(99)), 200),
        (format!("GET / HTTP/1.1\r\nHost: test\r\n{}\r\n", "X: x\r\n".repeat(100)), 431),
        ("nonsense\r\n\r\n".to_owned(), 400),
    ];
    for (request, status) in table {
        let mut client = Client::connect(server.address).await;
        client.send(&request[..request.len().min(20_000)]).await;
        if request.len() > 20_000 {
            client.send(&request[20_000..60_000]).await;
        }
        assert_eq!(client.reply().await.status, status, "{} bytes", request.len());
    }
}

#[tokio::test]
async fn a_slow_head_is_cut_and_an_idle_connection_is_not() {
    let server =
        Server::start(ServeOptions { head_time: Duration::from_millis(40), ..ServeOptions::default() }).await;
    let mut idle = Client::connect(server.address).await;
    idle.get("/").await;
    let mut busy = server.begin().await;
    // Each takes at least the head time, so that has passed for the idle connection too.
    for beginning in ["GET / HT", "GET / HTTP/1.1\r\nHost", ""] {
        let mut slow = Client::connect(server.address).await;
        slow.send(beginning).await;
        slow.closed().await;
    }
    let mut late = Client::connect(server.address).await;
    late.get("/").await;
    late.send("GET /").await;
    late.closed().await;
    assert_eq!(idle.get("/").await.status, 200);
    server.gate.add_permits(1);
    assert_eq!(busy.reply().await.body, "finished");
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_the_idle_time() {
    let options = ServeOptions {
        head_time: Duration::from_millis(20),
        idle_time: Duration::from_millis(60),
        ..ServeOptions::default()
    };
    let server = Server::start(options).await;
    let mut busy = server.begin().await;
    let mut idle = Client::connect(server.address).await;
    idle.get("/").await;
    idle.closed().await;
    server.gate.add_permits(1);
    assert_eq!(busy.reply().await.body, "finished");
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_to_be_accepted() {
    let server = Server::start(ServeOptions { most_connections: 1, ..ServeOptions::default() }).await;
    let mut first = Client::connect(server.address).await;
    first.get("/").await;
    let mut second = Client::connect(server.address).await;
    second.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await;
    first.get("/").await;
    assert!(second.is_silent());
    drop(first);
    assert_eq!(second.reply().await.status, 200);
}

#[tokio::test]
async fn a_drain_finishes_what_is_in_flight_and_closes_the_rest() {
    let server = Server::start(ServeOptions::default()).await;
    let mut fresh = Client::connect(server.address).await;
    let mut idle = Client::connect(server.address).await;
    idle.get("/").await;
    let mut busy = server.begin().await;
    server.stop.send(()).unwrap();
    idle.closed().await;
    fresh.closed().await;
    assert!(TcpStream::connect(server.address).await.is_err(), "the listener is closed");
    assert!(busy.is_silent());
    server.gate.add_permits(1);
    let reply = busy.reply().await;
    assert_eq!((reply.status, reply.header("connection"), reply.body.as_str()), (200, "close", "finished"));
    busy.closed().await;
    assert_eq!(server.served.await.unwrap(), 0);
}

#[tokio::test]
async fn a_drain_ends_with_the_grace_period() {
    let server =
        Server::start(ServeOptions { grace: Duration::from_millis(50), ..ServeOptions::default() }).await;
    let mut stuck = server.begin().await;
    server.stop.send(()).unwrap();
    assert_eq!(server.served.await.unwrap(), 1);
    stuck.closed().await;
}
