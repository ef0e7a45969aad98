//! The access log and request ids.

use crate::fixture::{self, Lines, Pair};
use crate::http2;
use http_body_util::BodyExt;
use serde_json::Value;
use std::fs;
use std::path::Path;
use tokio::io::AsyncReadExt;
use tollgate_core::document::Document;
use tollgate_gateway::settings::{
    AccessLogFormat, AccessLogSettings, GatewaySettings, RequestIds, UpstreamSettings,
};
use tollgate_gateway::{AccessLog, Gateway};
use tollgate_http::{IdentityExtractor, IdentityOptions};
use tollgate_limiter::line_log::{LogDestination, LogRotation};
use tollgate_limiter::{Clock, KeyDisplay};
use tollgate_testbed::{TestUpstream, eventually};

/// A gateway with an access log and request ids.
struct Fixture {
    pair: Pair,
    lines: Lines,
}

impl Fixture {
    async fn new(rules: &str) -> Self {
        Self::with(rules, |_| ()).await
    }

    async fn with(rules: &str, change: impl FnOnce(&mut AccessLogSettings)) -> Self {
        let lines = Lines::default();
        let log = fixture::access_log(&lines, change);
        Self { pair: pair(rules, log).await, lines }
    }

    /// Waits for `count` lines.
    async fn lines(&self, count: usize) -> Vec<String> {
        eventually("the lines are written", async || self.lines.text().lines().count() >= count).await;
        self.lines.text().lines().map(str::to_owned).collect()
    }

    /// Waits for `count` lines of JSON, and returns the last.
    async fn last(&self, count: usize) -> Value {
        serde_json::from_str(&self.lines(count).await[count - 1]).unwrap()
    }
}

/// Behind a trusted proxy.
async fn pair(rules: &str, log: AccessLog) -> Pair {
    let server = TestUpstream::start("one").await;
    let mut listen = fixture::listen();
    listen.log = Some(log);
    let mut settings = GatewaySettings::to(fixture::upstream(&[&server]));
    settings.request_ids = RequestIds::Assigned;
    settings.trusted = vec!["127.0.0.0/8".parse().unwrap()];
    let identity = "client_ip: { trusted: [127.0.0.0/8] }";
    let options: IdentityOptions = Document::parse("identity.yaml", identity).unwrap().decode().unwrap();
    let identities = IdentityExtractor::open(&options, Path::new("")).unwrap();
    let limits = fixture::limits(rules).identities(identities);
    Pair { gateway: Gateway::start(&settings, &limits, &listen).unwrap(), server }
}

const LOGIN: &str = "rules: [{ id: login, endpoint: /login, key: api_key, limit: 1/h }]";

#[tokio::test]
async fn a_line_tells_the_client_the_decision_and_the_times() {
    let fixture = Fixture::with(LOGIN, |settings| settings.keys = KeyDisplay::Shown).await;
    let mut client = fixture.pair.client().await;
    let request = "POST /login?key=secret HTTP/1.1\r\nHost: shop.example\r\nX-Forwarded-For: 203.0.113.9\r\n\
                   X-Api-Key: sk_live_0123456789\r\nUser-Agent: \"odd\"\r\nX-Request-Id: id-1\r\nContent-Length: 3\r\n\r\nabc";
    assert_eq!(client.ask(request).await.status, 200);
    let line = fixture.last(1).await;
    let expected = [
        ("client", "203.0.113.9"),
        ("method", "POST"),
        ("host", "shop.example"),
        ("target", "/login?key=…"),
        ("protocol", "HTTP/1.1"),
        ("outcome", "allowed"),
        ("rule", "login"),
        ("request_id", "id-1"),
        ("user_agent", "\"odd\""),
        ("upstream", &fixture.pair.server.url()),
    ];
    for (field, value) in expected {
        assert_eq!(line[field], value, "{field}: {line}");
    }
    assert_eq!(line["key"][0], "api_key:sk_live_…");
    assert_eq!(
        (&line["status"], &line["bytes_received"], &line["bytes_sent"]),
        (&200.into(), &3.into(), &5.into())
    );
    let us = |field: &str| line[field].as_u64().unwrap();
    assert!(0 < us("upstream_us") && us("upstream_us") <= us("duration_us"), "{line}");
    assert!(line["retry_after_ms"].is_null() && line["complete"] == true, "{line}");
    let reply = client.ask(request).await;
    assert_eq!((reply.status, reply.header("x-request-id")), (429, "id-1"));
    let line = fixture.last(2).await;
    assert_eq!(
        (&line["outcome"], &line["rule"], &line["status"]),
        (&"limited".into(), &"login".into(), &429.into())
    );
    assert!((3_590_000.0..=3_600_000.0).contains(&line["retry_after_ms"].as_f64().unwrap()), "{line}");
    assert!(line["upstream"].is_null() && line["upstream_us"].is_null());
}

#[tokio::test]
async fn keys_are_hashed_unless_configured() {
    let fixture = Fixture::new(LOGIN).await;
    let mut client = fixture.pair.client().await;
    for key in ["sk_live_0123456789", "sk_live_0123456789", "another"] {
        client.ask(&format!("GET /login HTTP/1.1\r\nHost: test\r\nX-Api-Key: {key}\r\n\r\n")).await;
    }
    let lines = fixture.lines(3).await;
    let keys: Vec<Value> =
        lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap()["key"].clone()).collect();
    assert!(keys[0] == keys[1] && keys[0] != keys[2], "{keys:?}");
    assert!(!lines.concat().contains("sk_live"));
}

#[tokio::test]
async fn lines_in_the_combined_format() {
    let fixture = Fixture::with(LOGIN, |settings| settings.format = AccessLogFormat::Combined).await;
    let mut client = fixture.pair.client().await;
    let request = "GET /login HTTP/1.1\r\nHost: test\r\nReferer: http://a/\r\nUser-Agent: x\"y\r\n\r\n";
    client.ask(request).await;
    client.ask(request).await;
    let lines = fixture.lines(2).await;
    assert!(lines[0].starts_with("127.0.0.1 - - ["), "{}", lines[0]);
    let first = r#"] "GET /login HTTP/1.1" 200 5 "http://a/" "x\"y" host="test" outcome=allowed rule="login" shadowed_by="-" retry_after=- key="ip:"#;
    assert!(lines[0].contains(first), "{}", lines[0]);
    let upstream = format!(" upstream=\"{}\" upstream_time=0.", fixture.pair.server.url());
    assert!(lines[0].contains(&upstream) && lines[0].ends_with(" complete=true"), "{}", lines[0]);
    let second = r#" host="test" outcome=limited rule="login" shadowed_by="-" retry_after=3"#;
    assert!(
        lines[1].contains(second) && lines[1].contains(r#" upstream="-" upstream_time=- time=0."#),
        "{}",
        lines[1]
    );
}

#[tokio::test]
async fn secrets_in_the_referer_are_not_written() {
    let fixture =
        Fixture::with("allow_empty: true", |settings| settings.format = AccessLogFormat::Combined).await;
    let mut client = fixture.pair.client().await;
    for (number, (referer, shown)) in [
        ("http://shop.example/a?page=2&key=sk_secret", "http://shop.example/a?page=2&key=…"),
        ("https://ann:sk_secret@shop.example/", "https://…@shop.example/"),
        ("/a?KEY=sk_secret;b=c", "/a?KEY=…;b=c"),
        ("http://shop.example/ä b?key=sk_secret", "http://shop.example/ä b?…"),
    ]
    .into_iter()
    .enumerate()
    {
        client.ask(&format!("GET / HTTP/1.1\r\nHost: test\r\nReferer: {referer}\r\n\r\n")).await;
        let lines = fixture.lines(number + 1).await;
        assert!(lines[number].contains(&format!(" \"{shown}\" \"-\" host=")), "{}", lines[number]);
        assert!(!lines[number].contains("secret"));
    }
}

#[tokio::test]
async fn what_terminals_obey_is_escaped() {
    for (format, expected) in [
        (AccessLogFormat::Combined, r#" "\xc2\x9b31m \xe2\x80\xae \xe2\x80\xa8" host="#),
        (AccessLogFormat::Json, r#""user_agent":"\u009b31m \u202e \u2028""#),
    ] {
        let fixture = Fixture::with("allow_empty: true", |settings| settings.format = format).await;
        let mut client = fixture.pair.client().await;
        let agent = "\u{9b}31m \u{202e} \u{2028}";
        client.ask(&format!("GET / HTTP/1.1\r\nHost: test\r\nUser-Agent: {agent}\r\n\r\n")).await;
        let lines = fixture.lines(1).await;
        assert!(lines[0].contains(expected), "{}", lines[0]);
    }
}

#[tokio::test]
async fn http1_and_http2_log_the_same_target() {
    let fixture = Fixture::new("allow_empty: true").await;
    let mut first = fixture.pair.client().await;
    first.ask("GET /a?b=c HTTP/1.1\r\nHost: shop.example\r\n\r\n").await;
    first.ask("GET http://shop.example/a?b=c HTTP/1.1\r\nHost: shop.example\r\n\r\n").await;
    let mut second = http2::plain(&fixture.pair).await;
    let reply = second.send_request(http2::request("/a?b=c", "")).await.unwrap();
    assert_eq!(reply.headers()["x-request-id"].len(), 32);
    reply.into_body().collect().await.unwrap();
    for (number, protocol) in [(1, "HTTP/1.1"), (2, "HTTP/1.1"), (3, "HTTP/2.0")] {
        fixture.lines(3).await;
        let line = fixture.last(number).await;
        assert_eq!((&line["target"], &line["host"]), (&"/a?b=c".into(), &"shop.example".into()));
        assert_eq!(line["protocol"], protocol);
    }
}

#[tokio::test]
async fn shadow_rules_denials_and_invalid_requests_are_logged() {
    let rules = "rules: [{ id: quiet, limit: 1/h, on_exceed: shadow }]\ndeny: [203.0.113.9]";
    let fixture = Fixture::new(rules).await;
    let mut client = fixture.pair.client().await;
    for _ in 0..2 {
        assert_eq!(client.get("/a").await.status, 200);
    }
    let line = fixture.last(2).await;
    assert_eq!((&line["outcome"], &line["shadowed_by"]), (&"shadow_limited".into(), &"quiet".into()));
    let denied = "GET / HTTP/1.1\r\nHost: test\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n";
    assert_eq!(client.ask(denied).await.status, 403);
    let line = fixture.last(3).await;
    assert_eq!((&line["outcome"], &line["client"]), (&"denied".into(), &"203.0.113.9".into()));
    assert_eq!(client.get("/a%00").await.status, 400);
    let line = fixture.last(4).await;
    assert_eq!((&line["status"], &line["outcome"]), (&400.into(), &Value::Null));
}

#[tokio::test]
async fn waits_are_logged() {
    let rule = "{ id: paced, algorithm: leaky_bucket, limit: 50/s, on_exceed: { queue: { max_wait: 5s, length: 8 } } }";
    let fixture = Fixture::new(&format!("rules: [{rule}]")).await;
    let (mut one, mut two) = (fixture.pair.client().await, fixture.pair.client().await);
    let replies = tokio::join!(one.get("/a"), two.get("/a"));
    assert_eq!((replies.0.status, replies.1.status), (200, 200));
    let text = fixture.lines(2).await.concat();
    assert!(text.contains(r#""outcome":"allowed""#) && text.contains(r#""outcome":"queued""#), "{text}");
}

#[tokio::test]
async fn request_ids_are_taken_or_generated() {
    let fixture = Fixture::new("allow_empty: true").await;
    let mut client = fixture.pair.client().await;
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for (number, (sent, is_kept)) in [
        ("X-Request-Id: a-1\r\n", true),
        ("", false),
        ("X-Request-Id: a b\r\n", false),
        ("X-Request-Id: a\r\nX-Request-Id: b\r\n", false),
        ("X-Request-Id: a-1\r\nConnection: x-request-id\r\n", true),
        ("X_Request_Id: a-1\r\n", false),
    ]
    .into_iter()
    .enumerate()
    {
        let request = format!("GET / HTTP/1.1\r\nHost: test\r\n{sent}traceparent: {traceparent}\r\n\r\n");
        let reply = client.ask(&request).await;
        let id = reply.header("x-request-id");
        assert_eq!((id == "a-1", id.len() == 32), (is_kept, !is_kept), "{sent:?}: {id}");
        let seen = fixture.pair.server.last();
        assert_eq!(
            (seen.header("x-request-id").as_str(), seen.header("traceparent").as_str()),
            (id, traceparent)
        );
        assert_eq!(seen.header("x_request_id"), "", "no other header passes for it");
        assert_eq!(fixture.last(number + 1).await["request_id"], id);
    }
}

#[tokio::test]
async fn repeated_refusals_have_the_id_of_their_client() {
    let fixture = Fixture::new(LOGIN).await;
    for (line, id) in [("X-Request-Id: a-1\r\n", "a-1"), ("", "")] {
        let mut client = fixture.pair.client().await;
        let request = format!("GET /login HTTP/1.1\r\nHost: test\r\n{line}\r\n");
        while client.ask(&request).await.status != 429 {}
        client.ask(&request).await;
        for _ in 0..3 {
            let reply = client.ask(&request).await;
            assert_eq!((reply.status, reply.header("x-request-id")), (429, id));
        }
    }
}

#[tokio::test]
async fn without_the_setting_ids_are_passed_on() {
    let pair = Pair::start().await;
    let mut client = pair.client().await;
    let reply = client.ask("GET / HTTP/1.1\r\nHost: test\r\nX-Request-Id: a b\r\n\r\n").await;
    assert_eq!(
        (reply.header("x-request-id"), pair.server.last().header("x-request-id").as_str()),
        ("", "a b")
    );
}

#[tokio::test]
async fn a_tunnel_is_logged_when_it_ends() {
    let fixture = Fixture::new("allow_empty: true").await;
    let mut client = fixture.pair.client().await;
    client.send("GET /ws HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n").await;
    assert_eq!(client.head().await.status, 101);
    client.send("12345").await;
    let mut echoed = [0; 5];
    client.stream.read_exact(&mut echoed).await.unwrap();
    assert_eq!(fixture.lines.text(), "");
    drop(client);
    let line = fixture.last(1).await;
    assert_eq!(
        (&line["status"], &line["bytes_received"], &line["bytes_sent"]),
        (&101.into(), &5.into(), &5.into())
    );
    assert_eq!((&line["complete"], &line["outcome"]), (&true.into(), &"allowed".into()));
}

#[tokio::test]
async fn a_failed_upstream_is_named() {
    let lines = Lines::default();
    let mut listen = fixture::listen();
    listen.log = Some(fixture::access_log(&lines, |_| ()));
    let closed = UpstreamSettings::new("closed", vec!["http://127.0.0.1:1".parse().unwrap()]);
    let gateway =
        Gateway::start(&GatewaySettings::to(closed), &fixture::limits("allow_empty: true"), &listen).unwrap();
    let mut client = crate::raw_client::RawClient::connect(gateway.address()).await;
    assert_eq!(client.get("/").await.status, 502);
    gateway.stop().await;
    let line: Value = serde_json::from_str(lines.text().trim()).unwrap();
    assert_eq!((&line["status"], &line["upstream"]), (&502.into(), &"http://127.0.0.1:1".into()));
    assert!(line["upstream_us"].is_u64() && line["request_id"].is_null(), "{line}");
}

#[tokio::test]
async fn a_full_disk_and_a_closed_pipe_do_not_affect_requests() {
    let settings = AccessLogSettings::new(LogDestination::File("/dev/full".into()));
    let full = AccessLog::open(&settings, Clock::system(), Vec::new()).unwrap();
    let (reader, pipe) = std::io::pipe().unwrap();
    drop(reader);
    let closed = AccessLog::to_stream(pipe, &settings, Clock::system(), Vec::new()).unwrap();
    for log in [full, closed] {
        let pair = pair("allow_empty: true", log.clone()).await;
        let mut client = pair.client().await;
        for _ in 0..10 {
            assert_eq!(client.get("/").await.status, 200);
        }
        pair.gateway.stop().await;
        assert_eq!(log.lines().dropped(), 10);
    }
}

#[tokio::test]
async fn the_log_is_rotated_and_reopened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let mut settings = AccessLogSettings::new(LogDestination::File(path.clone()));
    settings.rotation = Some(LogRotation { rotate_bytes: 1_000, keep: 100 });
    let log = AccessLog::open(&settings, Clock::system(), Vec::new()).unwrap();
    let pair = pair("allow_empty: true", log.clone()).await;
    let mut client = pair.client().await;
    for _ in 0..20 {
        assert_eq!(client.get("/").await.status, 200);
        log.lines().flush().await;
    }
    fs::rename(&path, folder.path().join("moved")).unwrap();
    log.lines().reopen();
    client.get("/last").await;
    drop(client);
    pair.gateway.stop().await;
    let files: Vec<String> = fs::read_dir(folder.path())
        .unwrap()
        .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    assert!(files.len() > 5 && files.iter().all(|text| text.len() <= 1_000), "{files:?}");
    assert_eq!(files.iter().map(|text| text.lines().count()).sum::<usize>(), 21);
    assert!(fs::read_to_string(&path).unwrap().contains(r#""target":"/last""#));
}
