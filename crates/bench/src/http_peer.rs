//! An endpoint of the HTTP door beside a bare hyper server that reads the same requests and answers the same bytes. Each server is a
//! process of its own on one core; the client has the other core, and keeps more requests in flight than the server answers.

use crate::gateway::process::{ServerProcess, exit_with_parent, pin};
use crate::measurement::{median, report_at_least};
use crate::workload::limiter;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use memchr::memmem;
use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;
use tokio::net::TcpListener;
use tollgate_http::{ForwardAuthOptions, HeaderOptions};
use tollgate_server::{ForwardAuth, HttpDoor, Readiness};

pub const RULES: &str = r#"
rules:
  - id: orders
    match: { api_key_pattern: "sk_prod_*", endpoint_regex: "^/v1/orders.*" }
    params: { capacity: 1000000, refill_rate: 1000000, window: 60 }
"#;
const ROUNDS: usize = 15;
const CONNECTIONS: usize = 16;
/// The requests that are sent at once on a connection.
const PIPELINE: usize = 16;
const REQUESTS: usize = 1 << 16;
const SERVER_CORE: &str = "0";
const CLIENT_CORE: &str = "1";
/// The headers of an admission under [`RULES`].
const HEADERS: [(&str, &str); 5] = [
    ("x-ratelimit-limit", "1000000"),
    ("x-ratelimit-remaining", "999999"),
    ("x-ratelimit-reset", "1794785125"),
    ("ratelimit-policy", "\"orders\";q=1000000;w=60"),
    ("ratelimit", "\"orders\";r=999999;t=1"),
];
const BODY: &[u8] = br#"{"allowed":true,"limit":1000000,"remaining":999999,"reset_after_ms":1,"retry_after_ms":0,"rule":"orders","degraded":false}"#;

/// The endpoint that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasuredEndpoint {
    Check,
    Auth,
}

impl MeasuredEndpoint {
    fn bench(self) -> &'static str {
        match self {
            Self::Check => "http",
            Self::Auth => "auth",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Check => "POST /v1/check",
            Self::Auth => "GET /v1/auth",
        }
    }

    /// A request of the client `number`.
    fn request(self, number: usize) -> String {
        match self {
            Self::Check => {
                let body =
                    format!(r#"{{"key":"sk_prod_{number:04}","endpoint":"/v1/orders/17","method":"GET"}}"#);
                let length = body.len();
                format!(
                    "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                     content-length: {length}\r\n\r\n{body}"
                )
            }
            // What nginx sends with the shipped configuration for a request of curl.
            Self::Auth => format!(
                "GET /v1/auth?deny_status=403 HTTP/1.1\r\nX-Original-Method: GET\r\nX-Original-URI: /v1/orders/17\r\n\
                 X-Forwarded-Host: shop.example\r\nX-Forwarded-For: 203.0.113.9\r\nHost: tollgate\r\n\
                 User-Agent: curl/8.5.0\r\nAccept: */*\r\nX-Api-Key: sk_prod_{number:04}\r\n\r\n"
            ),
        }
    }
}

/// Answers the arguments of a server process; false if there are none.
pub fn serve_role(endpoint: MeasuredEndpoint) -> bool {
    let role = std::env::args().nth(2);
    match role.as_deref() {
        Some("door") => serve(serve_door),
        Some("bare") => serve(async move |listener| serve_constant(listener, endpoint).await),
        _ => return false,
    }
    true
}

/// Compares both servers in turns.
pub fn compare(endpoint: MeasuredEndpoint, bar: f64) {
    println!(
        "{}: {CONNECTIONS} connections with pipelines of {PIPELINE}, medians of {ROUNDS} rounds in turns",
        endpoint.name()
    );
    pin(std::process::id(), CLIENT_CORE);
    let (bare, door) = (
        ServerProcess::start(endpoint.bench(), &["bare"]),
        ServerProcess::start(endpoint.bench(), &["door"]),
    );
    for server in [&bare, &door] {
        server.pin_all(SERVER_CORE);
    }
    let (mut bare_rates, mut our_rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (bare_rate, our_rate) = (rate(bare.address, endpoint), rate(door.address, endpoint));
        // The first round only warms up.
        if round > 0 {
            bare_rates.push(bare_rate);
            our_rates.push(our_rate);
            ratios.push(our_rate / bare_rate);
        }
    }
    let (bare_rate, our_rate) = (median(&mut bare_rates), median(&mut our_rates));
    println!("  bare hyper {bare_rate:>8.0}/s   {} {our_rate:>8.0}/s", endpoint.name());
    report_at_least(&format!("{} × bare hyper", endpoint.name()), median(&mut ratios), bar);
}

fn serve(serving: impl AsyncFnOnce(TcpListener)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        println!("{}", listener.local_addr().expect("a bound listener has an address"));
        exit_with_parent();
        serving(listener).await;
    });
}

async fn serve_door(listener: TcpListener) {
    let readiness = Arc::new(Readiness::default());
    readiness.set_rules_installed();
    let (limiter, headers) = (Arc::new(limiter(RULES, 1 << 28)), HeaderOptions::default());
    let forward_auth =
        ForwardAuth::new(Arc::clone(&limiter), headers, Arc::default(), ForwardAuthOptions::default());
    let door = HttpDoor { limiter, headers, forward_auth, readiness };
    Arc::new(door).serve(listener, std::future::pending(), HttpDoor::default_options()).await;
}

/// Hyper alone: reads the body, and answers a constant with as many bytes as the door.
async fn serve_constant(listener: TcpListener, endpoint: MeasuredEndpoint) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| async move {
                Ok::<_, Infallible>(constant(request, endpoint).await)
            });
            let connection =
                http1::Builder::new().writev(false).serve_connection(TokioIo::new(stream), service);
            let _ = connection.await;
        });
    }
}

async fn constant(request: Request<Incoming>, endpoint: MeasuredEndpoint) -> Response<Full<Bytes>> {
    let mut response = match endpoint {
        MeasuredEndpoint::Check => {
            let body = request.into_body().collect().await;
            assert!(body.is_ok_and(|body| !body.to_bytes().is_empty()), "a check has a body");
            let mut response = Response::new(Full::new(Bytes::from_static(BODY)));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        MeasuredEndpoint::Auth => Response::new(Full::default()),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// Requests per second, with all connections busy.
fn rate(address: SocketAddr, endpoint: MeasuredEndpoint) -> f64 {
    let connect = |number: usize| {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_nodelay(true).expect("a connected socket takes options");
        (stream, endpoint.request(number).repeat(PIPELINE).into_bytes())
    };
    let mut connections: Vec<(TcpStream, Vec<u8>)> = (0..CONNECTIONS).map(connect).collect();
    let status = memmem::Finder::new("HTTP/1.1 ");
    let mut buffer = vec![0; 1 << 16];
    let start = Instant::now();
    for (stream, requests) in &mut connections {
        stream.write_all(requests).expect("the server reads");
    }
    let rounds = REQUESTS / CONNECTIONS / PIPELINE;
    for round in 0..rounds {
        for (stream, requests) in &mut connections {
            read_responses(stream, &mut buffer, &status);
            // The next ones follow while the server is busy with other connections.
            if round + 1 < rounds {
                stream.write_all(requests).expect("the server reads");
            }
        }
    }
    REQUESTS as f64 / start.elapsed().as_secs_f64()
}

/// Reads a pipeline of responses. All have the same length but for some digits, so the last of them has arrived as a whole when it
/// ends as a response does.
fn read_responses(stream: &mut TcpStream, buffer: &mut [u8], status: &memmem::Finder<'_>) {
    let mut length = 0;
    loop {
        let read = stream.read(&mut buffer[length..]).expect("the server answers");
        assert!(read > 0, "the server closed the connection");
        length += read;
        let received = &buffer[..length];
        let is_end = received.ends_with(b"\r\n\r\n") || received.ends_with(b"}");
        if is_end && status.find_iter(received).count() == PIPELINE {
            break;
        }
    }
    assert!(buffer.starts_with(b"HTTP/1.1 200"), "every request passes");
}
