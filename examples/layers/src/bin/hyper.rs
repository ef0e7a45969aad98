//! A hyper service behind a limit.
//!
//! `cargo run -p tollgate-example-layers --bin hyper`, then
//! `for i in 1 2 3 4; do curl -i http://127.0.0.1:3000/hello; done`: the fourth is a 429.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::error::Error;
use tollgate_http::RateLimitLayer;
use tower::{Layer, service_fn};

/// Three requests a minute by API key, or by address without one.
const RULES: &str = "rules: [{ id: hello, limit: 3/min }]";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let layer = RateLimitLayer::new(tollgate_example_layers::limiter(RULES)?);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, peer) = listener.accept().await?;
        // The accept loop knows the peer. All connections share one limiter.
        let service = layer.for_peer(peer).layer(service_fn(hello));
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
            if let Err(error) = connection.await {
                eprintln!("{peer}: {error}");
            }
        });
    }
}

async fn hello(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(format!("Hello, {}!\n", request.uri().path()).into()))
}
