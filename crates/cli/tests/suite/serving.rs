//! `tollgate serve`, as somebody who tries it for the first time meets it.

use crate::program::{Server, example, run, tollgate};
use std::net::TcpListener;

#[test]
fn needs_nothing_to_begin() {
    let server = Server::start([""; 0]);
    assert!(server.start_message.contains("built-in example"), "{}", server.start_message);
    assert!(server.start_message.contains("memory, at most 512 MB"), "{}", server.start_message);
    let mut client = server.client();
    assert_eq!(client.get("/healthz").status, 200);
    assert_eq!(client.get("/readyz").status, 200);
    let statuses: Vec<u16> = (0..7).map(|_| client.check("alice", "/hello").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429], "as the start_message promises");
    let refused = client.check("alice", "/hello");
    assert!(["1", "2"].contains(&refused.header("retry-after")), "{refused:?}");
    let other = client.check("bob", "/hello");
    assert_eq!((other.status, &other.json()["remaining"]), (200, &4.into()));
}

#[test]
fn takes_a_rule_file() {
    let path = example("orders.yaml");
    let server = Server::start(["--rules".as_ref(), path.as_os_str()]);
    assert!(server.start_message.contains("orders.yaml (watched)"), "{}", server.start_message);
    let mut client = server.client();
    let reply = client.check("sk_prod_1", "/v1/orders");
    assert_eq!((reply.status, &reply.json()["rule"]), (200, &"orders".into()));
    assert_eq!(client.check("sk_revoked_1", "/v1/orders").status, 403);
}

#[test]
fn a_broken_rule_file_ends_it_with_the_place_and_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), "rules:\n  - id: one\n    limt: 5/min\n").unwrap();
    let ended =
        run(tollgate(["serve", "--listen", "127.0.0.1:0", "--rules", "rules.yaml"])
            .current_dir(folder.path()));
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.starts_with("rules.yaml:3:5: error: unknown field `limt`"), "{}", ended.stderr);
    assert!(ended.stderr.contains("hint: did you mean `limit`?"), "{}", ended.stderr);
    assert_eq!(ended.stdout, "", "it does not say that it serves");
}

#[test]
fn a_missing_rule_file_ends_it() {
    let ended = run(&mut tollgate(["serve", "--listen", "127.0.0.1:0", "--rules", "no-such-file.yaml"]));
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("cannot read no-such-file.yaml: No such file"), "{}", ended.stderr);
}

#[test]
fn a_port_in_use_is_said() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ended = run(&mut tollgate(["serve", "--listen", &address]));
    assert_eq!(ended.code, Some(1));
    let expected = format!("error: cannot listen on {address}: Address already in use");
    assert!(ended.stderr.contains(&expected), "{}", ended.stderr);
    assert!(ended.stderr.contains("hint: choose another address with --listen"), "{}", ended.stderr);
}

#[test]
fn what_is_logged_to_a_file_or_pipe_has_no_colours() {
    let path = example("quickstart.yaml");
    let server = Server::start(["--rules".as_ref(), path.as_os_str()]);
    let line = server.until_logged("rules in force");
    assert!(line.contains("revision=1 rules=1") && !line.contains('\u{1b}'), "{line:?}");
}
