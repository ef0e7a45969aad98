//! How real servers read paths, compared with how the rules read them.
//!
//! Ten thousand spellings of limited and other paths go through the gateway to each of five servers, which respond with
//! the paths that they read. Whenever one of these is limited, the request must have been charged.

use crate::fixture::{self, at};
use crate::raw_client::RawClient;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::task::JoinSet;
use tollgate_gateway::Gateway;
use tollgate_gateway::settings::GatewaySettings;
use tollgate_testbed::{PathEchoServer, WebServerProgram};

const TARGETS: usize = 10_000;
const CONNECTIONS: usize = 8;
const SEED: u64 = 0x7011_9a7e;

const RULES: &str = r#"
rules:
  - id: limited
    match:
      endpoint: [/login, "/users/{id}", "/t1/items:batch", "/café", "/100%25", "/a b/c"]
      endpoint_regex: ["^/r1/items:batch$", "^/x/[^/]*report$"]
    key: ip
    limit: 1000000/s
"#;

/// Whether [`RULES`] limit a path, compared exactly.
fn is_limited(path: &str) -> bool {
    let is_segment = |text: &str| !text.is_empty() && !text.contains('/');
    matches!(path, "/login" | "/t1/items:batch" | "/café" | "/100%" | "/a b/c" | "/r1/items:batch")
        || path.strip_prefix("/users/").is_some_and(is_segment)
        || path
            .strip_prefix("/x/")
            .and_then(|rest| rest.strip_suffix("report"))
            .is_some_and(|middle| !middle.contains('/'))
}

/// A spelling of a path that is limited, or nearly so.
fn target(random: &mut fastrand::Rng) -> String {
    const PATHS: [&str; 12] = [
        "/login",
        "/login",
        "/users/7",
        "/users/a:b",
        "/t1/items:batch",
        "/r1/items:batch",
        "/caf%C3%A9",
        "/100%25",
        "/a%20b/c",
        "/x/report",
        "/x/my-report",
        "/other/path",
    ];
    let mut path = PATHS[random.usize(..PATHS.len())].to_owned();
    for _ in 0..random.usize(..5) {
        respell(&mut path, random);
    }
    const BEFORE: [&str; 8] = ["", "", "", "", "", "http://test", "http://test:80", "/"];
    const AFTER: [&str; 12] = ["", "", "", "", "", "?x=/../y", "#x", "?#", "/", "//", "/.", "/;x"];
    format!("{}{path}{}", BEFORE[random.usize(..BEFORE.len())], AFTER[random.usize(..AFTER.len())])
}

fn respell(path: &mut String, random: &mut fastrand::Rng) {
    let is_plain = |place: &usize| path.is_char_boundary(*place) && !path[..*place].ends_with('%');
    let Some(place) = (0..32).map(|_| random.usize(1..=path.len())).find(is_plain) else { return };
    let slash =
        path.match_indices('/').map(|(place, _)| place).nth(random.usize(..path.matches('/').count().max(1)));
    let slash = slash.unwrap_or(0);
    match random.u8(..10) {
        // A character becomes an escape, in upper or lower case, and sometimes a double escape.
        0..=3 => {
            let Some(byte) =
                path.as_bytes().get(place).copied().filter(|byte| byte.is_ascii() && *byte != b'%')
            else {
                return;
            };
            let percent = if random.u8(..16) == 0 { "%25" } else { "%" };
            let escape =
                if random.bool() { format!("{percent}{byte:02x}") } else { format!("{percent}{byte:02X}") };
            path.replace_range(place..=place, &escape);
        }
        // Segments that some servers drop.
        4..=5 => {
            const NOTHING: [&str; 14] = [
                "/",
                "/.",
                "/x/..",
                "/;x",
                "/;",
                "/%2e",
                "/x/%2E%2e",
                "/..;",
                "/%3b",
                "/;x=y;z",
                "/x;y/..",
                "/x/..;x",
                "/%252e",
                "/..",
            ];
            path.insert_str(slash, NOTHING[random.usize(..NOTHING.len())]);
        }
        // Parameters, and what some servers take for them.
        6..=7 => {
            const MORE: [&str; 12] = [
                ";x",
                ";",
                ";x=y",
                ";a;b",
                "%3Bx",
                "%20",
                ".",
                "%2e",
                "%c3%a9",
                "%00",
                "%E9",
                ";jsessionid=1",
            ];
            let end = path[slash + 1..].find('/').map_or(path.len(), |offset| slash + 1 + offset);
            path.insert_str(end, MORE[random.usize(..MORE.len())]);
        }
        // Any character that is valid in a request line.
        8 => path.insert(place, char::from(random.u8(b'!'..=b'~'))),
        _ => {
            let upper = random.bool();
            *path = if upper { path.to_ascii_uppercase() } else { path.to_ascii_lowercase() };
        }
    }
}

/// How often each case occurred, so that the test cannot pass without covering them.
#[derive(Debug, Default)]
struct ReadingCoverage {
    refused: AtomicUsize,
    limited: AtomicUsize,
    /// Of these, those that are spelled differently from the rules.
    respelt: AtomicUsize,
    free: AtomicUsize,
}

async fn ask(gateway: SocketAddr, targets: Vec<String>, coverage: Arc<ReadingCoverage>) {
    let note = |count: &AtomicUsize| count.fetch_add(1, Ordering::Relaxed);
    let mut client = RawClient::connect(gateway).await;
    for target in targets {
        let reply = client.get(&target).await;
        assert!(reply.status < 500, "{target}: {reply:?}");
        let is_charged = !reply.header("x-ratelimit-limit").is_empty();
        // The first line is the server's name.
        let read = reply.body.lines().skip(1).find(|path| reply.status == 200 && is_limited(path));
        assert!(read.is_none() || is_charged, "`{target}` was read as {read:?} and not charged: {reply:?}");
        note(match (reply.status, read) {
            (200, Some(_)) if !is_limited(&target) => {
                note(&coverage.limited);
                &coverage.respelt
            }
            (200, Some(_)) => &coverage.limited,
            (200, None) => &coverage.free,
            _ => &coverage.refused,
        });
        if reply.header("connection") == "close" {
            client = RawClient::connect(gateway).await;
        }
    }
}

async fn check_server(program: WebServerProgram) {
    let server = PathEchoServer::start(program);
    let settings = GatewaySettings::to(at([server.address()]));
    let gateway = Gateway::start(&settings, &fixture::limits(RULES), &fixture::listen()).unwrap();
    let mut random = fastrand::Rng::with_seed(SEED);
    let targets: Vec<String> = (0..TARGETS).map(|_| target(&mut random)).collect();
    let coverage = Arc::new(ReadingCoverage::default());
    let mut asking = JoinSet::new();
    for targets in targets.chunks(TARGETS / CONNECTIONS) {
        asking.spawn(ask(gateway.address(), targets.to_vec(), Arc::clone(&coverage)));
    }
    asking.join_all().await;
    println!("{program:?}: {coverage:?}");
    let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    assert_eq!(count(&coverage.refused) + count(&coverage.limited) + count(&coverage.free), TARGETS);
    let enough = [&coverage.refused, &coverage.respelt, &coverage.free]
        .iter()
        .all(|coverage| count(coverage) > TARGETS / 20);
    assert!(enough, "{coverage:?}");
}

#[tokio::test]
async fn nginx_serves_no_limited_path_uncharged() {
    check_server(WebServerProgram::Nginx).await;
}

#[tokio::test]
async fn node_serves_no_limited_path_uncharged() {
    check_server(WebServerProgram::Node).await;
}

#[tokio::test]
async fn python_serves_no_limited_path_uncharged() {
    check_server(WebServerProgram::Python).await;
}

#[tokio::test]
async fn tomcat_serves_no_limited_path_uncharged() {
    check_server(WebServerProgram::Tomcat).await;
}

#[tokio::test]
async fn gunicorn_serves_no_limited_path_uncharged() {
    check_server(WebServerProgram::Gunicorn).await;
}
