//! A gRPC service behind a limit, and a client that exceeds it.
//!
//! `cargo run -p tollgate-example-layers --bin tonic` serves, calls four times and prints the results. The fourth is
//! RESOURCE_EXHAUSTED, with the retry time.

use std::error::Error;
use tollgate_http::RateLimitLayer;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// The path of a gRPC call is its service and method.
const RULES: &str = "rules: [{ id: health, endpoint: /grpc.health.v1.Health/Check, limit: 3/min }]";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;

    // tonic keeps the peer's address in an extension of the request.
    let layer = RateLimitLayer::new(tollgate_example_layers::limiter(RULES)?)
        .peer_from(|extensions| extensions.get::<TcpConnectInfo>()?.remote_addr());

    // Any service will do; this one comes with tonic.
    let (_reporter, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let channel = Channel::from_shared(format!("http://{address}"))?.connect().await?;
    let mut client = HealthClient::new(channel);
    for number in 1..=4 {
        match client.check(HealthCheckRequest::default()).await {
            Ok(answer) => println!("{number}: {:?}", answer.metadata().get("x-ratelimit-remaining")),
            Err(status) => {
                println!("{number}: {status}, retry after {:?}", status.metadata().get("retry-after"))
            }
        }
    }
    Ok(())
}
