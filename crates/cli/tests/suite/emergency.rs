//! The emergency limit at each door of the real binary, and its settings.

use crate::gateway::upstream;
use crate::http_client::HttpClient;
use crate::process::{TollgateProcess, run, tollgate};
use std::process::Command;
use tempfile::TempDir;
use tollgate_testbed::wait_until;

const WIDE: &str = "rules:\n  - { id: api, key: api_key, limit: 1000000/h }\n";

fn folder_with(config: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), WIDE).unwrap();
    std::fs::write(folder.path().join("tollgate.yaml"), config).unwrap();
    folder
}

fn serve(folder: &TempDir) -> Command {
    let mut command =
        tollgate(["serve", "--listen", "127.0.0.1:0", "--rules", "rules.yaml", "--config", "tollgate.yaml"]);
    command.current_dir(folder.path());
    command
}

/// The statuses of `requests` checks of one address, each with a key of its own.
fn check(client: &mut HttpClient, ip: &str, requests: usize) -> Vec<u16> {
    let statuses = (0..requests).map(|key| {
        let body = format!(r#"{{"key":"{ip}-{key}","ip":"{ip}","endpoint":"/"}}"#);
        let length = body.len();
        client.send(&format!(
            "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
        ));
        client.reply().status
    });
    statuses.collect()
}

fn passed(statuses: &[u16]) -> usize {
    statuses.iter().filter(|status| **status == 200).count()
}

#[test]
fn the_switch_is_in_force_at_each_door() {
    let folder = folder_with("");
    let mut command = serve(&folder);
    command.args(["--gateway-listen", "127.0.0.1:0", "--upstream", &upstream().to_string()]);
    let server = TollgateProcess::from(&mut command);
    let (mut checks, mut gateway) = (server.client(), HttpClient::connect(server.gateway_address()));
    let switch = |mode: &str| {
        let body = format!(r#"{{"mode":"{mode}"}}"#);
        let reply = server.admin().call("PUT", "/v1/emergency", &server.operate_token(), "", &body);
        assert_eq!(reply.status, 200, "{reply:?}");
    };
    assert_eq!(passed(&check(&mut checks, "203.0.113.1", 30)), 30);
    assert!((0..30).all(|_| gateway.get("/").status == 200));
    switch("on");
    let mut address = 0;
    wait_until("the check API refuses", || {
        address += 1;
        check(&mut checks, &format!("203.0.113.{address}"), 30).contains(&429)
    });
    wait_until("the gateway refuses", || gateway.get("/").status == 429);
    let refused = gateway.get("/");
    if refused.status == 429 {
        assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1, "{refused:?}");
    }
    switch("off");
    wait_until("the gateway admits again", || (0..30).all(|_| gateway.get("/").status == 200));
    assert_eq!(passed(&check(&mut checks, "203.0.113.200", 30)), 30);
}

/// The number is a setting with every store.
#[test]
fn the_limit_is_a_setting() {
    for (config, arguments, least) in [
        ("emergency: on\nemergency_per_second: 200\n", &[][..], 200),
        ("emergency: on\nemergency_per_second: 7\n", &["--emergency-per-second", "150"], 150),
        ("", &["--emergency", "on", "--emergency-per-second", "100"], 100),
    ] {
        let folder = folder_with(config);
        let server = TollgateProcess::from(serve(&folder).args(arguments));
        let shown = server.admin().call("GET", "/v1/emergency", &server.operate_token(), "", "").json();
        assert_eq!((&shown["mode"], &shown["per_second"]), (&"default".into(), &least.into()), "{shown}");
        let admitted = passed(&check(&mut server.client(), "203.0.113.1", 400));
        // While they are sent, tokens come back.
        assert!((least..400).contains(&admitted), "{config} {arguments:?}: {admitted}");
    }
    for (config, arguments, expected) in [
        ("emergency_per_second: 0\n", &[][..], "tollgate.yaml:1:23: error: `0` is out of range"),
        ("emergency_per_second: many\n", &[], "tollgate.yaml:1:23: error: `many` is out of range"),
        ("emergency: maybe\n", &[], "tollgate.yaml:1:12: error: `maybe` is not a value of `emergency`"),
        (
            "",
            &["--emergency-per-second", "0"],
            "error: `0` is out of range: `emergency_per_second` must be between 1 and 1000000",
        ),
    ] {
        let folder = folder_with(config);
        let output = run(serve(&folder).args(arguments));
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(output.stderr.starts_with(expected), "{config} {arguments:?}: {}", output.stderr);
    }
}
