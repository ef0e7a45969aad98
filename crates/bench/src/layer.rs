//! The time that the tower layer adds to a bare axum handler, called in the same thread.

use crate::measurement::{median, report_at_most};
use crate::workload::limiter;
use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use tollgate_http::{HeaderOptions, RateLimitLayer};
use tower::{Layer, Service};

const RULES: &str = "
rules:
  - { id: orders, key: api_key, endpoint: '/v1/orders/{id}', params: { capacity: 1000000, refill_rate: 1000000 } }
";
const ROUNDS: usize = 41;
const CALLS: usize = 20_000;

pub fn run() {
    println!("layer: over a bare axum handler, medians of {ROUNDS} rounds taken in turns");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let app = || Router::new().route("/v1/orders/{id}", get(|| async { "hello" }));
    let peer: SocketAddr = ([127, 0, 0, 1], 4000).into();
    let layer = RateLimitLayer::new(Arc::new(limiter(RULES, 1 << 26))).for_peer(peer);
    let (mut bare, mut limited) = (app(), layer.clone().layer(app()));
    let mut plain = layer
        .headers(HeaderOptions { x_ratelimit: false, ratelimit: false, ..HeaderOptions::default() })
        .layer(app());
    let (mut bares, mut added, mut added_plain) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let bare_ns = runtime.block_on(nanos(&mut bare));
        let limited_ns = runtime.block_on(nanos(&mut limited));
        let plain_ns = runtime.block_on(nanos(&mut plain));
        bares.push(bare_ns);
        added.push(limited_ns - bare_ns);
        added_plain.push(plain_ns - bare_ns);
    }
    println!(
        "  bare {:.0} ns; the layer adds {:.0} ns, without headers {:.0} ns",
        median(&mut bares),
        median(&mut added),
        median(&mut added_plain)
    );
    report_at_most("added by the layer, µs", median(&mut added) / 1e3, 1.0);
}

async fn nanos<S, B>(service: &mut S) -> f64
where
    S: Service<Request<Body>, Response = http::Response<B>>,
{
    let mut nanos = 0;
    for _ in 0..CALLS / 100 {
        let requests: Vec<Request<Body>> = (0..100).map(|_| request()).collect();
        let mut responses = Vec::with_capacity(requests.len());
        let start = Instant::now();
        for request in requests {
            responses.push(service.call(request).await.ok().expect("a response"));
        }
        nanos += start.elapsed().as_nanos();
        assert!(responses.iter().all(|response| response.status() == 200), "every request passes");
    }
    nanos as f64 / CALLS as f64
}

fn request() -> Request<Body> {
    let request = Request::get("/v1/orders/17").header("host", "api.example.com");
    request.header("x-api-key", "sk_prod_0000000001").body(Body::empty()).expect("a request")
}
