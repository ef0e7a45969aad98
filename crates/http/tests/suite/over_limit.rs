//! Requests over a limit, and requests in flight.

use crate::limited_service::{LimitedService, get};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use tollgate_http::HeaderOptions;
use tollgate_http::layer::{DecisionSummary, SharedPermit};
use tollgate_testbed::limit_headers;
use tower::{Layer, Service, ServiceExt, service_fn};

/// A service that responds with the values of the headers `names` of its request.
fn echo_headers(
    limited: &LimitedService,
    names: &'static [&'static str],
) -> impl Service<Request<Full<Bytes>>, Response = Response<String>, Error = Infallible> + Clone {
    let inner = service_fn(move |request: Request<Full<Bytes>>| async move {
        let values = |name: &&str| {
            let values = request.headers().get_all(*name).iter();
            values.map(|value| value.to_str().unwrap()).collect::<Vec<_>>().join("+")
        };
        let body = names.iter().map(values).collect::<Vec<_>>().join("|");
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(body)))
    });
    let layered = limited.layer.for_peer(SocketAddr::from(([203, 0, 113, 9], 1))).layer(inner);
    layered.and_then(|response: Response<_>| async move {
        let (parts, body) = response.into_parts();
        let body = BodyExt::collect(body).await.unwrap().to_bytes();
        Ok(Response::from_parts(parts, String::from_utf8(body.to_vec()).unwrap()))
    })
}

#[tokio::test]
async fn flags_reach_the_upstream_and_a_client_cannot_write_its_own() {
    let rules = "
rules:
  - { id: flagged, limit: 2/min, soft: 50%, on_exceed: { flag: { header: X-Captcha } } }
";
    let limited = LimitedService::new(rules, "");
    let service = echo_headers(&limited, &["x-captcha", "x-ratelimit-flag", "x_captcha", "connection"]);
    let mut found = Vec::new();
    for _ in 0..4 {
        let forged = get("203.0.113.9", "/").with("x-captcha", "no").with("X-RateLimit-Flag", "none");
        // An upstream may read the first as the flag, and a proxy may remove what the second names.
        let forged = forged.with("X_Captcha", "no").with("Connection", "close, X-Captcha");
        let response = service.clone().oneshot(forged.request()).await.unwrap();
        found.push(response.into_body());
    }
    assert_eq!(found, ["|||close", "|flagged;soft||close", "flagged|||close", "flagged|||close"]);
}

/// The response to one more request.
async fn status(limited: &LimitedService) -> (u16, HeaderMap, String) {
    let response = limited.send(get("203.0.113.9", "/")).await;
    (response.status, response.headers, response.body)
}

#[tokio::test]
async fn a_request_is_in_flight_until_its_body_has_ended() {
    let limited = LimitedService::new("rules: [{ id: one, algorithm: concurrency, limit: 1 }]", "");
    let inner = service_fn(|_: Request<Full<Bytes>>| async move {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("body")))
    });
    let service = limited.layer.for_peer(SocketAddr::from(([203, 0, 113, 9], 1))).layer(inner);
    let request = || get("203.0.113.9", "/").request();

    let mut response = service.clone().oneshot(request()).await.unwrap();
    let (refused, headers, body) = status(&limited).await;
    assert_eq!(refused, 429);
    assert!(body.contains("Limit of 1 request in flight exceeded"), "{body}");
    assert_eq!(headers["ratelimit-policy"], r#""one";q=1;qu="concurrent-requests""#);
    assert!(response.body_mut().frame().await.is_some());
    assert_eq!(status(&limited).await.0, 429, "its end has not been read");
    assert!(response.body_mut().frame().await.is_none());
    assert_eq!(status(&limited).await.0, 200);

    // It is not read.
    let response = service.clone().oneshot(request()).await.unwrap();
    assert_eq!(status(&limited).await.0, 429);
    drop(response);
    assert_eq!(status(&limited).await.0, 200);
}

/// Responses about a limit on requests in flight have its quota and what remains, and no time.
#[tokio::test]
async fn limits_on_requests_in_flight_have_no_retry_time() {
    let rules = "
rules:
  - { id: one, algorithm: concurrency, limit: 1 }
  - { id: rate, endpoint: /rate, algorithm: fixed_window, limit: 1/h }
";
    let limited = LimitedService::new(rules, "");
    let inner = service_fn(|_: Request<Full<Bytes>>| async move {
        // The service has limits of its own.
        let answer = Response::builder().header("x-ratelimit-reset", "7").body(Full::<Bytes>::from("body"));
        Ok::<_, Infallible>(answer.unwrap())
    });
    let options = HeaderOptions { legacy: true, ..HeaderOptions::default() };
    let layer = limited.layer.clone().headers(options);
    let service = layer.for_peer(SocketAddr::from(([203, 0, 113, 9], 1))).layer(inner);
    assert_eq!(limited.send(get("203.0.113.9", "/rate")).await.status, 200, "the only one of the hour");
    let held = service.clone().oneshot(get("203.0.113.9", "/").request()).await.unwrap();
    let of_the_limit = [
        "ratelimit-limit: 1",
        "ratelimit-policy: \"one\";q=1;qu=\"concurrent-requests\"",
        "ratelimit-remaining: 0",
        "ratelimit: \"one\";r=0",
        "x-ratelimit-limit: 1",
        "x-ratelimit-remaining: 0",
    ];
    assert_eq!(limit_headers(held.headers()), of_the_limit, "admitted");

    let of_the_rate = [
        "ratelimit-limit: 1",
        "ratelimit-policy: \"rate\";q=1;w=3600",
        "ratelimit-remaining: 0",
        "ratelimit-reset: 3600",
        "ratelimit: \"rate\";r=0;t=3600",
        "retry-after: 3600",
        "x-ratelimit-limit: 1",
        "x-ratelimit-remaining: 0",
        "x-ratelimit-reset: 1800003600",
    ];
    let json = "{\"error\":{\"code\":\"RATE_LIMIT_EXCEEDED\",\"message\":\"Limit of 1 request in flight exceeded\",\
                \"details\":{\"limit\":1,\"window_seconds\":0,\"retry_after_seconds\":null,\"reset_at\":null}}}";
    let json_of_the_rate = "{\"error\":{\"code\":\"RATE_LIMIT_EXCEEDED\",\"message\":\"Rate limit of 1 request per 3600 \
                            seconds exceeded\",\"details\":{\"limit\":1,\"window_seconds\":3600,\
                            \"retry_after_seconds\":3600,\"reset_at\":\"2027-01-15T09:00:00Z\"}}}";
    let problem = "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\"title\":\"Request \
                   cannot be satisfied as assigned quota has been exceeded\",\"status\":429,\"detail\":\"Limit of 1 \
                   request in flight exceeded\",\"violated-policies\":[\"one\"],\"retry_after_seconds\":null}";
    /// The path and a header of the request; the headers and the body of the response.
    type Row<'a> = (&'a str, (&'static str, &'a str), &'a [&'a str], &'a str);
    let rows: [Row<'_>; 5] = [
        ("/", ("accept", "*/*"), &of_the_limit, json),
        ("/", ("accept", "application/problem+json"), &of_the_limit, problem),
        ("/", ("content-type", "application/grpc"), &of_the_limit, ""),
        // Over another limit as well, whose time is known.
        ("/rate", ("accept", "*/*"), &of_the_rate, json_of_the_rate),
        ("/rate", ("content-type", "application/grpc"), &of_the_rate, ""),
    ];
    for (path, (name, value), headers, body) in rows {
        let asked = get("203.0.113.9", path).with(name, value);
        let response = service.clone().oneshot(asked.request()).await.unwrap();
        let (parts, found) = response.into_parts();
        let found = found.collect().await.unwrap().to_bytes();
        assert_eq!(limit_headers(&parts.headers), headers, "{path} {value}");
        assert_eq!(found, body, "{path} {value}");
        if name == "content-type" {
            assert_eq!((parts.status.as_u16(), &parts.headers["grpc-status"]), (200, &"8".parse().unwrap()));
            let has_retry_info = parts.headers.contains_key("grpc-status-details-bin");
            assert_eq!(has_retry_info, path == "/rate", "{path}");
        } else {
            assert_eq!(parts.status, 429);
        }
    }
}

/// Jitter makes no retry time where there is none.
#[tokio::test]
async fn jitter_adds_no_retry_time_of_its_own() {
    let limited = LimitedService::new("rules: [{ id: one, algorithm: concurrency, limit: 1 }]", "");
    let options: HeaderOptions = serde_json::from_str(r#"{"retry_jitter":"9s"}"#).unwrap();
    let layer = limited.layer.clone().headers(options).for_peer(SocketAddr::from(([203, 0, 113, 9], 1)));
    let inner = service_fn(|_: Request<Full<Bytes>>| async move {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("body")))
    });
    let service = layer.layer(inner);
    let _held = service.clone().oneshot(get("203.0.113.9", "/").request()).await.unwrap();
    for _ in 0..50 {
        let refused = service.clone().oneshot(get("203.0.113.9", "/").request()).await.unwrap();
        assert_eq!((refused.status().as_u16(), refused.headers().get("retry-after")), (429, None));
        limited.clock.advance_us(1);
    }
}

/// Also those of the soft part of a limit.
#[tokio::test]
async fn flagged_responses_carry_the_headers_of_the_limit() {
    // What remains and the reset, of four requests.
    let flagged = [("1", "30"), ("0", "60"), ("0", "60"), ("0", "60")];
    let soft = [("3", "15"), ("2", "30"), ("1", "45"), ("0", "60")];
    for (rule, limit, expected) in [
        ("limit: 2/min, on_exceed: flag", "2", flagged),
        ("limit: 2/min, soft: 50%, on_exceed: { flag: { header: X-Captcha } }", "2", flagged),
        ("limit: 4/min, soft: 50%", "4", soft),
    ] {
        let limited = LimitedService::new(&format!("rules: [{{ id: flagged, {rule} }}]"), "");
        for (remaining, reset) in expected {
            let (status, headers, _) = status(&limited).await;
            let expected = [
                format!("ratelimit-policy: \"flagged\";q={limit};w=60"),
                format!("ratelimit: \"flagged\";r={remaining};t={reset}"),
                format!("x-ratelimit-limit: {limit}"),
                format!("x-ratelimit-remaining: {remaining}"),
                format!("x-ratelimit-reset: 18000000{reset}"),
            ];
            assert_eq!((status, limit_headers(&headers)), (200, expected.to_vec()), "{rule}");
        }
    }
}

#[tokio::test]
async fn a_client_that_goes_away_is_not_in_flight() {
    let limited = LimitedService::new("rules: [{ id: one, algorithm: concurrency, limit: 1 }]", "");
    let never = service_fn(|_: Request<Full<Bytes>>| async move {
        std::future::pending::<()>().await;
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let service = limited.layer.for_peer(SocketAddr::from(([203, 0, 113, 9], 1))).layer(never);
    let waits = service.oneshot(get("203.0.113.9", "/").request());
    assert!(tokio::time::timeout(Duration::from_millis(20), waits).await.is_err());
    assert_eq!(status(&limited).await.0, 200);
}

/// Work that outlives the response counts for as long as it holds the permit.
#[tokio::test]
async fn work_that_holds_its_permit_is_in_flight() {
    let limited = LimitedService::new("rules: [{ id: one, algorithm: concurrency, limit: 1 }]", "");
    let (keep, mut kept) = tokio::sync::mpsc::unbounded_channel();
    let works = service_fn(move |request: Request<Full<Bytes>>| {
        let place = request.extensions().get::<SharedPermit>().cloned().unwrap();
        keep.send(place).unwrap();
        std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
    });
    let service = limited.layer.clone().for_peer(SocketAddr::from(([203, 0, 113, 9], 1))).layer(works);
    let asked = tokio::spawn(service.oneshot(get("203.0.113.9", "/").request()));
    let place = kept.recv().await.unwrap();
    assert_eq!(place.timeout(), Duration::from_secs(60));
    asked.abort();
    assert!(asked.await.is_err(), "the client has gone");
    assert_eq!(status(&limited).await.0, 429);
    drop(place);
    assert_eq!(status(&limited).await.0, 200);
}

#[tokio::test]
async fn a_queued_request_is_admitted() {
    let rules = "rules: [{ id: even, algorithm: leaky_bucket, limit: 10/s, on_exceed: queue }]";
    let limited = LimitedService::new(rules, "");
    assert_eq!(status(&limited).await.0, 200);
    let clock = limited.clock.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(30)).await;
        clock.advance_us(100_000);
    });
    assert_eq!(status(&limited).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn responses_have_a_summary_of_the_decision_if_the_layer_is_built_so() {
    for (rules, outcomes) in [
        ("rules: [{ id: one, limit: 1/h }]", ["allowed", "limited"]),
        ("rules: [{ id: one, limit: 1/h, on_exceed: flag }]", ["allowed", "flagged"]),
        ("rules: [{ id: one, limit: 1/h, on_exceed: shadow }]", ["allowed", "shadow_limited"]),
        ("rules: [{ id: one, limit: 1/h, on_exceed: { tarpit: { delay: 1s } } }]", ["allowed", "tarpitted"]),
        ("rules: [{ id: one, limit: 1/h }]\ndeny: [203.0.113.9]", ["denied", "denied"]),
    ] {
        let mut limited = LimitedService::new(rules, "");
        limited.layer = limited.layer.with_summaries();
        for outcome in outcomes {
            let request = get("203.0.113.9", "/").request();
            let response = echo_headers(&limited, &[]).oneshot(request).await.unwrap();
            let summary = response.extensions().get::<DecisionSummary>().unwrap();
            assert_eq!(summary.outcome.name(), outcome, "{rules}");
            let key: Vec<&str> = summary.key.iter().map(|part| part.value.as_str()).collect();
            assert_eq!(key, ["203.0.113.9"], "{rules}");
        }
    }
    let limited = LimitedService::new("allow_empty: true", "");
    let response = echo_headers(&limited, &[]).oneshot(get("203.0.113.9", "/").request()).await.unwrap();
    assert!(response.extensions().get::<DecisionSummary>().is_none());
}
