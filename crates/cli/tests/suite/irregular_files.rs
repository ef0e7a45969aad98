//! FIFOs and devices in place of rules, settings, certificates and keys.

use crate::certificate_reload::{CertificateFolder, read_chain};
use crate::process::{make_fifo, run, tollgate};
use std::os::unix::fs::symlink;
use std::path::Path;

const RULES: &str = "rules: [{ id: one, limit: 100/h }]";

#[test]
fn irregular_files_are_errors_at_the_start() {
    let files = CertificateFolder::new();
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
            let output = run(tollgate(["serve", "--config"]).arg(path("tollgate.yaml")));
            assert_eq!(output.code, Some(1), "{text}");
            assert!(output.stderr.contains("it is not a regular file"), "{text}: {}", output.stderr);
        }
        let output = run(tollgate(["serve", "--config"]).arg(path(name)));
        assert!(output.stderr.contains("it is not a regular file"), "{}", output.stderr);
    }
}

/// Decisions continue, other files are reloaded, and the process can be stopped.
#[test]
fn irregular_files_block_nothing_later() {
    for make in [|path: &Path| make_fifo(path), |path: &Path| symlink("/dev/zero", path).unwrap()] {
        let files = CertificateFolder::new();
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
            server.wait_for_log(expected);
            files.served_certificate(&server);
            std::fs::write(files.path("good"), good).unwrap();
            std::fs::rename(files.path("good"), &path).unwrap();
            server.wait_for_log("in force");
        }
        assert_eq!(files.served_certificate(&server), read_chain(&files.path("cert.pem")));
        std::fs::remove_file(files.path("rules.yaml")).unwrap();
        make(&files.path("rules.yaml"));
        server.wait_for_log("rule reload failed");
        server.signal("TERM");
        server.wait_for_log("stopped; all requests were drained");
        assert_eq!(server.wait().code(), Some(0));
    }
}

/// Commands can be interrupted, so they may read pipes.
#[test]
fn commands_read_pipes_up_to_a_bound() {
    for (input, code) in [("echo 'rules: [{ id: one, limit: 5/min }]'", 0), ("cat /dev/zero", 1)] {
        let program = env!("CARGO_BIN_EXE_tollgate");
        let script = format!("{input} | '{program}' rules check /dev/stdin");
        let output = run(std::process::Command::new("sh").args(["-c", &script]));
        assert_eq!(output.code, Some(code), "{output:?}");
        let expected = if code == 0 { "1 rule" } else { "it is larger than 16 MiB" };
        assert!(output.stdout.contains(expected) || output.stderr.contains(expected), "{output:?}");
    }
}
