//! The layer in real servers: axum, hyper and tonic.

use crate::client::Client;
use crate::limited_service::limiter;
use axum::Router;
use axum::extract::ConnectInfo;
use axum::routing::get;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tollgate_http::RateLimitLayer;
use tollgate_limiter::Clock;
use tonic::transport::server::TcpConnectInfo;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;
use tower::Layer;

const RULES: &str = "
rules:
  - { id: hello, endpoint: /hello, key: ip, algorithm: fixed_window, limit: 2/h }
  - { id: health, endpoint: /grpc.health.v1.Health/Check, algorithm: fixed_window, limit: 2/h }
deny: [sk_bad]
";

async fn bind() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn layer() -> RateLimitLayer {
    RateLimitLayer::new(limiter(RULES, Clock::system()))
}

async fn says_hello_twice(address: SocketAddr) {
    let mut client = Client::connect(address).await;
    let reply = client.get("/hello").await;
    assert_eq!(
        (reply.status, reply.body.as_str(), reply.header("x-ratelimit-remaining")),
        (200, "hello", "1")
    );
    // The router finds the path in its canonical form.
    assert_eq!(client.get("//%68ello").await.status, 200);
    let reply = client.get("/hello").await;
    assert_eq!((reply.status, reply.header("content-type")), (429, "application/json"));
    assert!(reply.body.contains("RATE_LIMIT_EXCEEDED"), "{}", reply.body);
    assert_eq!(client.get("/a%2fb").await.status, 400);
}

#[tokio::test]
async fn axum_around_the_router() {
    let (listener, address) = bind().await;
    let router = Router::new().route("/hello", get(|| async { "hello" }));
    let layer =
        layer().peer_from(|extensions| extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0));
    // Around the router, so that it routes by the path that was matched.
    let app = Router::new().fallback_service(layer.layer(router));
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(axum::serve(listener, app).into_future());
    says_hello_twice(address).await;
}

#[tokio::test]
async fn axum_on_a_route() {
    let (listener, address) = bind().await;
    let layer =
        layer().peer_from(|extensions| extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0));
    let router = Router::new().route("/hello", get(|| async { "hello" })).layer(layer);
    let app = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(axum::serve(listener, app).into_future());
    let mut client = Client::connect(address).await;
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(client.get("/hello").await.status);
    }
    assert_eq!(statuses, [200, 200, 429]);
}

#[tokio::test]
async fn hyper_with_a_peer_for_each_connection() {
    let (listener, address) = bind().await;
    let layer = layer();
    tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            let service = layer.for_peer(peer).layer(tower::service_fn(hello));
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
            tokio::spawn(connection);
        }
    });
    says_hello_twice(address).await;
}

async fn hello(
    request: http::Request<hyper::body::Incoming>,
) -> Result<http::Response<http_body_util::Full<bytes::Bytes>>, std::convert::Infallible> {
    assert_eq!(request.uri().path(), "/hello");
    Ok(http::Response::new("hello".into()))
}

/// A tonic server behind the layer, and a client of it.
async fn health() -> HealthClient<Channel> {
    let (listener, address) = bind().await;
    let (_, service) = tonic_health::server::health_reporter();
    let layer = layer().peer_from(|extensions| extensions.get::<TcpConnectInfo>()?.remote_addr());
    let server = Server::builder().layer(layer).add_service(service);
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    tokio::spawn(server.serve_with_incoming(incoming));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    HealthClient::new(channel.connect().await.unwrap())
}

fn check(key: &'static str) -> Request<HealthCheckRequest> {
    let mut request = Request::new(HealthCheckRequest { service: String::new() });
    request.metadata_mut().insert("x-api-key", key.parse().unwrap());
    request
}

#[tokio::test]
async fn tonic_callers_get_grpc_statuses() {
    let mut client = health().await;
    let response = client.check(check("sk_1")).await.unwrap();
    assert_eq!(response.metadata().get("x-ratelimit-remaining").unwrap(), "1");
    client.check(check("sk_1")).await.unwrap();

    let refused: Status = client.check(check("sk_1")).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, "Rate limit exceeded"));
    let info = refused.get_details_retry_info().expect("it says when to come back");
    let wait = info.retry_delay.unwrap();
    assert!(wait > Duration::ZERO && wait <= Duration::from_secs(3600), "{wait:?}");
    let response: u64 = refused.metadata().get("retry-after").unwrap().to_str().unwrap().parse().unwrap();
    assert!(
        Duration::from_secs(response) >= wait && Duration::from_secs(response - 1) < wait,
        "{response} {wait:?}"
    );

    let denied = client.check(check("sk_bad")).await.unwrap_err();
    assert_eq!(
        (denied.code(), denied.message()),
        (Code::PermissionDenied, "This client is on the deny list")
    );
    let mut twice = check("sk_2");
    twice.metadata_mut().append("x-api-key", "sk_3".parse().unwrap());
    let invalid = client.check(twice).await.unwrap_err();
    assert_eq!(invalid.code(), Code::InvalidArgument);
    assert!(invalid.message().contains("occurs twice"), "{invalid}");
}
