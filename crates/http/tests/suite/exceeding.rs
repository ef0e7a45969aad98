//! What the layer does with requests over a limit, and with those that are counted until they end.

use crate::gatehouse::{Gatehouse, ask};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;
use tower::{Layer, Service, ServiceExt, service_fn};

/// A service that answers with what it was told in the headers `names`.
fn telling(
    house: &Gatehouse,
    names: &'static [&'static str],
) -> impl Service<Request<Full<Bytes>>, Response = Response<String>, Error = Infallible> + Clone {
    let inner = service_fn(move |request: Request<Full<Bytes>>| async move {
        let said = |name: &&str| {
            let values = request.headers().get_all(*name).iter();
            values.map(|value| value.to_str().unwrap()).collect::<Vec<_>>().join("+")
        };
        let body = names.iter().map(said).collect::<Vec<_>>().join("|");
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(body)))
    });
    let layered = house.layer.for_peer(SocketAddr::from(([203, 0, 113, 9], 1))).layer(inner);
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
  - { id: told, limit: 2/min, soft: 50%, on_exceed: { flag: { header: X-Captcha } } }
";
    let house = Gatehouse::new(rules, "");
    let service = telling(&house, &["x-captcha", "x-ratelimit-flag"]);
    let mut found = Vec::new();
    for _ in 0..4 {
        let forged = ask("203.0.113.9", "/").with("x-captcha", "no").with("X-RateLimit-Flag", "none");
        let response = service.clone().oneshot(forged.request()).await.unwrap();
        found.push(response.into_body());
    }
    assert_eq!(found, ["|", "|told;soft", "told|", "told|"]);
}

/// Whether one more request gets in.
async fn status(house: &Gatehouse) -> (u16, HeaderMap, String) {
    let told = house.tell(ask("203.0.113.9", "/")).await;
    (told.status, told.headers, told.body)
}

#[tokio::test]
async fn a_request_is_in_flight_until_its_body_has_ended() {
    let house = Gatehouse::new("rules: [{ id: one, algorithm: concurrency, limit: 1 }]", "");
    let inner = service_fn(|_: Request<Full<Bytes>>| async move {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("body")))
    });
    let service = house.layer.for_peer(SocketAddr::from(([203, 0, 113, 9], 1))).layer(inner);
    let request = || ask("203.0.113.9", "/").request();

    let mut response = service.clone().oneshot(request()).await.unwrap();
    let (refused, headers, body) = status(&house).await;
    assert_eq!(refused, 429);
    assert!(body.contains("Limit of 1 request in flight exceeded"), "{body}");
    assert_eq!(headers["ratelimit-policy"], r#""one";q=1;qu="concurrent-requests""#);
    assert_eq!(headers["retry-after"], "1");
    assert!(response.body_mut().frame().await.is_some());
    assert_eq!(status(&house).await.0, 429, "its end has not been read");
    assert!(response.body_mut().frame().await.is_none());
    assert_eq!(status(&house).await.0, 200);

    // Nobody reads it.
    let response = service.clone().oneshot(request()).await.unwrap();
    assert_eq!(status(&house).await.0, 429);
    drop(response);
    assert_eq!(status(&house).await.0, 200);
}

#[tokio::test]
async fn a_client_that_goes_away_is_not_in_flight() {
    let house = Gatehouse::new("rules: [{ id: one, algorithm: concurrency, limit: 1 }]", "");
    let never = service_fn(|_: Request<Full<Bytes>>| async move {
        std::future::pending::<()>().await;
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let service = house.layer.for_peer(SocketAddr::from(([203, 0, 113, 9], 1))).layer(never);
    let waits = service.oneshot(ask("203.0.113.9", "/").request());
    assert!(tokio::time::timeout(Duration::from_millis(20), waits).await.is_err());
    assert_eq!(status(&house).await.0, 200);
}

#[tokio::test]
async fn a_request_that_queues_gets_through() {
    let rules = "rules: [{ id: even, algorithm: leaky_bucket, limit: 10/s, on_exceed: queue }]";
    let house = Gatehouse::new(rules, "");
    assert_eq!(status(&house).await.0, 200);
    let clock = house.clock.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(30)).await;
        clock.advance_us(100_000);
    });
    assert_eq!(status(&house).await.0, 200);
}
