//! The layer with a store that has to be waited for.

use crate::gatehouse::{Told, ask};
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use std::convert::Infallible;
use std::sync::Arc;
use tollgate_core::rules::load;
use tollgate_http::RateLimitLayer;
use tollgate_limiter::{Clock, FailureSettings, Limiter, MemoryStore, RedisSettings, RedisStore};
use tollgate_testbed::{PATIENCE, Server};
use tower::{Layer, ServiceExt, service_fn};

const RULES: &str = "rules: [{ id: one, key: ip, consistency: strict, limit: 2/h }]";

async fn node(url: &str) -> RateLimitLayer {
    let settings = RedisSettings { timeout: PATIENCE / 10, ..RedisSettings::default() };
    let store = RedisStore::open(&url.parse().unwrap(), settings, Clock::system()).await.unwrap();
    let limiter = Limiter::new(MemoryStore::new(1 << 24), Clock::system());
    let limiter = limiter.sharing(&store, FailureSettings::default());
    let loaded = load("test.yaml", RULES).unwrap_or_else(|report| panic!("{report}"));
    limiter.install(loaded.rules, loaded.lists);
    RateLimitLayer::new(Arc::new(limiter))
}

async fn tell(layer: &RateLimitLayer) -> Told {
    let inner = service_fn(|request: Request<_>| async move {
        assert_eq!(request.uri().path(), "/x");
        Ok::<_, Infallible>(Response::new(Empty::<bytes::Bytes>::new()))
    });
    let service = layer.for_peer("203.0.113.9:1".parse().unwrap()).layer(inner);
    let (parts, body) = service.oneshot(ask("203.0.113.9", "//x").request()).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    Told { status: parts.status.as_u16(), headers: parts.headers, body: String::from_utf8(body).unwrap() }
}

#[tokio::test]
async fn two_nodes_have_one_limit_and_say_when_they_cannot_know_it() {
    let server = Server::start(&[]);
    let (one, two) = (node(&server.url()).await, node(&server.url()).await);
    assert_eq!((tell(&one).await.status, tell(&two).await.status), (200, 200));
    let told = tell(&one).await;
    assert_eq!((told.status, told.headers.contains_key("retry-after")), (429, true));
    assert!(told.body.contains("RATE_LIMIT_EXCEEDED"), "{}", told.body);

    let server = {
        drop(server);
        Server::start(&[])
    };
    let three = node(&server.url()).await;
    drop(server);
    let told = tell(&three).await;
    let said = |name: &str| told.headers[name].to_str().unwrap().to_owned();
    assert_eq!(told.status, 200);
    assert_eq!((said("x-ratelimit-remaining"), said("x-ratelimit-policy")), ("-1".into(), "degraded".into()));
}
