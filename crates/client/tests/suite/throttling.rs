//! A client that throttles itself, on virtual time.

use crate::virtual_server::{Body, VirtualServer, answer, get};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate_client::{PaceSettings, RetrySettings, Throttle, ThrottleError, ThrottleLayer};
use tower::{Layer, ServiceExt};

const NO_RETRY: RetrySettings = RetrySettings {
    attempts: 1,
    total: Duration::ZERO,
    first_backoff: Duration::ZERO,
    max_backoff: Duration::ZERO,
    budget_percent: 0,
    budget_reserve: 0,
};

fn throttled(server: &VirtualServer) -> Throttle<VirtualServer> {
    ThrottleLayer::new(PaceSettings::default(), NO_RETRY).layer(server.clone())
}

#[tokio::test(start_paused = true)]
async fn sequential_requests_are_never_refused() {
    let server = VirtualServer::windowed(10, 5);
    let client = throttled(&server);
    for _ in 0..95 {
        let answer = client.clone().oneshot(get("http://a/")).await.unwrap();
        assert_eq!(answer.status(), 200);
    }
    let took = server.seen().last().unwrap().0;
    assert!((40_000..55_000).contains(&took), "95 of 10 per 5 s took {took} ms");
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_are_rarely_refused() {
    let server = VirtualServer::windowed(20, 5);
    let client = throttled(&server);
    // The first response states the limit.
    client.clone().oneshot(get("http://a/")).await.unwrap();
    let mut tasks = JoinSet::new();
    for _ in 0..10 {
        let client = client.clone();
        tasks.spawn(async move {
            for _ in 0..30 {
                client.clone().oneshot(get("http://a/")).await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let (passed, refused) = (server.count(200), server.count(429));
    assert_eq!(passed + refused, 301);
    assert!(refused <= 3, "{refused} refused of 301");
    let took = server.seen().last().unwrap().0;
    assert!(took < 100_000, "301 of 20 per 5 s took {took} ms");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_would_wait_too_long_fails_at_once() {
    let server =
        VirtualServer::new(|_, _| answer(429).header("retry-after", "600").body(Body::default()).unwrap());
    let client = throttled(&server);
    client.clone().oneshot(get("http://a/")).await.unwrap();
    let before = Instant::now();
    match client.clone().oneshot(get("http://a/")).await {
        Err(ThrottleError::Throttled(throttled)) => {
            assert!(throttled.retry_after > Duration::from_secs(599));
            assert!(throttled.to_string().starts_with("not sent"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert_eq!(server.seen().len(), 1);
    // Another server is not affected.
    client.clone().oneshot(get("http://b/")).await.unwrap();
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn limits_are_tracked_per_key() {
    let server =
        VirtualServer::new(|_, _| answer(503).header("retry-after", "30").body(Body::default()).unwrap());
    let layer =
        ThrottleLayer::with_key(PaceSettings::default(), NO_RETRY, |parts| parts.uri.path().to_owned());
    let client = layer.layer(server.clone());
    client.clone().oneshot(get("http://a/one")).await.unwrap();
    client.clone().oneshot(get("http://a/two")).await.unwrap();
    client.clone().oneshot(get("http://b/one")).await.unwrap();
    let times: Vec<u128> = server.seen().iter().map(|(at, _)| *at / 1_000).collect();
    assert_eq!(times[..2], [0, 0]);
    assert!((30..33).contains(&times[2]), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_without_stated_limits_is_not_throttled() {
    let server = VirtualServer::new(|_, _| answer(200).body(Body::default()).unwrap());
    let client = throttled(&server);
    for _ in 0..100 {
        client.clone().oneshot(get("http://a/")).await.unwrap();
    }
    assert_eq!(server.seen().last().unwrap().0, 99 * 20);
}

#[tokio::test(start_paused = true)]
async fn cancelled_requests_are_not_counted() {
    let server = VirtualServer::windowed(5, 10);
    let client = throttled(&server);
    client.clone().oneshot(get("http://a/")).await.unwrap();
    for _ in 0..100 {
        let given_up = client.clone().oneshot(get("http://a/"));
        let _ = tokio::time::timeout(Duration::from_millis(1), given_up).await;
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    let before = Instant::now();
    assert_eq!(client.clone().oneshot(get("http://a/")).await.unwrap().status(), 200);
    assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
}
