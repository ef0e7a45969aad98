//! Signals: SIGHUP and SIGUSR1 never stop a server, and a second SIGINT or SIGTERM stops it at once.

use crate::gateway::upstream;
use crate::process::{TollgateProcess, make_fifo, tollgate};
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
fn sighup_and_sigusr1_do_not_stop_a_server() {
    let server = TollgateProcess::start([""; 0]);
    let mut client = server.client();
    assert_eq!(client.check("alice", "/").status, 200);
    server.signal("HUP");
    server.wait_for_log("reloading rules, certificates and keys");
    server.signal("USR1");
    assert_eq!(client.check("alice", "/").status, 200, "on the same connection");
    server.signal("TERM");
    server.wait_for_log("stopped; all requests were drained");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn sighup_reloads_the_rule_file() {
    let folder = folder();
    let path = folder.path().join("rules.yaml");
    let server = TollgateProcess::start(["--rules".as_ref(), path.as_os_str()]);
    let mut client = server.client();
    assert_eq!(client.check("a", "/").json()["limit"], 100);
    server.signal("HUP");
    server.wait_for_log("rule file unchanged");
    std::fs::write(&path, RULES.replace("100", "200")).unwrap();
    server.signal("HUP");
    server.wait_for_log("revision=2");
    assert_eq!(client.check("a", "/").json()["limit"], 200);
    std::fs::write(&path, "rules: [").unwrap();
    server.wait_for_log("rule reload failed");
    server.signal("HUP");
    server.wait_for_log("rule reload failed");
    assert_eq!(client.check("a", "/").json()["limit"], 200);
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[test]
fn sighup_and_sigusr1_reopen_the_access_log() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let settings = format!(
        "rules: rules.yaml\ngateway_listen: 127.0.0.1:0\nupstream: http://{}\ngateway: {{ access_log: access.log }}\n",
        upstream()
    );
    std::fs::write(path("tollgate.yaml"), settings).unwrap();
    let server = TollgateProcess::from(tollgate(["gateway", "--config"]).arg(path("tollgate.yaml")));
    let mut client = server.client();
    for (number, signal) in ["USR1", "HUP"].into_iter().enumerate() {
        assert_eq!(client.get("/").status, 200);
        wait_until("the request is logged", || lines(&path("access.log")) == 1);
        let archived = path(&format!("access.log.{number}"));
        std::fs::rename(path("access.log"), &archived).unwrap();
        assert_eq!(client.get("/").status, 200);
        wait_until("the old file is written until then", || lines(&archived) == 2);
        server.signal(signal);
        server.wait_for_log("access log reopened");
        assert_eq!((lines(&archived), lines(&path("access.log"))), (2, 0));
    }
    assert_eq!(client.get("/").status, 200);
    wait_until("the request is logged", || lines(&path("access.log")) == 1);
    // If it cannot be reopened, the old file is used.
    std::fs::remove_file(path("access.log")).unwrap();
    std::fs::create_dir(path("access.log")).unwrap();
    server.signal("USR1");
    let line = server.wait_for_log("cannot reopen the access log");
    assert!(line.contains("ERROR"), "{line}");
    assert_eq!(client.get("/").status, 200);
}

#[test]
fn a_second_signal_stops_without_draining() {
    for (first, second, code) in [("TERM", "INT", 130), ("INT", "INT", 130), ("INT", "TERM", 143)] {
        let server = TollgateProcess::start([""; 0]);
        let mut busy = server.client();
        busy.send(
            "POST /v1/check HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 30\r\n\r\n",
        );
        assert_eq!(busy.reply().status, 100, "the request is being read");
        server.signal(first);
        server.wait_for_log("stopping");
        server.signal("HUP");
        server.wait_for_log("reloading");
        server.signal(second);
        let line = server.wait_for_log("stopped by a second signal");
        assert!(line.contains("WARN"), "{line}");
        assert_eq!(server.wait().code(), Some(code), "{first}, {second}");
    }
}

/// Opening a FIFO without a reader for writing blocks, like a disk that hangs: it is an error instead.
#[test]
fn a_log_that_no_process_reads_fails_the_start() {
    let folder = folder();
    make_fifo(&folder.path().join("access.log"));
    let settings = "rules: rules.yaml\ngateway_listen: 127.0.0.1:0\nadmin_listen: off\nupstream: 127.0.0.1:1\ngateway: { access_log: access.log }\n";
    std::fs::write(folder.path().join("tollgate.yaml"), settings).unwrap();
    let output = tollgate(["gateway", "--config"]).arg(folder.path().join("tollgate.yaml")).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("no process reads this FIFO"), "{errors}");
}
