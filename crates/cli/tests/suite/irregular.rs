//! Files that are none: FIFOs and devices in the place of rules, settings, certificates and keys.

use crate::certificates::{Files, read_chain};
use crate::program::{make_fifo, run, tollgate};
use std::os::unix::fs::symlink;
use std::path::Path;

const RULES: &str = "rules: [{ id: one, limit: 100/h }]";

#[test]
fn at_the_start_they_are_errors() {
    let files = Files::new();
    let path = |name: &str| files.path(name);
    make_fifo(&path("fifo"));
    symlink("/dev/zero", path("zero")).unwrap();
    for name in ["fifo", "zero"] {
        let settings = [
            format!("rules: {name}\n"),
            format!("upstream: x\ngateway: {{ tls: {{ certificate: {name}, key: key.pem }} }}\n"),
            format!("upstream: x\ngateway: {{ tls: {{ certificate: cert.pem, key: {name} }} }}\n"),
            format!(
                "upstream: x\nidentity: {{ user: {{ jwt: sub }}, jwt: {{ algorithm: HS256, secret_file: {name} }} }}\n"
            ),
            format!(
                "upstream: x\nidentity: {{ user: {{ jwt: sub }}, jwt: {{ algorithm: RS256, jwks_file: {name} }} }}\n"
            ),
            format!("store: 'rediss://127.0.0.1:1?ca={}'\n", path(name).display()),
        ];
        for text in settings {
            let text = format!("listen: 127.0.0.1:0\n{text}");
            std::fs::write(path("tollgate.yaml"), &text).unwrap();
            let ended = run(tollgate(["serve", "--config"]).arg(path("tollgate.yaml")));
            assert_eq!(ended.code, Some(1), "{text}");
            assert!(ended.stderr.contains("it is not a regular file"), "{text}: {}", ended.stderr);
        }
        let ended = run(tollgate(["serve", "--config"]).arg(path(name)));
        assert!(ended.stderr.contains("it is not a regular file"), "{}", ended.stderr);
    }
}

/// Whatever stands there, decisions go on, other files are taken up, and the process stops when it is told to.
#[test]
fn later_they_block_nothing() {
    for make in [|path: &Path| make_fifo(path), |path: &Path| symlink("/dev/zero", path).unwrap()] {
        let files = Files::new();
        let server = files.gateway(RULES);
        for (name, expected) in [
            ("rules.yaml", "rule reload failed"),
            ("cert.pem", "certificate reload failed"),
            ("key.pem", "certificate reload failed"),
        ] {
            let path = files.path(name);
            let good = std::fs::read(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            make(&path);
            server.until_logged(expected);
            files.until_served(&server);
            std::fs::write(files.path("good"), good).unwrap();
            std::fs::rename(files.path("good"), &path).unwrap();
            server.until_logged("in force");
        }
        assert_eq!(files.until_served(&server), read_chain(&files.path("cert.pem")));
        std::fs::remove_file(files.path("rules.yaml")).unwrap();
        make(&files.path("rules.yaml"));
        server.until_logged("rule reload failed");
        server.signal("TERM");
        server.until_logged("stopped; all requests were drained");
        assert_eq!(server.ended().code(), Some(0));
    }
}

/// A person who runs a command can interrupt it: it may be given a pipe.
#[test]
fn commands_take_pipes_up_to_a_bound() {
    for (input, code) in [("echo 'rules: [{ id: one, limit: 5/min }]'", 0), ("cat /dev/zero", 1)] {
        let program = env!("CARGO_BIN_EXE_tollgate");
        let script = format!("{input} | '{program}' rules check /dev/stdin");
        let ended = run(std::process::Command::new("sh").args(["-c", &script]));
        assert_eq!(ended.code, Some(code), "{ended:?}");
        let expected = if code == 0 { "1 rule" } else { "it is larger than 16 MiB" };
        assert!(ended.stdout.contains(expected) || ended.stderr.contains(expected), "{ended:?}");
    }
}
