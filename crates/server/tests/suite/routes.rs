//! Endpoints, readiness and drain.

use crate::fixture::DoorFixture;
use std::sync::Arc;
use tollgate_server::{NotReady, Readiness};

#[tokio::test]
async fn health_and_readiness() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    let reply = client.get("/healthz").await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "ok"));
    let reply = client.get("/readyz?verbose").await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "ready"));
    fixture.door.readiness.set_draining();
    let reply = client.get("/readyz").await;
    assert_eq!((reply.status, reply.body.as_str()), (503, "not ready: the node is draining\n"));
    assert_eq!(client.get("/healthz").await.status, 200);
}

#[test]
fn ready_means_rules_and_no_drain() {
    let readiness = Arc::new(Readiness::default());
    assert_eq!(readiness.check(), Err(NotReady::NoRules));
    assert_eq!(NotReady::NoRules.message(), "not ready: no rules are installed yet\n");
    readiness.set_rules_installed();
    assert_eq!(readiness.check(), Ok(()));
    readiness.set_draining();
    readiness.set_rules_installed();
    assert_eq!(readiness.check(), Err(NotReady::Draining), "a drain is final");
}

#[tokio::test]
async fn wrong_methods_and_unknown_paths() {
    let fixture = DoorFixture::start().await;
    let mut client = fixture.client().await;
    for (method, path, allow) in [
        ("GET", "/v1/check", "POST"),
        ("DELETE", "/v1/check", "POST"),
        ("PUT", "/v1/check/batch", "POST"),
        ("DELETE", "/v1/auth", "GET, HEAD, POST"),
        ("OPTIONS", "/v1/auth", "GET, HEAD, POST"),
        ("POST", "/healthz", "GET, HEAD"),
        ("BREW", "/readyz", "GET, HEAD"),
    ] {
        client.send(format!("{method} {path} HTTP/1.1\r\nHost: test\r\n\r\n")).await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.header("allow")), (405, allow), "{method} {path}");
        assert_eq!(reply.json()["error"]["code"], "METHOD_NOT_ALLOWED");
    }
    for path in ["/", "/v1/check/", "/v1/Check", "/v2/check", "/v1/check/batch/x", "*"] {
        let reply = client.get(path).await;
        assert_eq!(reply.status, 404, "{path}");
        let error = &reply.json()["error"];
        assert_eq!(error["code"], "NOT_FOUND");
        assert_eq!(
            error["details"]["hint"],
            "the endpoints are POST /v1/check, POST /v1/check/batch, GET /v1/auth, GET /healthz, GET /readyz"
        );
    }
}

#[tokio::test]
async fn a_drain_finishes_the_check_in_flight() {
    let fixture = DoorFixture::start().await;
    let body = r#"{"key":"sk_1","endpoint":"/v1/orders"}"#;
    let mut idle = fixture.client().await;
    idle.get("/healthz").await;
    let mut busy = fixture.client().await;
    // The server asks for the body, so it has started the request.
    let head = "POST /v1/check HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\n";
    busy.send(format!("{head}Content-Length: {}\r\n\r\n", body.len())).await;
    assert_eq!(busy.reply().await.status, 100);
    fixture.stop.send(()).unwrap();
    idle.closed().await;
    assert!(fixture.door.readiness.check().is_err());
    busy.send(body).await;
    let reply = busy.reply().await;
    assert_eq!((reply.status, reply.header("x-ratelimit-remaining")), (200, "99"));
    busy.closed().await;
    assert_eq!(fixture.served.await.unwrap(), 0);
}
