//! Standard output and standard error that cannot be written to.

use crate::process::{TollgateProcess, example, tollgate};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, ExitStatus, Stdio};
use tollgate_testbed::wait_until;

pub fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

/// A pipe whose reader is closed.
pub fn closed_pipe() -> std::io::PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer
}

/// Commands that write to standard output. Those that need a control plane are in `published_rules`.
fn commands() -> Vec<Command> {
    let rules = example("orders.yaml");
    let rules = rules.to_str().unwrap();
    let nginx = example("../sticky-routing/nginx.conf");
    let nginx = nginx.to_str().unwrap();
    [
        &["--help"][..],
        &["--version"],
        &["serve", "--help"],
        &["top", "--help"],
        &["demo", "--help"],
        &["rules", "check", rules],
        &["rules", "test", rules],
        &["rules", "explain", rules, "--key", "a"],
        &["rules", "schema"],
        &["rules", "import", "nginx", nginx],
        &["simulate", "--nodes", "1", "--clients", "5", "--rate", "100", "--seconds", "1"],
    ]
    .into_iter()
    .map(tollgate)
    .collect()
}

/// Runs a command, and returns its exit status and standard error.
fn run(command: &mut Command) -> (ExitStatus, String) {
    let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    (output.status, String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_closed_pipe_ends_a_command_without_a_message() {
    for mut command in commands() {
        let (status, stderr) = run(command.stdout(closed_pipe()));
        assert_eq!((status.code(), stderr.as_str()), (Some(141), ""), "{command:?}");
    }
}

#[test]
fn a_full_disk_is_an_error() {
    for mut command in commands() {
        let (status, stderr) = run(command.stdout(full()));
        assert_eq!(status.code(), Some(1), "{command:?}");
        let expected = "error: cannot write to standard output: No space left on device (os error 28)\n";
        assert_eq!(stderr, expected, "{command:?}");
    }
}

#[test]
fn the_exit_code_reports_errors_without_standard_error() {
    for (arguments, code) in [
        (&["rules", "check", "no-such-file.yaml"][..], 1),
        (&["serve", "--rules", "no-such-file.yaml"], 1),
        (&["serve", "--lissten", "x"], 2),
    ] {
        for stderr in [Stdio::from(full()), Stdio::from(closed_pipe())] {
            let status = tollgate(arguments).stdin(Stdio::null()).stderr(stderr).status().unwrap();
            assert_eq!(status.code(), Some(code), "{arguments:?}");
        }
    }
}

/// An address that is free now. Another program may take it first.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn a_server_without_standard_output_serves() {
    for stdout in [Stdio::from(full()), Stdio::from(closed_pipe())] {
        let address = free();
        let mut command = tollgate(["serve", "--listen", &address.to_string()]);
        let mut server = TollgateProcess::without_start_message(command.stdout(stdout));
        let line = server.wait_for_log("start message cannot be written to standard output");
        assert!(line.contains("WARN"), "{line}");
        server.address = address;
        assert_eq!(server.client().check("alice", "/").status, 200);
        server.signal("TERM");
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[test]
fn a_server_without_standard_error_serves() {
    for stderr in [Stdio::from(full()), Stdio::from(closed_pipe())] {
        let folder = tempfile::tempdir().unwrap();
        let rules = folder.path().join("rules.yaml");
        let write =
            |limit: u32| std::fs::write(&rules, format!("rules: [{{ id: one, limit: {limit}/h }}]")).unwrap();
        write(100);
        let mut command = tollgate(["serve", "--listen", "127.0.0.1:0", "--rules"]);
        let mut child = command.arg(&rules).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = stdout.map(Result::unwrap).find(|line| line.contains("/v1/check")).unwrap();
        let address = line.split_once("http://").unwrap().1.split_once('/').unwrap().0.parse().unwrap();
        let mut client = crate::http_client::HttpClient::connect(address);
        // Each reload is a line, or several, that cannot be written.
        for limit in 101..105 {
            write(limit);
            wait_until("the change is in force", || client.check("alice", "/").json()["limit"] == limit);
        }
        let stopped = Command::new("kill").arg(child.id().to_string()).status().unwrap();
        assert!(stopped.success());
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}
