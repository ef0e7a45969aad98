//! The admin listener: its settings, and what it answers.

use crate::gateway::upstream;
use crate::process::{TollgateProcess, run, tollgate};
use std::net::TcpListener;
use std::process::Command;
use tempfile::TempDir;

fn folder_with(config: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tollgate.yaml"), config).unwrap();
    folder
}

/// `serve` without the address that tests set.
fn serve() -> Command {
    let mut command = tollgate(["serve", "--listen", "127.0.0.1:0"]);
    command.env_remove("TOLLGATE_ADMIN_LISTEN");
    command
}

#[test]
fn health_and_metrics_have_a_listener_of_their_own() {
    let server = TollgateProcess::start([""; 0]);
    let mut admin = server.admin();
    assert_eq!(admin.get("/healthz").body, "ok");
    assert_eq!(admin.get("/readyz").body, "ready");
    let metrics = admin.get("/metrics");
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!("\ntollgate_build_info{{version=\"{version}\"}} 1.0\n");
    assert!(metrics.body.contains(&expected), "{metrics:?}");
    assert_eq!(metrics.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    assert_eq!(admin.call("GET", "/v1/check", &server.operate_token(), "", "").status, 404);
    assert_eq!(server.client().get("/metrics").status, 404, "not at the check API");
}

#[test]
fn a_gateway_has_it_too() {
    let command = ["gateway", "--gateway-listen", "127.0.0.1:0", "--upstream"];
    let server = TollgateProcess::from(tollgate(command).arg(upstream().to_string()));
    assert_eq!(server.admin().get("/readyz").body, "ready");
    let metrics = server.admin().get("/metrics").body;
    assert!(
        metrics.contains("tollgate_gateway_upstream_retries_total{upstream=\"default\"} 0\n"),
        "{metrics}"
    );
    server.signal("TERM");
    server.wait_for_log("stopped; all requests were drained");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn no_series_occurs_twice() {
    let logs = "gateway: { access_log: access.log }\ntelemetry: { decision_log: { path: decisions.log } }\n";
    let folder = folder_with(&format!("listen: 127.0.0.1:0\nadmin_listen: 127.0.0.1:0\n{logs}"));
    let mut command = serve();
    command.args([
        "--config",
        "tollgate.yaml",
        "--gateway-listen",
        "127.0.0.1:0",
        "--upstream",
        "127.0.0.1:9",
    ]);
    let server = TollgateProcess::from(command.current_dir(folder.path()));
    let metrics = server.admin().get("/metrics").body;
    let mut seen = std::collections::BTreeSet::new();
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        assert!(seen.insert(series), "{series} occurs twice");
    }
    assert!(seen.contains("tollgate_log_lines_dropped_total{log=\"access\"}"), "{metrics}");
}

/// The requests in flight end after the signal, and until then a probe learns why the node is not ready.
#[test]
fn it_reports_the_drain() {
    let command = ["gateway", "--gateway-listen", "127.0.0.1:0", "--upstream"];
    let server = TollgateProcess::from(tollgate(command).arg(upstream().to_string()));
    let mut busy = server.client();
    busy.send("GET /tunnel HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n");
    assert_eq!(busy.reply().status, 101, "a connection that stays open");
    server.signal("TERM");
    server.wait_for_log("stopping");
    let reply = server.admin().get("/readyz");
    assert_eq!((reply.status, reply.body.as_str()), (503, "not ready: the node is draining\n"));
    drop(busy);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn its_address_is_a_flag_a_variable_or_a_field() {
    let folder = folder_with("admin_listen: 127.0.0.1:0\n");
    let config = folder.path().join("tollgate.yaml");
    for command in [
        serve().args(["--admin-listen", "127.0.0.1:0"]),
        serve().args(["--admin-listen", ":0"]),
        serve().env("TOLLGATE_ADMIN_LISTEN", "127.0.0.1:0"),
        serve().arg("--config").arg(&config),
        serve().arg("--config").arg(&config).env("TOLLGATE_ADMIN_LISTEN", ""),
    ] {
        let server = TollgateProcess::from(command);
        assert_eq!(server.admin().get("/healthz").status, 200, "{}", server.start_message);
    }
    for (text, expected) in [
        ("here", "tollgate.yaml:1:15: error: `here` is not an address to listen on"),
        ("[9090]", "tollgate.yaml:1:15: error: "),
    ] {
        let folder = folder_with(&format!("admin_listen: {text}\n"));
        let output = run(serve().args(["--config", "tollgate.yaml"]).current_dir(folder.path()));
        assert!(output.stderr.starts_with(expected), "{}", output.stderr);
    }
}

#[test]
fn it_can_be_switched_off() {
    let folder = folder_with("admin_listen: off\n");
    let config = folder.path().join("tollgate.yaml");
    for command in [serve().args(["--admin-listen", "off"]), serve().arg("--config").arg(&config)] {
        let server = TollgateProcess::from(command);
        assert!(!server.start_message.contains("admin"), "{}", server.start_message);
        assert_eq!(server.client().get("/healthz").status, 200);
    }
}

#[test]
fn an_address_that_other_hosts_reach_must_be_allowed() {
    let expected = "error: the admin listener must not be reachable at 0.0.0.0:0 without TLS: tokens would be sent in clear text\n  \
                    hint: set `admin: { tls: { certificate: …, key: … } }`, use a loopback address such as 127.0.0.1:9090, \
                    or allow it with --admin-insecure (`admin_insecure: true`)\n";
    for flag in [&[][..], &["--admin-insecure=false"]] {
        let output = run(serve().args(["--admin-listen", "0.0.0.0:0"]).args(flag));
        assert_eq!((output.code, output.stderr.as_str()), (Some(1), expected));
    }
    let folder = folder_with("admin_listen: 0.0.0.0:0\nadmin_insecure: true\n");
    let config = folder.path().join("tollgate.yaml");
    for command in [
        serve().args(["--admin-listen", "0.0.0.0:0", "--admin-insecure"]),
        serve().args(["--admin-listen", "0.0.0.0:0"]).env("TOLLGATE_ADMIN_INSECURE", "true"),
        serve().arg("--config").arg(&config).env("TOLLGATE_ADMIN_INSECURE", ""),
    ] {
        let server = TollgateProcess::from(command);
        let metrics = server.admin().get("/metrics");
        assert_eq!(metrics.status, 401, "other hosts need a token: {}", server.start_message);
        let metrics = server.admin().call("GET", "/metrics", &server.operate_token(), "", "");
        assert_eq!(metrics.status, 200, "{}", server.start_message);
    }
    let output = run(serve().args(["--admin-listen", "off", "--admin-insecure"]));
    let expected = "error: --admin-insecure has no effect: `admin_listen` is closed to other hosts\n";
    assert_eq!(output.stderr, expected);
}

#[test]
fn a_port_in_use_is_an_error() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(serve().args(["--admin-listen", &address]));
    assert_eq!(output.code, Some(1));
    let expected = format!("error: cannot listen on {address}: Address already in use");
    assert!(output.stderr.contains(&expected), "{}", output.stderr);
    assert!(output.stderr.contains("hint: choose another address with --admin-listen"), "{}", output.stderr);
    assert_eq!(output.stdout, "", "no start message");
}
