//! The first steps with `tollgate serve`.

use crate::process::{TollgateProcess, example, run, tollgate};
use std::net::TcpListener;

#[test]
fn serve_needs_no_arguments() {
    let server = TollgateProcess::start([""; 0]);
    assert!(server.start_message.contains("built-in example"), "{}", server.start_message);
    assert!(server.start_message.contains("memory, at most 512 MB"), "{}", server.start_message);
    let mut client = server.client();
    assert_eq!(client.get("/healthz").status, 200);
    assert_eq!(client.get("/readyz").status, 200);
    let statuses: Vec<u16> = (0..7).map(|_| client.check("alice", "/hello").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429], "as the start message says");
    let refused = client.check("alice", "/hello");
    assert!(["1", "2"].contains(&refused.header("retry-after")), "{refused:?}");
    let other = client.check("bob", "/hello");
    assert_eq!((other.status, &other.json()["remaining"]), (200, &4.into()));
}

#[test]
fn serve_uses_a_rule_file() {
    let path = example("orders.yaml");
    let server = TollgateProcess::start(["--rules".as_ref(), path.as_os_str()]);
    assert!(server.start_message.contains("orders.yaml (watched)"), "{}", server.start_message);
    let mut client = server.client();
    let reply = client.check("sk_prod_1", "/v1/orders");
    assert_eq!((reply.status, &reply.json()["rule"]), (200, &"orders".into()));
    assert_eq!(client.check("sk_revoked_1", "/v1/orders").status, 403);
}

#[test]
fn a_broken_rule_file_is_an_error_with_a_position_and_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), "rules:\n  - id: one\n    limt: 5/min\n").unwrap();
    let output =
        run(tollgate(["serve", "--listen", "127.0.0.1:0", "--rules", "rules.yaml"])
            .current_dir(folder.path()));
    assert_eq!(output.code, Some(1));
    assert!(output.stderr.starts_with("rules.yaml:3:5: error: unknown field `limt`"), "{}", output.stderr);
    assert!(output.stderr.contains("hint: did you mean `limit`?"), "{}", output.stderr);
    assert_eq!(output.stdout, "", "no start message");
}

#[test]
fn a_missing_rule_file_is_an_error() {
    let output = run(&mut tollgate(["serve", "--listen", "127.0.0.1:0", "--rules", "no-such-file.yaml"]));
    assert_eq!(output.code, Some(1));
    assert!(output.stderr.contains("cannot read no-such-file.yaml: No such file"), "{}", output.stderr);
}

#[test]
fn a_port_in_use_is_an_error() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&mut tollgate(["serve", "--listen", &address]));
    assert_eq!(output.code, Some(1));
    let expected = format!("error: cannot listen on {address}: Address already in use");
    assert!(output.stderr.contains(&expected), "{}", output.stderr);
    assert!(output.stderr.contains("hint: choose another address with --listen"), "{}", output.stderr);
}

#[test]
fn a_log_without_a_terminal_has_no_colours() {
    let path = example("quickstart.yaml");
    let server = TollgateProcess::start(["--rules".as_ref(), path.as_os_str()]);
    let line = server.wait_for_log("rules in force");
    assert!(line.contains("revision=1 rules=1") && !line.contains('\u{1b}'), "{line:?}");
}
