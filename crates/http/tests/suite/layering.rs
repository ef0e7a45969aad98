//! The layer in front of a service: what it passes on, answers and adds.

use crate::limited_service::{LimitedService, get, limiter};
use http::header::CONTENT_TYPE;
use tollgate_http::{HeaderOptions, RateLimitLayer};
use tollgate_limiter::Clock;

const RULES: &str = "
rules:
  - { id: orders, endpoint: /orders, algorithm: fixed_window, limit: 2/min }
  - { id: costly, endpoint: /costly, algorithm: fixed_window, limit: 2/min }
allow: [sk_internal_*]
deny: [sk_bad]
";

#[tokio::test]
async fn only_limited_and_admitted_responses_have_headers() {
    let service = LimitedService::new(RULES, "");
    let orders = |key: &str| get("203.0.113.9", "/orders").with("x-api-key", key);
    let lines = tollgate_testbed::limit_headers;

    let response = service.send(orders("sk_1")).await;
    let expected = [
        "ratelimit-policy: \"orders\";q=2;w=60",
        "ratelimit: \"orders\";r=1;t=60",
        "x-ratelimit-limit: 2",
        "x-ratelimit-remaining: 1",
        "x-ratelimit-reset: 1800000060",
    ];
    assert_eq!(
        (response.status, response.body.as_str(), lines(&response.headers)),
        (200, "/orders", expected.map(str::to_owned).into())
    );

    service.send(orders("sk_1")).await;
    let response = service.send(orders("sk_1")).await;
    assert_eq!((response.status, &response.headers["retry-after"]), (429, &"60".parse().unwrap()));
    assert!(response.body.starts_with(r#"{"error":{"code":"RATE_LIMIT_EXCEEDED""#), "{}", response.body);
    assert_eq!(lines(&response.headers).len(), 6);
    let problem = service.send(orders("sk_1").with("accept", "application/problem+json")).await;
    assert_eq!(problem.headers[CONTENT_TYPE], "application/problem+json");

    let response = service.send(orders("sk_bad")).await;
    assert_eq!((response.status, lines(&response.headers)), (403, Vec::new()));
    assert!(response.body.contains(r#""code":"DENIED""#), "{}", response.body);
    for unlimited in [orders("sk_internal_7"), get("203.0.113.9", "/free")] {
        let response = service.send(unlimited).await;
        assert_eq!((response.status, lines(&response.headers)), (200, Vec::new()));
    }
}

#[tokio::test]
async fn a_request_that_can_never_pass_is_no_429() {
    let service =
        LimitedService::new(RULES, "{ cost: { header: X-Cost }, client_ip: { trusted: [10.0.0.0/8] } }");
    let response = service.send(get("10.0.0.1", "/costly").with("x-cost", "3")).await;
    assert_eq!((response.status, response.headers.get("retry-after")), (400, None));
    assert!(response.body.contains(r#""code":"COST_ABOVE_LIMIT""#), "{}", response.body);
    assert_eq!(service.send(get("10.0.0.1", "/costly").with("x-cost", "2")).await.status, 200);
    // The cost of an untrusted peer is ignored.
    assert_eq!(service.send(get("203.0.113.9", "/costly").with("x-cost", "3")).await.status, 200);
    let long = format!("/{}", "x".repeat(4096));
    assert_eq!(service.send(get("10.0.0.1", &long)).await.status, 400);
}

#[tokio::test]
async fn without_an_address_there_is_still_a_limit() {
    use tower::{Layer, ServiceExt, service_fn};
    let layer = RateLimitLayer::new(limiter(RULES, Clock::system())).headers(HeaderOptions::default());
    let service = layer.layer(service_fn(|_: http::Request<()>| async {
        Ok::<_, std::convert::Infallible>(http::Response::new(http_body_util::Empty::new()))
    }));
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let request = http::Request::get("/orders").body(()).unwrap();
        statuses.push(service.clone().oneshot(request).await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 429]);
}

#[tokio::test]
async fn limit_headers_of_the_inner_service_are_replaced() {
    use tower::{Layer, ServiceExt, service_fn};
    let layer = RateLimitLayer::new(limiter(RULES, Clock::system()));
    let service = layer.layer(service_fn(|_: http::Request<()>| async {
        let response = http::Response::builder().header("x-ratelimit-limit", "999").header("x-other", "1");
        response.body(http_body_util::Empty::new())
    }));
    let response = service.oneshot(http::Request::get("/orders").body(()).unwrap()).await.unwrap();
    let limits = response.headers().get_all("x-ratelimit-limit").iter();
    assert!(limits.eq(["2"]) && response.headers()["x-other"] == "1", "{:?}", response.headers());
}
