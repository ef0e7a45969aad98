//! A caller that throttles itself, on virtual time.

use crate::server::{Body, Server, answer, get};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate_client::{Error, PaceSettings, RetrySettings, Throttle, ThrottleLayer};
use tower::{Layer, ServiceExt};

const NO_RETRY: RetrySettings = RetrySettings {
    attempts: 1,
    total: Duration::ZERO,
    first_backoff: Duration::ZERO,
    longest_backoff: Duration::ZERO,
    budget_percent: 0,
    budget_reserve: 0,
};

fn throttled(server: &Server) -> Throttle<Server> {
    ThrottleLayer::new(PaceSettings::default(), NO_RETRY).layer(server.clone())
}

#[tokio::test(start_paused = true)]
async fn one_after_the_other_is_never_refused() {
    let server = Server::windowed(10, 5);
    let client = throttled(&server);
    for _ in 0..95 {
        let answer = client.clone().oneshot(get("http://a/")).await.unwrap();
        assert_eq!(answer.status(), 200);
    }
    let took = server.seen().last().unwrap().0;
    assert!((40_000..55_000).contains(&took), "95 of 10 per 5 s took {took} ms");
}

#[tokio::test(start_paused = true)]
async fn many_at_once_are_hardly_ever_refused() {
    let server = Server::windowed(20, 5);
    let client = throttled(&server);
    // One to learn the limit by.
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
async fn a_caller_that_would_wait_too_long_is_told_so_at_once() {
    let server = Server::new(|_, _| answer(429).header("retry-after", "600").body(Body::default()).unwrap());
    let client = throttled(&server);
    client.clone().oneshot(get("http://a/")).await.unwrap();
    let before = Instant::now();
    match client.clone().oneshot(get("http://a/")).await {
        Err(Error::Throttled(throttled)) => {
            assert!(throttled.retry_after > Duration::from_secs(599));
            assert!(throttled.to_string().starts_with("not sent"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert_eq!(server.seen().len(), 1);
    // Another server is another matter.
    client.clone().oneshot(get("http://b/")).await.unwrap();
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn limits_are_kept_apart_by_whatever_the_key_says() {
    let server = Server::new(|_, _| answer(503).header("retry-after", "30").body(Body::default()).unwrap());
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
async fn a_server_that_says_nothing_is_not_slowed_down() {
    let server = Server::new(|_, _| answer(200).body(Body::default()).unwrap());
    let client = throttled(&server);
    for _ in 0..100 {
        client.clone().oneshot(get("http://a/")).await.unwrap();
    }
    assert_eq!(server.seen().last().unwrap().0, 99 * 20);
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_given_up_leave_nothing_behind() {
    let server = Server::windowed(5, 10);
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
