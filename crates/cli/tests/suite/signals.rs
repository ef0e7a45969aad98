//! What signals do: SIGHUP and SIGUSR1 never end a server, and a second SIGINT or SIGTERM ends it at once.

use crate::gateway::upstream;
use crate::program::{Server, make_fifo, tollgate};
use std::path::Path;
use tempfile::TempDir;
use tollgate_testbed::wait_until;

const RULES: &str = "rules: [{ id: one, limit: 100/h }]";

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    folder
}

#[test]
fn neither_hangup_nor_user1_ends_a_server_that_has_nothing_to_reload() {
    let server = Server::start([""; 0]);
    let mut client = server.client();
    assert_eq!(client.check("alice", "/").status, 200);
    server.signal("HUP");
    server.until_logged("reloading rules, certificates and keys");
    server.signal("USR1");
    assert_eq!(client.check("alice", "/").status, 200, "on the same connection");
    server.signal("TERM");
    server.until_logged("stopped; all requests were drained");
    assert_eq!(server.ended().code(), Some(0));
}

#[test]
fn hangup_reads_the_rule_file_again() {
    let folder = folder();
    let path = folder.path().join("rules.yaml");
    let server = Server::start(["--rules".as_ref(), path.as_os_str()]);
    let mut client = server.client();
    assert_eq!(client.check("a", "/").json()["limit"], 100);
    server.signal("HUP");
    server.until_logged("rule file unchanged");
    std::fs::write(&path, RULES.replace("100", "200")).unwrap();
    server.signal("HUP");
    server.until_logged("revision=2");
    assert_eq!(client.check("a", "/").json()["limit"], 200);
    std::fs::write(&path, "rules: [").unwrap();
    server.until_logged("rule reload failed");
    server.signal("HUP");
    server.until_logged("rule reload failed");
    assert_eq!(client.check("a", "/").json()["limit"], 200);
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[test]
fn hangup_and_user1_open_the_access_log_again() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let settings = format!(
        "rules: rules.yaml\ngateway_listen: 127.0.0.1:0\nupstream: http://{}\ngateway: {{ access_log: access.log }}\n",
        upstream()
    );
    std::fs::write(path("tollgate.yaml"), settings).unwrap();
    let server = Server::from(tollgate(["gateway", "--config"]).arg(path("tollgate.yaml")));
    let mut client = server.client();
    for (number, signal) in ["USR1", "HUP"].into_iter().enumerate() {
        assert_eq!(client.get("/").status, 200);
        wait_until("the request is noted", || lines(&path("access.log")) == 1);
        let archived = path(&format!("access.log.{number}"));
        std::fs::rename(path("access.log"), &archived).unwrap();
        assert_eq!(client.get("/").status, 200);
        wait_until("the old file is written until then", || lines(&archived) == 2);
        server.signal(signal);
        server.until_logged("access log reopened");
        assert_eq!((lines(&archived), lines(&path("access.log"))), (2, 0));
    }
    assert_eq!(client.get("/").status, 200);
    wait_until("the request is noted", || lines(&path("access.log")) == 1);
    // Where it cannot be opened again, the old file is used.
    std::fs::remove_file(path("access.log")).unwrap();
    std::fs::create_dir(path("access.log")).unwrap();
    server.signal("USR1");
    let line = server.until_logged("cannot reopen the access log");
    assert!(line.contains("ERROR"), "{line}");
    assert_eq!(client.get("/").status, 200);
}

#[test]
fn a_second_signal_stops_at_once() {
    for (first, second, code) in [("TERM", "INT", 130), ("INT", "INT", 130), ("INT", "TERM", 143)] {
        let server = Server::start([""; 0]);
        let mut busy = server.client();
        busy.send(
            "POST /v1/check HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 30\r\n\r\n",
        );
        assert_eq!(busy.reply().status, 100, "the request is being read");
        server.signal(first);
        server.until_logged("stopping");
        server.signal("HUP");
        server.until_logged("reloading");
        server.signal(second);
        let line = server.until_logged("stopped by a second signal");
        assert!(line.contains("WARN"), "{line}");
        assert_eq!(server.ended().code(), Some(code), "{first}, {second}");
    }
}

/// A FIFO that is not read cannot be opened to be written: the start hangs, as with a disk that does. It can be stopped.
#[test]
fn a_start_that_hangs_can_be_stopped() {
    let folder = folder();
    make_fifo(&folder.path().join("access.log"));
    let settings = "rules: rules.yaml\nupstream: 127.0.0.1:1\ngateway: { access_log: access.log }\n";
    std::fs::write(folder.path().join("tollgate.yaml"), settings).unwrap();
    let server = Server::silent(tollgate(["gateway", "--config"]).arg(folder.path().join("tollgate.yaml")));
    server.until_logged("rules in force");
    server.signal("TERM");
    server.until_logged("stopped before the start was complete");
    assert_eq!(server.ended().code(), Some(0));
}
