//! Exporters of a node: their settings, their totals, and backends that do not answer.

use crate::process::{PATIENCE, TollgateProcess, run, tollgate};
use std::net::{TcpListener, UdpSocket};
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::Instant;
use tollgate_testbed::telemetry::totals::{self, TotalValue, Totals};
use tollgate_testbed::telemetry::{Answer, TestCollector, TestStatsdServer};
use tollgate_testbed::{RedisServer, wait_until};

const RULES: &str = "
routes: [\"/users/{id}\"]
rules:
  - { id: users, endpoint: \"/users/{id}\", key: api_key, limit: 50/h }
  - { id: tried, endpoint: /tried, key: api_key, limit: 20/h, on_exceed: shadow }
";

fn folder_with(config: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    let config = format!("rules: rules.yaml\nlisten: 127.0.0.1:0\n{config}");
    std::fs::write(folder.path().join("tollgate.yaml"), config).unwrap();
    folder
}

fn node_with(config: &str) -> TollgateProcess {
    let folder = folder_with(config);
    let mut command = tollgate(["serve", "--config", "tollgate.yaml"]);
    TollgateProcess::from(command.current_dir(folder.path()))
}

/// The decisions of each series that has some.
fn decisions(totals: Totals) -> Totals {
    let is_counted = |value: &TotalValue| *value != TotalValue::Count(0);
    totals
        .into_iter()
        .filter(|((name, _), value)| name == "tollgate_decisions_total" && is_counted(value))
        .collect()
}

fn sum(totals: &Totals, outcome: &str) -> u64 {
    let of_outcome = totals.iter().filter(|((_, labels), _)| labels["outcome"] == outcome);
    let counts = of_outcome.map(|(_, value)| match value {
        TotalValue::Count(count) => *count,
        TotalValue::Number(text) => panic!("{text} is no count"),
    });
    counts.sum()
}

/// Requests of two clients at once. Returns how many were answered with 200 and with 429.
fn load(node: &TollgateProcess, requests: usize) -> (u64, u64) {
    let client = |name: &'static str| {
        let mut client = node.client();
        move || {
            let (mut admitted, mut refused) = (0, 0);
            for number in 0..requests {
                let key = format!("{name}{}", number % 3);
                let path = if number % 4 == 0 { "/tried".to_owned() } else { format!("/users/{number}") };
                match client.check(&key, &path).status {
                    200 => admitted += 1,
                    429 => refused += 1,
                    other => panic!("status {other}"),
                }
            }
            (admitted, refused)
        }
    };
    let threads = [client("a"), client("b")].map(std::thread::spawn);
    let counts = threads.map(|thread| thread.join().unwrap());
    (counts[0].0 + counts[1].0, counts[0].1 + counts[1].1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn all_exporters_have_the_same_totals() {
    let collector = TestCollector::start(Answer::Accept).await;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let statsd = TestStatsdServer::udp(socket);
    let node = node_with(&format!(
        "telemetry:\n  otlp: {{ endpoint: '{}', interval: 100ms, headers: {{ x-token: abc }} }}\n  \
         statsd: {{ address: '{address}', interval: 100ms }}\n",
        collector.endpoint()
    ));
    let (admitted, refused) = load(&node, 1_000);
    let scraped = decisions(totals::of_prometheus(&node.admin().get("/metrics").body));
    collector.wait_for("an export", |received| !received.metrics.is_empty()).await;
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0));

    assert_eq!(sum(&scraped, "allowed") + sum(&scraped, "shadow_limited"), admitted);
    assert_eq!((sum(&scraped, "limited"), admitted + refused), (refused, 2_000));
    let received = collector.received();
    assert_eq!(decisions(totals::of_otlp(received.metrics.last())), scraped);
    assert!(received.metrics.len() >= 2, "also at the end");
    assert_eq!(received.token.as_deref(), Some("abc"));
    assert_eq!(decisions(statsd.stop()), scraped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_backends_can_be_flags_and_variables() {
    let collector = TestCollector::start(Answer::Accept).await;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let statsd = TestStatsdServer::udp(socket);
    let mut command = tollgate(["serve", "--listen", "127.0.0.1:0", "--statsd-address", &address]);
    command.env("TOLLGATE_OTLP_ENDPOINT", collector.endpoint());
    let node = TollgateProcess::from(&mut command);
    assert_eq!(node.client().check("alice", "/").status, 200);
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0));
    let exported = decisions(totals::of_otlp(collector.received().metrics.last()));
    assert_eq!(sum(&exported, "allowed"), 1, "the interval of ten seconds is not over");
    assert_eq!(decisions(statsd.stop()), exported);
}

/// All requests are answered as the limit says, and the node stops in time.
fn assert_serves_and_stops(node: TollgateProcess, bound: Duration) {
    let mut client = node.client();
    for number in 0..200 {
        let expected = if number < 50 { 200 } else { 429 };
        assert_eq!(client.check("alice", "/users/1").status, expected, "request {number}");
    }
    drop(client);
    node.wait_for_log("telemetry export failed");
    let start = Instant::now();
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0));
    let elapsed = start.elapsed();
    // With room for a machine that is busy with other tests.
    assert!(elapsed < bound + Duration::from_secs(5), "stopped after {elapsed:?}");
}

#[test]
fn backends_that_are_down_disturb_nothing() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let node = node_with(&format!(
        "telemetry:\n  otlp: {{ endpoint: 'http://{free}', interval: 100ms, timeout: 60s }}\n  \
         statsd: {{ address: '{free}', interval: 100ms }}\n"
    ));
    assert_serves_and_stops(node, Duration::ZERO);
}

/// The system accepts the connections, and nothing reads from them.
#[test]
fn a_collector_that_never_answers_disturbs_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let timeout = Duration::from_millis(500);
    let node = node_with(&format!(
        "telemetry: {{ otlp: {{ endpoint: 'http://{}', interval: 100ms, timeout: 500ms }} }}\n",
        listener.local_addr().unwrap()
    ));
    assert_serves_and_stops(node, timeout);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_share_of_the_store_calls_becomes_spans() {
    let redis = RedisServer::start(&[]);
    let collector = TestCollector::start(Answer::Accept).await;
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    std::fs::write(&rules, "rules: [{ id: one, key: api_key, consistency: strict, limit: 1000/s }]").unwrap();
    let mut command = tollgate(["serve", "--listen", "127.0.0.1:0", "--store", &redis.url(), "--rules"]);
    command.arg(&rules).args(["--otlp-endpoint", &collector.endpoint()]);
    let node = TollgateProcess::from(&mut command);
    let (mut client, start) = (node.client(), Instant::now());
    // One in a hundred calls, and each check is a call.
    while collector.received().spans.is_empty() {
        assert!(start.elapsed() < PATIENCE, "no span");
        client.check("alice", "/");
    }
    let span = &collector.received().spans[0];
    assert_eq!(span.name, "store call");
    assert!(span.end_time_unix_nano > span.start_time_unix_nano);
    let attributes: Vec<(String, String)> = span
        .attributes
        .iter()
        .map(|attribute| (attribute.key.clone(), totals::attribute_text(attribute)))
        .collect();
    let expected = [("db.system.name", "redis"), ("tollgate.shard", "0"), ("tollgate.clients", "1")];
    assert_eq!(attributes, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert_eq!(span.status, None);
}

/// Refusals are recorded, and nothing of the sample: lines in a file, and the same decisions with OTLP.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn decisions_are_logged_as_lines_and_with_otlp() {
    let collector = TestCollector::start(Answer::Accept).await;
    let folder = folder_with(&format!(
        "telemetry:\n  otlp: {{ endpoint: '{}' }}\n  decision_log: {{ path: decisions.log, keys: shown, sample: 0%, otlp: true }}\n",
        collector.endpoint()
    ));
    let mut command = tollgate(["serve", "--config", "tollgate.yaml"]);
    let node = TollgateProcess::from(command.current_dir(folder.path()));
    let mut client = node.client();
    let refused = (0..60).filter(|_| client.check("sk_live_12345678", "/users/7").status == 429).count();
    assert_eq!(refused, 10);
    let metrics = node.admin().get("/metrics").body;
    assert!(metrics.contains("tollgate_log_lines_dropped_total{log=\"decision\"} 0\n"), "{metrics}");
    let path = folder.path().join("decisions.log");
    std::fs::rename(&path, folder.path().join("old.log")).unwrap();
    node.signal("USR1");
    wait_until("the log is reopened", || path.exists());
    assert_eq!(client.check("sk_live_12345678", "/users/7").status, 429);
    drop(client);
    node.signal("TERM");
    assert_eq!(node.wait().code(), Some(0));

    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let (old, new) = (read("old.log"), read("decisions.log"));
    assert_eq!(old.lines().count() + new.lines().count(), 11, "{old}\n{new}");
    for line in old.lines().chain(new.lines()) {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((&line["outcome"], &line["rule"]), (&"limited".into(), &"users".into()), "{line}");
        assert_eq!((&line["door"], &line["route"]), (&"check".into(), &"/users/{id}".into()), "{line}");
        assert!(line["key"][0].as_str().unwrap().starts_with("api_key:sk_"), "{line}");
    }
    let records = collector.received().logs;
    assert_eq!(records.len(), 11);
    let attributes = &records[0].attributes;
    let key = attributes.iter().find(|attribute| attribute.key == "tollgate.key.api_key").unwrap();
    assert!(totals::attribute_text(key).starts_with("sk_"), "{key:?}");
    assert!(
        !format!("{records:?}{old}{new}").contains("sk_live_12345678"),
        "credentials are not shown whole"
    );
}

#[test]
fn errors_in_the_section_have_positions_and_hints() {
    for (config, expected) in [
        (
            "telemetry: { otlp: { endpoint: collector:4317 } }\n",
            ":3:32: error: the OTLP endpoint must start with http:// or https://\n",
        ),
        (
            "telemetry: { otlp: { endpoint: 'http://h:1', interval: 1ms } }\n",
            ":3:56: error: `1ms` is out of range: `interval` must be between 100ms and 1h\n",
        ),
        (
            "telemetry: { otlp: { endpoint: 'http://h:1', timeout: 2min } }\n",
            ":3:55: error: `2min` is out of range: `timeout` must be between 10ms and 1min\n",
        ),
        (
            "telemetry:\n  otlp:\n    endpoint: http://h:1\n    headers: { x-bin: a }\n",
            ":6:23: error: the OTLP header 'x-bin' has a name that gRPC does not allow for text\n",
        ),
        (
            "telemetry: { statsd: { address: localhost } }\n",
            ":3:33: error: the StatsD address 'localhost' must be host:port or unix:/path\n",
        ),
        (
            "telemetry: { statsd: { address: 'h:1', prefix: 'a|b' } }\n",
            ":3:48: error: the StatsD prefix 'a|b' must have at most 64 letters, digits, '_', '-' or '.'\n",
        ),
        (
            "telemetry: { decision_log: { path: stdout, sample: 7 percent } }\n",
            ":3:52: error: `7 percent` is not a share; write it like 1% or 0.1%\n",
        ),
        (
            "telemetry: { decision_log: { path: stdout, rate: 0 } }\n",
            ":3:50: error: `0` is out of range: `rate` must be between 1 and 100000\n",
        ),
        (
            "telemetry: { decision_log: { path: a.log, rotate: 5kb } }\n",
            ":3:51: error: `5kb` is not a size of at least 1MB; write it like 64MB or 2GB\n",
        ),
        (
            "telemetry: { decision_log: { keys: shown } }\n",
            ":3:28: error: a decision log needs a `path`, such as stdout, or `otlp: true`\n",
        ),
        (
            "telemetry: { decision_log: { otlp: true } }\n",
            "error: `otlp: true` has no effect: `telemetry.otlp` has no `endpoint`\n",
        ),
        ("telemetry: { stats: {} }\n", ":3:14: error: unknown field `stats`\n"),
        ("telemetry: { otlp: { interval: 5s } }\n", "error: `telemetry.otlp` needs an `endpoint`, such as"),
        ("telemetry: { statsd: {} }\n", "error: `telemetry.statsd` needs an `address`, such as"),
    ] {
        let folder = folder_with(config);
        let output = run(tollgate(["serve", "--config", "tollgate.yaml"]).current_dir(folder.path()));
        assert_eq!(output.code, Some(1), "{output:?}");
        let stderr = output.stderr.strip_prefix("tollgate.yaml").unwrap_or(&output.stderr);
        assert!(stderr.starts_with(expected), "{config}: {}", output.stderr);
    }
    let output = run(&mut tollgate(["serve", "--otlp-endpoint", "http://u:hunter2@h:1"]));
    let expected = "error: the OTLP endpoint must not contain a password; use a header instead\n";
    assert_eq!((output.code, output.stderr.as_str()), (Some(1), expected));
}
