//! `POST /v1/check` over keep-alive beside a bare hyper server with a constant response: same machine, client and
//! runtime, in turns.

use crate::measurement::{median, report_at_least};
use crate::workload::limiter;
use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;
use tokio::net::TcpListener;
use tollgate_http::HeaderOptions;
use tollgate_listen::ServeOptions;
use tollgate_server::{HttpDoor, Readiness};

const RULES: &str = r#"
rules:
  - id: orders
    match: { api_key_pattern: "sk_prod_*", endpoint_regex: "^/v1/orders.*" }
    params: { capacity: 1000000, refill_rate: 1000000, window: 60 }
"#;
const ROUNDS: usize = 9;
const CONNECTIONS: usize = 32;
const REQUESTS: usize = 60_000;

pub fn run() {
    println!("http: {REQUESTS} requests over {CONNECTIONS} connections, medians of {ROUNDS} rounds in turns");
    let Ok(runtime) = tokio::runtime::Runtime::new() else {
        eprintln!("cannot start a runtime");
        return;
    };
    let bare = runtime.block_on(listen());
    let ours = runtime.block_on(listen());
    let (bare_address, our_address) = (address(&bare), address(&ours));
    runtime.spawn(serve_constant(bare));
    let readiness = Arc::new(Readiness::default());
    readiness.set_rules_installed();
    let door =
        HttpDoor { limiter: Arc::new(limiter(RULES, 1 << 28)), headers: HeaderOptions::default(), readiness };
    runtime.spawn(Arc::new(door).serve(ours, std::future::pending(), ServeOptions::default()));

    let (mut bare_rates, mut our_rates) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let (bare_rate, our_rate) = (requests_per_second(bare_address), requests_per_second(our_address));
        // The first round only warms up.
        if round > 0 {
            bare_rates.push(bare_rate);
            our_rates.push(our_rate);
        }
    }
    let (bare_rate, our_rate) = (median(&mut bare_rates), median(&mut our_rates));
    println!("  bare hyper {bare_rate:>8.0}/s   POST /v1/check {our_rate:>8.0}/s");
    report_at_least("POST /v1/check × bare hyper", our_rate / bare_rate, 0.8);
}

async fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port")
}

fn address(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().expect("a bound listener has an address")
}

/// Hyper alone: 200 and a constant of about the length of a check response.
async fn serve_constant(listener: TcpListener) {
    const BODY: &[u8] = br#"{"allowed":true,"limit":1000000,"remaining":999999,"reset_after_ms":1,"retry_after_ms":0,"rule":"orders","degraded":false}"#;
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        tokio::spawn(async move {
            let service = service_fn(|_request| async {
                let mut response = Response::new(Full::new(Bytes::from_static(BODY)));
                let json = http::HeaderValue::from_static("application/json");
                response.headers_mut().insert(http::header::CONTENT_TYPE, json);
                Ok::<_, Infallible>(response)
            });
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// One thread keeps all connections busy, with one request on each at a time.
fn requests_per_second(address: SocketAddr) -> f64 {
    let mut connections: Vec<(TcpStream, Vec<u8>)> = (0..CONNECTIONS)
        .map(|number| {
            let stream = TcpStream::connect(address).expect("the server listens");
            stream.set_nodelay(true).expect("a connected socket takes options");
            (stream, request(number))
        })
        .collect();
    let start = Instant::now();
    let mut buffer = [0; 4096];
    for _ in 0..REQUESTS / CONNECTIONS {
        for (stream, request) in &mut connections {
            stream.write_all(request).expect("the server reads");
        }
        for (stream, _) in &mut connections {
            read_response(stream, &mut buffer);
        }
    }
    REQUESTS as f64 / start.elapsed().as_secs_f64()
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
