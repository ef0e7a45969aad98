//! The metrics of the gateway: every response, failure, connection and byte is counted once.

use crate::fixture::{self, Lines};
use crate::http2;
use crate::raw_client::RawClient;
use crate::raw_upstream::{End, RawUpstream};
use crate::tls::Files;
use http_body_util::BodyExt;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tollgate_gateway::Gateway;
use tollgate_gateway::settings::{GatewaySettings, RouteSettings, UpstreamSettings};
use tollgate_limiter::metrics::{
    HistogramSnapshot, MetricDefinition, MetricSample, MetricSamples, MetricValue, catalog,
};
use tollgate_listen::{ConnectionLimitOptions, ConnectionLimits, RefusalFastPath};
use tollgate_testbed::{TestUpstream, eventually};

const LOGIN: &str = "rules: [{ id: login, endpoint: /login, limit: 1/h }]";

/// The metrics at one time.
struct Metrics(MetricSamples);

impl Metrics {
    fn of(gateway: &Gateway) -> Self {
        Self(MetricSamples::of([gateway.metrics().as_ref()]))
    }

    fn sample(&self, metric: &MetricDefinition, labels: &[&str]) -> Option<&MetricSample> {
        let mut samples = self.0.of_metric(metric).iter();
        samples.find(|sample| sample.labels.iter().map(|label| &**label).eq(labels.iter().copied()))
    }

    fn count(&self, metric: &MetricDefinition, labels: &[&str]) -> u64 {
        self.sample(metric, labels).and_then(MetricSample::as_count).unwrap()
    }

    fn gauge(&self, metric: &MetricDefinition, labels: &[&str]) -> f64 {
        match self.sample(metric, labels).unwrap().value {
            MetricValue::Number(number) => number,
            ref other => panic!("{other:?}"),
        }
    }

    fn histogram(&self, metric: &MetricDefinition, labels: &[&str]) -> &HistogramSnapshot {
        match &self.sample(metric, labels).unwrap().value {
            MetricValue::Histogram(histogram) => histogram,
            other => panic!("{other:?}"),
        }
    }

    /// The counts that are not 0, as text.
    fn nonzero(&self, metric: &MetricDefinition) -> Vec<String> {
        let samples = self.0.of_metric(metric).iter().filter(|sample| sample.as_count() != Some(0));
        samples.map(|sample| format!("{} {}", sample.labels.join(" "), sample.as_count().unwrap())).collect()
    }
}

/// Host, path and body of a request, and the status of its response.
const SCRIPT: [(&str, &str, &str, u16); 13] = [
    ("shop.example", "/", "", 200),
    ("shop.example", "/echo", "12345", 200),
    ("shop.example", "/big/100000", "", 200),
    ("test", "/status/404", "", 404),
    ("test", "/status/302", "", 302),
    ("test", "/status/500", "", 500),
    ("test", "/", "", 404),
    ("shop.example", "/login", "", 200),
    ("shop.example", "/login", "", 429),
    ("shop.example", "/login", "", 429),
    ("shop.example", "/login", "", 429),
    ("shop.example", "/login", "", 429),
    ("shop.example", "/login", "", 429),
];

/// Of the refusals in the script, those that the fast path makes.
const FAST: u64 = 3;

/// A route by host and one by path; other requests have no route.
fn routed(server: &TestUpstream) -> GatewaySettings {
    let mut settings = GatewaySettings::to(fixture::upstream(&[server]));
    let upstream = "servers".to_owned();
    settings.routes = vec![
        RouteSettings {
            hosts: vec!["shop.example".to_owned()],
            upstream: upstream.clone(),
            ..Default::default()
        },
        RouteSettings { paths: vec!["/status/".to_owned()], upstream, ..Default::default() },
    ];
    settings
}

/// Compares the metrics with the script. `sent` is the length of all response bodies.
fn assert_script_is_counted(metrics: &Metrics, sent: u64, unmeasured: u64) {
    assert_eq!(
        metrics.nonzero(&catalog::GATEWAY_REQUESTS),
        [
            " 4xx 1",
            "shop.example/ 2xx 4",
            "shop.example/ 4xx 5",
            "/status 3xx 1",
            "/status 4xx 1",
            "/status 5xx 1"
        ]
    );
    let duration = metrics.histogram(&catalog::GATEWAY_DURATION, &["admitted"]);
    let refused = metrics.histogram(&catalog::GATEWAY_DURATION, &["refused"]);
    assert_eq!((duration.count(), refused.count()), (8, 5 - unmeasured));
    let upstream = metrics.histogram(&catalog::UPSTREAM_DURATION, &["servers"]);
    assert_eq!(upstream.count(), 7, "refusals and requests without a route reach no server");
    assert!(0.0 < upstream.sum && upstream.sum <= duration.sum, "{upstream:?} {duration:?}");
    assert_eq!(metrics.count(&catalog::GATEWAY_BYTES, &["received"]), 5);
    assert_eq!(metrics.count(&catalog::GATEWAY_BYTES, &["sent"]), sent);
    assert!(metrics.nonzero(&catalog::UPSTREAM_ERRORS).is_empty());
    assert_eq!(metrics.count(&catalog::UPSTREAM_RETRIES, &["servers"]), 0);
    assert_eq!(metrics.count(&catalog::GATEWAY_CONNECTIONS_OPENED, &[]), 1);
    assert_eq!(metrics.gauge(&catalog::GATEWAY_CONNECTIONS, &[]), 1.0);
    assert_eq!(metrics.count(&catalog::GATEWAY_CONNECTIONS_REFUSED, &[]), 0);
    assert!(metrics.sample(&catalog::TLS_HANDSHAKES, &["ok"]).is_none(), "the listener has no TLS");
}

/// Plays the script on one connection, and returns the length of all response bodies.
async fn play_http1(gateway: &Gateway) -> (RawClient, u64) {
    let mut client = RawClient::connect(gateway.address()).await;
    let mut sent = 0;
    for (host, path, body, status) in SCRIPT {
        let request = if body.is_empty() {
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")
        } else {
            format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        };
        let reply = client.ask(&request).await;
        assert_eq!(reply.status, status, "{host} {path}");
        sent += reply.body.len() as u64;
    }
    (client, sent)
}

#[tokio::test]
async fn requests_over_http1_are_counted() {
    for (fast_path, unmeasured) in [(RefusalFastPath::Enabled, FAST), (RefusalFastPath::Disabled, 0)] {
        let server = TestUpstream::start("one").await;
        let mut listen = fixture::listen();
        listen.options.refusal_fast_path = fast_path;
        let gateway = Gateway::start(&routed(&server), &fixture::limits(LOGIN), &listen).unwrap();
        let (client, sent) = play_http1(&gateway).await;
        let metrics = Metrics::of(&gateway);
        assert_script_is_counted(&metrics, sent, unmeasured);
        assert!(metrics.0.of_metric(&catalog::LOG_LINES_DROPPED).is_empty(), "there is no access log");
        drop(client);
        eventually("the connection is closed", async || {
            Metrics::of(&gateway).gauge(&catalog::GATEWAY_CONNECTIONS, &[]) == 0.0
        })
        .await;
    }
}

#[tokio::test]
async fn requests_over_http2_are_counted() {
    let server = TestUpstream::start("one").await;
    let gateway = Gateway::start(&routed(&server), &fixture::limits(LOGIN), &fixture::listen()).unwrap();
    let mut client = http2::connect(gateway.address()).await;
    let mut sent = 0;
    for (host, path, body, status) in SCRIPT {
        let mut request = http2::request(path, body);
        *request.uri_mut() = format!("http://{host}{path}").parse().unwrap();
        let response = client.send_request(request).await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{host} {path}");
        sent += response.into_body().collect().await.unwrap().to_bytes().len() as u64;
    }
    assert_script_is_counted(&Metrics::of(&gateway), sent, 0);
}

#[tokio::test]
async fn an_access_log_changes_no_count() {
    let (server, lines) = (TestUpstream::start("one").await, Lines::default());
    let mut listen = fixture::listen();
    listen.log = Some(fixture::access_log(&lines, |_| ()));
    let gateway = Gateway::start(&routed(&server), &fixture::limits(LOGIN), &listen).unwrap();
    let (_client, sent) = play_http1(&gateway).await;
    let metrics = Metrics::of(&gateway);
    assert_script_is_counted(&metrics, sent, FAST);
    assert_eq!(metrics.count(&catalog::LOG_LINES_DROPPED, &["access"]), 0);
    eventually("all are logged", async || lines.text().lines().count() == SCRIPT.len()).await;
}

#[tokio::test]
async fn metrics_of_a_gateway_without_requests() {
    let server = TestUpstream::start("one").await;
    let gateway = fixture::start(&routed(&server));
    let metrics = Metrics::of(&gateway);
    for route in ["", "shop.example/", "/status"] {
        for status in ["2xx", "3xx", "4xx", "5xx"] {
            assert_eq!(metrics.count(&catalog::GATEWAY_REQUESTS, &[route, status]), 0, "{route} {status}");
        }
    }
    assert_eq!(metrics.histogram(&catalog::GATEWAY_DURATION, &["admitted"]).count(), 0);
    assert_eq!(metrics.gauge(&catalog::UPSTREAM_HEALTHY, &["servers", &server.url()]), 1.0);
}

fn failing(upstream: UpstreamSettings) -> Gateway {
    fixture::start(&GatewaySettings::to(upstream))
}

#[tokio::test]
async fn a_server_that_is_down_is_counted_until_it_is_unhealthy() {
    let server = TestUpstream::start("one").await;
    let (url, mut upstream) = (server.url(), fixture::upstream(&[&server]));
    upstream.first_ejection = Duration::from_secs(60);
    let gateway = failing(upstream);
    server.end().await;
    let mut client = RawClient::connect(gateway.address()).await;
    // Each request is retried once, and the fifth failure ejects the server.
    for (status, connect, no_healthy_server, retries, healthy) in
        [(502, 2, 0, 1, 1.0), (502, 4, 0, 2, 1.0), (503, 5, 1, 3, 0.0), (503, 5, 2, 3, 0.0)]
    {
        assert_eq!(client.get("/").await.status, status);
        let metrics = Metrics::of(&gateway);
        let errors = |kind| metrics.count(&catalog::UPSTREAM_ERRORS, &["servers", kind]);
        assert_eq!((errors("connect"), errors("no_healthy_server")), (connect, no_healthy_server));
        assert_eq!(metrics.count(&catalog::UPSTREAM_RETRIES, &["servers"]), retries);
        assert_eq!(metrics.gauge(&catalog::UPSTREAM_HEALTHY, &["servers", &url]), healthy);
    }
    let metrics = Metrics::of(&gateway);
    assert_eq!(metrics.nonzero(&catalog::GATEWAY_REQUESTS), ["/ 5xx 4"]);
    assert_eq!(metrics.histogram(&catalog::UPSTREAM_DURATION, &["servers"]).count(), 0);
    assert_eq!(metrics.histogram(&catalog::GATEWAY_DURATION, &["admitted"]).count(), 4);
}

#[tokio::test]
async fn a_retry_on_another_server_is_one_response() {
    let (gone, good) = (TestUpstream::start("gone").await, TestUpstream::start("good").await);
    let mut upstream = fixture::upstream(&[&gone, &good]);
    (upstream.most_failures, upstream.first_ejection) = (1, Duration::from_secs(60));
    let addresses = [gone.url(), good.url()];
    let gateway = failing(upstream);
    gone.end().await;
    let mut client = RawClient::connect(gateway.address()).await;
    for _ in 0..4 {
        assert_eq!(client.get("/").await.status, 200);
    }
    let metrics = Metrics::of(&gateway);
    assert_eq!(metrics.nonzero(&catalog::GATEWAY_REQUESTS), ["/ 2xx 4"]);
    assert_eq!(metrics.nonzero(&catalog::UPSTREAM_ERRORS), ["servers connect 1"]);
    assert_eq!(metrics.nonzero(&catalog::UPSTREAM_RETRIES), ["servers 1"]);
    assert_eq!(metrics.histogram(&catalog::UPSTREAM_DURATION, &["servers"]).count(), 4);
    let healthy = addresses.map(|url| metrics.gauge(&catalog::UPSTREAM_HEALTHY, &["servers", &url]));
    assert_eq!(healthy, [0.0, 1.0]);
}

fn script(target: &str) -> (&'static str, End) {
    match target {
        "/invalid" => ("hello there\r\n\r\n", End::Close),
        "/upgrade" => ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", End::Stay),
        "/reset" => ("", End::Reset),
        _ => ("", End::Close),
    }
}

#[tokio::test]
async fn failures_are_counted_by_kind() {
    let server = RawUpstream::start(script).await;
    // The requests that are sent, their failures, and how many of them are retries.
    for (request, kind, errors, retries) in [
        ("GET /invalid", "protocol", 1, 0),
        ("GET /upgrade", "protocol", 1, 0),
        ("GET /nothing", "closed", 2, 1),
        ("POST /nothing", "closed", 1, 0),
        ("GET /reset", "closed", 2, 1),
    ] {
        let gateway = failing(fixture::at([server.address]));
        let mut client = RawClient::connect(gateway.address()).await;
        let reply = client.ask(&format!("{request} HTTP/1.1\r\nHost: test\r\n\r\n")).await;
        assert_eq!(reply.status, 502, "{request}");
        let metrics = Metrics::of(&gateway);
        let expected = format!("servers {kind} {errors}");
        assert_eq!(metrics.nonzero(&catalog::UPSTREAM_ERRORS), [expected], "{request}");
        assert_eq!(metrics.count(&catalog::UPSTREAM_RETRIES, &["servers"]), retries, "{request}");
        assert_eq!(metrics.nonzero(&catalog::GATEWAY_REQUESTS), ["/ 5xx 1"], "{request}");
    }
}

#[tokio::test]
async fn timeouts_are_counted_by_kind() {
    let server = TestUpstream::start("one").await;
    let time = Duration::from_millis(50);
    let gateway = failing(UpstreamSettings { response_time: time, ..fixture::upstream(&[&server]) });
    let mut client = RawClient::connect(gateway.address()).await;
    assert_eq!(client.get("/gated").await.status, 504);
    let metrics = Metrics::of(&gateway);
    assert_eq!(metrics.nonzero(&catalog::UPSTREAM_ERRORS), ["servers timeout 1"]);
    assert!(metrics.histogram(&catalog::GATEWAY_DURATION, &["admitted"]).sum >= time.as_secs_f64());

    // The TLS handshake gets no response.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addresses = vec![format!("https://{}", silent.local_addr().unwrap()).parse().unwrap()];
    let gateway = failing(UpstreamSettings { connect_time: time, addresses, retries: 0, ..fixture::at([]) });
    let mut client = RawClient::connect(gateway.address()).await;
    assert_eq!(client.get("/").await.status, 502);
    assert_eq!(Metrics::of(&gateway).nonzero(&catalog::UPSTREAM_ERRORS), ["servers connect_timeout 1"]);
}

#[tokio::test]
async fn refused_connections_are_counted() {
    let server = TestUpstream::start("one").await;
    let options = ConnectionLimitOptions { most_connections: 1, ..ConnectionLimitOptions::default() };
    let mut listen = fixture::listen();
    listen.setup.limits = Some(ConnectionLimits::new(options));
    let settings = GatewaySettings::to(fixture::upstream(&[&server]));
    let gateway = Gateway::start(&settings, &fixture::limits("allow_empty: true"), &listen).unwrap();
    let mut client = RawClient::connect(gateway.address()).await;
    assert_eq!(client.get("/").await.status, 200);
    for _ in 0..3 {
        assert!(RawClient::connect(gateway.address()).await.closed().await.is_empty());
    }
    let metrics = Metrics::of(&gateway);
    assert_eq!(metrics.count(&catalog::GATEWAY_CONNECTIONS_REFUSED, &[]), 3);
    assert_eq!(metrics.count(&catalog::GATEWAY_CONNECTIONS_OPENED, &[]), 1);
    assert_eq!(metrics.gauge(&catalog::GATEWAY_CONNECTIONS, &[]), 1.0);
}

#[tokio::test]
async fn tls_handshakes_are_counted() {
    let files = Files::new();
    let pair = files.pair().await;
    let mut first = RawClient::over(files.connect(&pair, &[b"http/1.1"]).await);
    assert_eq!(first.get("/").await.status, 200);
    let mut second = http2::client(files.connect(&pair, &[b"h2"]).await).await;
    assert_eq!(second.send_request(http2::request("/", "")).await.unwrap().status(), 200);
    // Not TLS, and nothing at all until the timeout.
    for said in ["GET / HTTP/1.1\r\nHost: test\r\n\r\n", ""] {
        let mut client = pair.client().await;
        client.send(said).await;
        client.closed().await;
    }
    let metrics = Metrics::of(&pair.gateway);
    assert_eq!(metrics.nonzero(&catalog::TLS_HANDSHAKES), ["ok 2", "failed 2"]);
    assert_eq!(metrics.count(&catalog::GATEWAY_CONNECTIONS_OPENED, &[]), 4);
    assert_eq!(metrics.nonzero(&catalog::GATEWAY_REQUESTS), ["/ 2xx 2"]);
}

#[tokio::test]
async fn the_bytes_of_a_tunnel_are_counted_when_it_ends() {
    let server = TestUpstream::start("one").await;
    let gateway = failing(fixture::upstream(&[&server]));
    let mut client = RawClient::connect(gateway.address()).await;
    client.send("GET /ws HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").await;
    assert_eq!(client.head().await.status, 101);
    client.send("12345").await;
    client.stream.read_exact(&mut [0; 5]).await.unwrap();
    let metrics = Metrics::of(&gateway);
    assert_eq!(metrics.nonzero(&catalog::GATEWAY_REQUESTS), ["/ 1xx 1"]);
    assert_eq!(metrics.gauge(&catalog::GATEWAY_CONNECTIONS, &[]), 1.0, "a tunnel is an open connection");
    drop(client);
    eventually("the tunnel has ended", async || {
        let metrics = Metrics::of(&gateway);
        metrics.gauge(&catalog::GATEWAY_CONNECTIONS, &[]) == 0.0
            && metrics.nonzero(&catalog::GATEWAY_BYTES) == ["received 5", "sent 5"]
    })
    .await;
}
