//! Which requests are retried and when, on virtual time.

use crate::virtual_server::{Body, VirtualServer, answer, get};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tollgate_client::{PaceSettings, RetrySettings, SendOnce, ThrottleLayer};
use tower::{Layer, ServiceExt};

/// A server that refuses the first `refusals` requests with `status` and this `Retry-After`.
fn refusing(refusals: usize, status: u16, retry_after: Option<&'static str>) -> VirtualServer {
    VirtualServer::new(move |number, _| {
        let mut answer = answer(if number < refusals { status } else { 200 });
        if let Some(wait) = retry_after.filter(|_| number < refusals) {
            answer = answer.header("retry-after", wait);
        }
        answer.body(Body::default()).unwrap()
    })
}

fn layer_with(retry: RetrySettings) -> ThrottleLayer {
    ThrottleLayer::new(PaceSettings::default(), retry)
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_is_retried_after_its_retry_time() {
    for _ in 0..50 {
        for status in [429, 503] {
            let server = refusing(3, status, Some("2"));
            let client = ThrottleLayer::default().layer(server.clone());
            let response = client.oneshot(get("http://a/")).await.unwrap();
            assert_eq!(response.status(), 200);
            let seen = server.seen();
            assert_eq!(seen.len(), 4);
            for (number, pair) in seen.windows(2).enumerate() {
                let gap = pair[1].0 - pair[0].0;
                let most = 2_020 + (200 << number);
                assert!((2_020..=most).contains(&gap), "{gap} ms");
            }
        }
    }
}

/// A limit on requests in flight states no time, neither when it refuses nor when it admits: only the backoff counts.
#[tokio::test(start_paused = true)]
async fn a_limit_without_times_is_retried_with_backoff_alone() {
    let policy = r#""busy";q=1;qu="concurrent-requests""#;
    for _ in 0..50 {
        let server = VirtualServer::new(move |number, _| {
            let answer = answer(if number < 2 { 429 } else { 200 })
                .header("x-ratelimit-limit", "1")
                .header("x-ratelimit-remaining", "0")
                .header("ratelimit-policy", policy)
                .header("ratelimit", r#""busy";r=0"#);
            answer.body(Body::default()).unwrap()
        });
        let client = ThrottleLayer::default().layer(server.clone());
        for _ in 0..3 {
            assert_eq!(client.clone().oneshot(get("http://a/")).await.unwrap().status(), 200);
        }
        let seen = server.seen();
        assert_eq!(seen.len(), 5);
        let latest = [20 + 200, 20 + 400, 20, 20];
        for (pair, latest) in seen.windows(2).zip(latest) {
            let gap = pair[1].0 - pair[0].0;
            assert!((20..=latest).contains(&gap), "{gap} ms of at most {latest}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn backoffs_without_retry_after_are_random_and_double() {
    let mut gaps: Vec<Vec<u128>> = vec![Vec::new(); 3];
    for _ in 0..300 {
        let server = refusing(3, 503, None);
        let client = ThrottleLayer::default().layer(server.clone());
        client.oneshot(get("http://a/")).await.unwrap();
        for (number, pair) in server.seen().windows(2).enumerate() {
            gaps[number].push(pair[1].0 - pair[0].0 - 20);
        }
    }
    for (number, gaps) in gaps.iter().enumerate() {
        let most = 200 << number;
        assert!(gaps.iter().all(|gap| *gap <= most + 1));
        let mean = gaps.iter().sum::<u128>() / gaps.len() as u128;
        assert!((most * 4 / 10..most * 6 / 10).contains(&mean), "{mean} of {most}");
    }
}

#[tokio::test(start_paused = true)]
async fn retry_after_may_be_a_date() {
    let server = VirtualServer::new(|number, _| {
        let answer = answer(if number == 0 { 429 } else { 200 });
        let answer = answer.header("date", "Mon, 16 Nov 2026 05:00:00 GMT");
        let answer = answer.header("retry-after", "Mon, 16 Nov 2026 05:00:07 GMT");
        answer.body(Body::default()).unwrap()
    });
    let client = ThrottleLayer::default().layer(server.clone());
    assert_eq!(client.oneshot(get("http://a/")).await.unwrap().status(), 200);
    let gap = server.seen()[1].0;
    assert!((7_020..7_300).contains(&gap), "{gap} ms");
}

#[tokio::test(start_paused = true)]
async fn attempts_are_bounded_and_the_last_response_is_returned() {
    let server = refusing(100, 429, Some("1"));
    let client = ThrottleLayer::default().layer(server.clone());
    assert_eq!(client.oneshot(get("http://a/")).await.unwrap().status(), 429);
    assert_eq!(server.seen().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_would_take_too_long_is_not_tried() {
    let server = refusing(100, 429, Some("61"));
    let client = ThrottleLayer::default().layer(server.clone());
    assert_eq!(client.oneshot(get("http://a/")).await.unwrap().status(), 429);
    assert_eq!(server.seen(), [(0, 429)]);
}

#[tokio::test(start_paused = true)]
async fn other_failures_are_not_retried() {
    for status in [400, 403, 500, 502, 504] {
        let server = refusing(100, status, Some("1"));
        let client = ThrottleLayer::default().layer(server.clone());
        assert_eq!(client.oneshot(get("http://a/")).await.unwrap().status(), status);
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn writes_are_retried_only_with_an_idempotency_key() {
    for (method, key, sent) in
        [("POST", None, 1), ("PATCH", None, 1), ("POST", Some("k-1"), 2), ("PUT", None, 2)]
    {
        let server = refusing(1, 503, None);
        let client = ThrottleLayer::default().layer(server.clone());
        let mut request = Request::builder().method(method).uri("http://a/").header("x-name", "kept");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let request = request.body(Full::new(Bytes::from_static(b"pay"))).unwrap();
        client.oneshot(request).await.unwrap();
        assert_eq!(server.seen().len(), sent, "{method} {key:?}");
        for headers in server.headers() {
            assert_eq!(headers["x-name"], "kept");
            assert_eq!(headers.get("idempotency-key").map(|key| key.to_str().unwrap()), key);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn streams_are_not_retried() {
    let server = refusing(1, 503, None);
    let client = ThrottleLayer::default().layer(server.clone());
    let request = Request::put("http://a/").body(SendOnce(Full::new(Bytes::from_static(b"stream")))).unwrap();
    assert_eq!(client.oneshot(request).await.unwrap().status(), 503);
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn retries_add_a_fifth_to_the_load_of_a_server_that_is_down() {
    let server = refusing(usize::MAX, 503, None);
    let client = layer_with(RetrySettings::default()).layer(server.clone());
    for _ in 0..1_000 {
        client.clone().oneshot(get("http://a/")).await.unwrap();
    }
    let sent = server.seen().len();
    assert!((1_190..=1_215).contains(&sent), "{sent} for 1,000 requests");
}
