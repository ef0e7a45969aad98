//! The RLS door of the binary behind a stock Envoy, with the shipped configuration (`examples/envoy`), and asked by a gRPC
//! client over TLS.

use crate::certificate_reload::{CertificateFolder, read_chain};
use crate::gateway::upstream;
use crate::http_client::{HttpClient, HttpReply};
use crate::process::{PATIENCE, TollgateProcess, example, run, tollgate};
use std::net::SocketAddr;
use tempfile::TempDir;
use tokio::time::{Instant, timeout};
use tollgate_server::rls_door::proto::{
    Code, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitServiceClient,
};
use tollgate_testbed::{EnvoyServer, StallMonitor, wait_until};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

/// A node with an RLS door.
struct EnvoyNode {
    process: TollgateProcess,
    grpc: SocketAddr,
    folder: TempDir,
}

/// Starts a node with these rules, and these lines in the settings.
fn node(rules: &str, settings: &str) -> EnvoyNode {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    std::fs::write(folder.path().join("tollgate.yaml"), format!("rules: rules.yaml\n{settings}\n")).unwrap();
    open(folder, "127.0.0.1:0")
}

fn open(folder: TempDir, grpc: &str) -> EnvoyNode {
    let mut command = tollgate(["serve", "--listen", "127.0.0.1:0", "--grpc-listen", grpc, "--config"]);
    let process = TollgateProcess::from(command.arg(folder.path().join("tollgate.yaml")));
    EnvoyNode { grpc: grpc_address(&process), process, folder }
}

fn grpc_address(process: &TollgateProcess) -> SocketAddr {
    let (_, rest) = process.start_message.split_once("  envoy   http").expect("it names the RLS door");
    rest.trim_start_matches(['s', ':', '/']).split_once(' ').unwrap().0.parse().unwrap()
}

fn shipped_rules() -> String {
    std::fs::read_to_string(example("../envoy/rules.yaml")).unwrap()
}

/// The shipped rules without their tests, by the day: a token that is refilled during a test would not be counted.
fn rules_by_the_day() -> String {
    let rules = shipped_rules();
    let (rules, _) = rules.split_once("\ntests:").unwrap();
    replaced(rules, "/min", "/day")
}

/// The shipped configuration with these addresses, and a timeout that no stall of the machine exceeds.
fn envoy_settings(tollgate: SocketAddr) -> String {
    let mut text = std::fs::read_to_string(example("../envoy/envoy.yaml")).unwrap();
    for (shipped, new) in [
        ("address: 10.0.0.11, port_value: 8081", tollgate),
        ("address: 10.0.0.20, port_value: 3000", upstream()),
    ] {
        assert!(text.contains(shipped), "{shipped}");
        text = text.replace(shipped, &format!("address: {}, port_value: {}", new.ip(), new.port()));
    }
    let text = replaced(&text, "address: 0.0.0.0, port_value: 80 ", "address: 127.0.0.1, port_value: PORT ");
    replaced(&text, "timeout: 0.02s", "timeout: 20s")
}

fn replaced(text: &str, shipped: &str, new: &str) -> String {
    assert!(text.contains(shipped), "{shipped}");
    text.replace(shipped, new)
}

/// Sends a request; `headers` are whole lines.
fn get(envoy: &EnvoyServer, path: &str, headers: &str) -> HttpReply {
    let mut client = HttpClient::connect(envoy.address());
    client.send(&format!("GET {path} HTTP/1.1\r\nHost: test\r\n{headers}\r\n"));
    client.reply()
}

fn statuses(envoy: &EnvoyServer, count: usize, path: &str, headers: &str) -> Vec<u16> {
    (0..count).map(|_| get(envoy, path, headers).status).collect()
}

fn admitted(envoy: &EnvoyServer, count: usize, path: &str, headers: &str) -> usize {
    statuses(envoy, count, path, headers).into_iter().filter(|status| *status == 200).count()
}

#[test]
fn the_101st_of_100_is_refused() {
    let node = node(&rules_by_the_day(), "");
    let envoy = EnvoyServer::start(&envoy_settings(node.grpc));
    for remaining in (0..100).rev() {
        let reply = get(&envoy, "/v1/orders", "X-Api-Key: sk_1\r\n");
        assert_eq!((reply.status, reply.header("x-ratelimit-limit")), (200, "100"), "{reply:?}");
        assert_eq!(reply.header("x-ratelimit-remaining"), remaining.to_string());
        assert_eq!(reply.header("ratelimit-policy"), "\"client\";q=100;w=86400");
    }
    let reply = get(&envoy, "/v1/orders", "X-Api-Key: sk_1\r\n");
    assert_eq!((reply.status, reply.header("x-ratelimit-remaining")), (429, "0"), "{reply:?}");
    assert_eq!(reply.header("retry-after"), "864");
    assert_eq!(reply.header("content-type"), "application/json");
    assert!(reply.header("ratelimit").starts_with("\"client\";r=0;t="), "{reply:?}");
    assert!(reply.body.contains("RATE_LIMIT_EXCEEDED"), "{reply:?}");
    assert_eq!(get(&envoy, "/v1/orders", "X-Api-Key: sk_2\r\n").status, 200, "another client");
    // The costs of the route: five for each.
    assert_eq!(admitted(&envoy, 12, "/v1/reports/7?page=1", "X-Api-Key: sk_3\r\n"), 10);
    // Another spelling of the path is the same route.
    for path in ["//v1/reports/7", "/x/../v1/reports/7", "/v1/%72eports/7", "/v1//reports/./7"] {
        assert_eq!(get(&envoy, path, "X-Api-Key: sk_3\r\n").status, 429, "{path}");
    }
    assert_eq!(get(&envoy, "/v1%2freports/7", "X-Api-Key: sk_3\r\n").status, 400);
    // Neither a path nor a header of the client makes Envoy fail open.
    let hostile = get(&envoy, "/v1/reports/%zz", "X-Api-Key: sk_4\r\n");
    assert_eq!(hostile.status, 429, "{hostile:?}");
    assert!(hostile.body.contains("BAD_REQUEST"), "{hostile:?}");
    let mut client = HttpClient::connect(envoy.address());
    client.send_bytes(b"GET /v1/reports HTTP/1.1\r\nHost: test\r\nX-Api-Key: sk_\xff\r\n\r\n");
    let hostile = client.reply();
    assert_eq!(hostile.status, 429, "{hostile:?}");
    let metrics = node.process.admin().get("/metrics").body;
    assert!(metrics.contains(r#"door="rls""#), "{metrics}");
}

#[test]
fn envoy_writes_its_own_headers() {
    let node = node(&rules_by_the_day(), "grpc: { headers: { x_ratelimit: false } }");
    let own = "                      domain: edge\n";
    let settings = envoy_settings(node.grpc);
    let settings = replaced(
        &settings,
        own,
        &format!("{own}                      enable_x_ratelimit_headers: DRAFT_VERSION_03\n"),
    );
    let envoy = EnvoyServer::start(&settings);
    for remaining in (0..100).rev() {
        let reply = get(&envoy, "/", "X-Api-Key: sk_1\r\n");
        assert_eq!((reply.status, reply.header("x-ratelimit-remaining")), (200, &*remaining.to_string()));
        let limits = r#"100, 100;w=86400;name="client", 1000;w=86400;name="address""#;
        assert_eq!(reply.header("x-ratelimit-limit"), limits, "{reply:?}");
    }
    let reply = get(&envoy, "/", "X-Api-Key: sk_1\r\n");
    assert_eq!((reply.status, reply.header("x-ratelimit-remaining")), (429, "0"));
    let reset: u64 = reply.header("x-ratelimit-reset").parse().unwrap();
    assert!((1..=86400).contains(&reset), "{reply:?}");
    assert_eq!(reply.header("retry-after"), "864");
    let count = |name: &str| reply.headers.iter().filter(|(known, _)| known == name).count();
    for name in ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after"] {
        assert_eq!(count(name), 1, "{name}: {reply:?}");
    }
}

/// A client over its limit takes nothing from the limit of its address, unless the setting says so.
#[test]
fn descriptors_are_charged_all_or_nothing() {
    let rules = replaced(&rules_by_the_day(), "limit: 100/day", "limit: 5/day");
    let rules = replaced(&rules, "limit: 1000/day", "limit: 8/day");
    for (settings, of_other) in [("", 3), ("grpc: { descriptors: independent }", 1)] {
        let node = node(&rules, settings);
        let envoy = EnvoyServer::start(&envoy_settings(node.grpc));
        assert_eq!(admitted(&envoy, 7, "/", "X-Api-Key: sk_1\r\n"), 5, "{settings}");
        assert_eq!(admitted(&envoy, 4, "/", "X-Api-Key: sk_2\r\n"), of_other, "{settings}");
    }
}

/// Envoy takes the hits of a request from a header, and gives some back.
#[test]
fn hits_come_from_the_request() {
    let node = node(
        "rules: [{ id: client, match: { exactly: [api_key] }, key: api_key, algorithm: fixed_window, limit: 10/day }]",
        "",
    );
    let settings = envoy_settings(node.grpc);
    let action = "- actions: [{ request_headers: { header_name: x-api-key, descriptor_key: api_key } }]";
    let taken = format!("{action}\n                          hits_addend: {{ format: \"%REQ(x-cost)%\" }}");
    let given_back = format!(
        "{action}\n                          hits_addend: {{ format: \"%REQ(x-refund)%\", is_negative_hits: true }}"
    );
    let settings = replaced(&settings, action, &format!("{taken}\n                        {given_back}"));
    let envoy = EnvoyServer::start(&settings);
    for (headers, status, remaining) in [
        ("X-Cost: 4", 200, "6"),
        ("X-Cost: 4", 200, "2"),
        ("X-Cost: 4", 429, "2"),
        ("X-Cost: 2", 200, "0"),
        ("X-Cost: 0", 429, "0"),
        ("X-Refund: 3", 200, "3"),
        ("X-Cost: 3", 200, "0"),
        ("X-Refund: 1000", 200, "10"),
    ] {
        let reply = get(&envoy, "/", &format!("X-Api-Key: sk_1\r\n{headers}\r\n"));
        let shown = (reply.status, reply.header("x-ratelimit-remaining"));
        assert_eq!(shown, (status, remaining), "{headers}: {reply:?}");
    }
}

/// While the node is down Envoy's failure mode decides, and within a second of its start the limits hold again.
#[test]
fn a_killed_node_returns() {
    let rules = shipped_rules();
    let mut nodes = [node(&rules, ""), node(&rules, "")];
    let open_on_failure = EnvoyServer::start(&envoy_settings(nodes[0].grpc));
    let settings = envoy_settings(nodes[1].grpc);
    let closed_on_failure =
        EnvoyServer::start(&replaced(&settings, "failure_mode_deny: false", "failure_mode_deny: true"));
    let ask = |envoy: &EnvoyServer| {
        let reply = get(envoy, "/", "X-Api-Key: sk_1\r\n");
        (reply.status, reply.header("x-ratelimit-limit").to_owned())
    };
    let limited = (200, "100".to_owned());
    for (node, envoy, status) in [(0, &open_on_failure, 200), (1, &closed_on_failure, 500)] {
        assert_eq!(ask(envoy), limited);
        let monitor = StallMonitor::start();
        let [EnvoyNode { process, grpc, folder }, other] = nodes;
        process.signal("KILL");
        process.wait();
        for _ in 0..20 {
            assert_eq!(ask(envoy), (status, String::new()));
        }
        let restarted = open(folder, &grpc.to_string());
        let start = Instant::now();
        wait_until("Envoy asks the node again", || ask(envoy) == limited);
        let took = start.elapsed();
        let most = std::time::Duration::from_secs(1) + 3 * monitor.longest();
        assert!(took <= most, "node {node}: {took:?}, of which {:?} is a stall", monitor.longest());
        nodes = [other, restarted];
    }
}

fn request(entries: &[(&str, &str)]) -> RateLimitRequest {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    let entries = entries.iter().map(entry).collect();
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    RateLimitRequest { domain: "edge".to_owned(), descriptors, hits_addend: 0 }
}

async fn connect(address: SocketAddr, authority: &str) -> Result<Channel, tonic::transport::Error> {
    let tls =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority)).domain_name("localhost");
    let endpoint = Endpoint::try_from(format!("https://{address}")).unwrap().tls_config(tls)?;
    timeout(PATIENCE, endpoint.connect()).await.expect("it answers")
}

/// A call with the authority that is in the folder.
async fn call(folder: &CertificateFolder, address: SocketAddr) -> Result<Code, tonic::transport::Error> {
    let authority = std::fs::read_to_string(folder.path("authority.pem")).unwrap();
    let mut client = RateLimitServiceClient::new(connect(address, &authority).await?);
    let answer = client.should_rate_limit(request(&[("api_key", "sk_1")])).await.unwrap();
    Ok(answer.into_inner().overall_code())
}

#[test]
fn tls_certificates_are_reloaded() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let files = CertificateFolder::new();
    std::fs::write(files.path("rules.yaml"), shipped_rules()).unwrap();
    let settings = "rules: rules.yaml\ngrpc: { tls: { certificate: cert.pem, key: key.pem } }\n";
    std::fs::write(files.path("tollgate.yaml"), settings).unwrap();
    let mut command =
        tollgate(["serve", "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0", "--config"]);
    let server = TollgateProcess::from(command.arg(files.path("tollgate.yaml")));
    server.wait_for_log("certificate in force");
    assert!(server.start_message.contains("  envoy   https://"), "{}", server.start_message);
    let address = grpc_address(&server);
    assert_eq!(runtime.block_on(call(&files, address)).unwrap(), Code::Ok);
    let before = read_chain(&files.path("cert.pem"));
    files.renew();
    assert_ne!(read_chain(&files.path("cert.pem")), before);
    // The new authority has not signed the old certificate.
    wait_until("the new certificate is in force", || {
        runtime.block_on(call(&files, address)).is_ok_and(|code| code == Code::Ok)
    });
    server.signal("TERM");
    assert!(server.wait().success());
}

#[test]
fn idle_connections_do_not_delay_a_stop() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let node = node(&shipped_rules(), "");
    let endpoint = Endpoint::try_from(format!("http://{}", node.grpc)).unwrap();
    let mut client =
        runtime.block_on(async { RateLimitServiceClient::new(endpoint.connect().await.unwrap()) });
    let answer = runtime.block_on(client.should_rate_limit(request(&[("api_key", "sk_1")]))).unwrap();
    assert_eq!(answer.into_inner().overall_code(), Code::Ok);
    node.process.signal("TERM");
    assert!(node.process.wait().success());
    let error = runtime.block_on(client.should_rate_limit(request(&[("api_key", "sk_1")]))).unwrap_err();
    assert_eq!(error.code(), tonic::Code::Unavailable);
}

/// Rules that the door cannot apply are warned about.
#[test]
fn rules_are_checked_for_the_door() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    std::fs::write(&rules, "rules: [{ id: slots, key: slots, algorithm: concurrency, limit: 2 }]\n").unwrap();
    let config = folder.path().join("tollgate.yaml");
    std::fs::write(&config, "rules: rules.yaml\ngrpc_listen: 127.0.0.1:0\n").unwrap();
    let output = run(tollgate(["rules", "check"]).arg(&rules).arg("--config").arg(&config));
    let warned = "the RLS door refuses every request that matches rule `slots`";
    assert!(output.stderr.contains(warned) || output.stdout.contains(warned), "{output:?}");
}
