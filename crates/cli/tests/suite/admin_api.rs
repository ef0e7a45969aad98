//! The admin API of the real binary: publishing while checks are decided, access, secrets.

use crate::http_client::HttpClient;
use crate::process::{PATIENCE, TollgateProcess, tollgate};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;
use tokio::time::Instant;
use tollgate_testbed::TestCertificates;

const RULES: &str =
    "# The limits of the shop.\nrules:\n  - id: api   # by key\n    key: api_key\n    limit: 5/h\n";

fn serve(folder: &Path) -> Command {
    let mut command =
        tollgate(["serve", "--listen", "127.0.0.1:0", "--data", "data", "--rules", "rules.yaml"]);
    command.current_dir(folder);
    command
}

fn folder_with(rules: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    folder
}

/// How many of `requests` requests of a new key are admitted.
fn admitted(client: &mut HttpClient, key: &str, requests: usize) -> usize {
    (0..requests).filter(|_| client.check(key, "/v1/orders").status == 200).count()
}

/// Waits until `admitted` of ten requests of a new key are admitted.
fn wait_for_limit(server: &TollgateProcess, expected: usize) {
    let (mut client, start) = (server.client(), Instant::now());
    for attempt in 0.. {
        if admitted(&mut client, &format!("key{expected}-{attempt}"), 10) == expected {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "the rules are not in force");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn published_rules_are_in_force_and_survive_a_restart() {
    let folder = folder_with(RULES);
    let server = TollgateProcess::from(&mut serve(folder.path()));
    let token = server.operate_token();
    wait_for_limit(&server, 5);
    let mut admin = server.admin();
    let rules = admin.call("GET", "/v1/rules", &token, "", "");
    assert_eq!((rules.status, rules.header("etag")), (200, "\"1\""));
    let new = RULES.replace("5/h", "3/h");
    let reply = admin.call("PUT", "/v1/rules", &token, "If-Match: \"1\"\r\nX-Message: fewer\r\n", &new);
    assert_eq!((reply.status, reply.body.as_str()), (200, "{\"revision\":2}"));
    wait_for_limit(&server, 3);
    // What is refused changes nothing.
    for bad in ["rules: [{ id: api, key: api_key, limit: 0/s }]", "deny: ['*']\nrules: []", "", "{"] {
        let reply = admin.call("PUT", "/v1/rules", &token, "If-Match: \"2\"\r\n", bad);
        assert_eq!(reply.status, 422, "{bad}: {reply:?}");
        assert!(!reply.json()["errors"].as_array().unwrap().is_empty(), "{reply:?}");
    }
    assert_eq!(admitted(&mut server.client(), "after the refusals", 10), 3);
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));

    let server = TollgateProcess::from(&mut serve(folder.path()));
    assert_eq!(server.operate_token(), token, "kept over a restart");
    wait_for_limit(&server, 3);
    let mut admin = server.admin();
    let back = admin.call("POST", "/v1/revisions/1/rollback", &token, "", r#"{"message":"back"}"#);
    assert_eq!(back.json()["revision"], 3);
    wait_for_limit(&server, 5);
    let audit = admin.call("GET", "/v1/audit", &token, "", "").json();
    let entries = audit["entries"].as_array().unwrap();
    let actions: Vec<&str> = entries.iter().map(|entry| entry["action"].as_str().unwrap()).collect();
    assert_eq!(actions, ["rules.rollback", "rules.publish"]);
    assert_eq!((&entries[1]["detail"], &entries[1]["from"]), (&json!("fewer"), &json!("127.0.0.1")));
}

#[test]
fn no_secret_is_logged_or_shown() {
    let folder = folder_with(RULES);
    let server = TollgateProcess::from(serve(folder.path()).env("TOLLGATE_LOG", "trace"));
    let operate = server.operate_token();
    let file = folder.path().join("data/operate.token");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!server.start_message.contains(&operate), "{}", server.start_message);
    let mut admin = server.admin();
    let created = admin.call("POST", "/v1/tokens", &operate, "", r#"{"name":"ci","role":"operate"}"#).json();
    let token = created["token"].as_str().unwrap().to_owned();
    let login = admin.call("POST", "/v1/session", "none", "", &json!({ "token": token }).to_string());
    let cookie = login.header("set-cookie").split(['=', ';']).nth(1).unwrap().to_owned();
    assert_eq!(cookie.len(), 64);
    admin.call("POST", "/v1/session", "none", "", r#"{"token":"a_wrong_secret"}"#);
    admin.call("GET", "/v1/rules", "another_wrong_secret", "", "");
    admin.call("POST", "/v1/lists/deny", &token, "", r#"{"key":"sk_live_0123456789abcdef"}"#);
    let shown: String = ["/v1/tokens", "/v1/audit", "/v1/session", "/metrics", "/openapi.json"]
        .map(|path| admin.call("GET", path, &token, "", "").body)
        .concat();
    server.signal("TERM");
    let log = server.rest_of_log();
    assert!(log.contains("audit") && log.contains("stopped"), "{log}");
    for secret in [
        &operate[9..],
        &token[9..],
        cookie.as_str(),
        "a_wrong_secret",
        "another_wrong_secret",
        "sk_live_0123456789abcdef",
    ] {
        assert!(!log.contains(secret), "{secret} is logged: {log}");
        assert!(!shown.contains(secret), "{secret} is shown: {shown}");
    }
    let kept = std::fs::read(folder.path().join("data/control.redb")).unwrap();
    let stores = |secret: &str| kept.windows(secret.len()).any(|window| window == secret.as_bytes());
    assert!(!stores(&token[9..]), "the token is stored in clear text");
}

#[test]
fn the_admin_listener_may_have_tls() {
    let folder = folder_with(RULES);
    let certificates = TestCertificates::generate();
    std::fs::write(folder.path().join("cert.pem"), &certificates.certificate).unwrap();
    std::fs::write(folder.path().join("key.pem"), &certificates.key).unwrap();
    let config = "admin_listen: 0.0.0.0:0\nadmin:\n  tls: { certificate: cert.pem, key: key.pem }\n  hosts: [admin.example]\n";
    std::fs::write(folder.path().join("tollgate.yaml"), config).unwrap();
    let mut command = tollgate(["serve", "--listen", "127.0.0.1:0", "--config", "tollgate.yaml"]);
    let server =
        TollgateProcess::from(command.env_remove("TOLLGATE_ADMIN_LISTEN").current_dir(folder.path()));
    let (_, rest) = server.start_message.split_once("  admin   https://0.0.0.0:").unwrap();
    let port = rest.split_once('/').unwrap().0;
    let token = server.operate_token();
    let curl = |path: &str, header: &str| {
        let url = format!("https://127.0.0.1:{port}{path}");
        let output = Command::new("curl")
            .args(["-sk", "-w", "%{http_code}", "-o", "/dev/null", "-H", header, &url])
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    assert_eq!(curl("/healthz", "X: y"), "200");
    assert_eq!(curl("/metrics", "X: y"), "401", "other hosts reach it");
    assert_eq!(curl("/metrics", &format!("Authorization: Bearer {token}")), "200");
    assert_eq!(curl("/healthz", "Host: evil.example"), "403");
    assert_eq!(curl("/healthz", "Host: admin.example"), "200");
}
