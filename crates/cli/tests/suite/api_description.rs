//! Requests that schemathesis generates from the description of the API: no 5xx, no undocumented answer.

use crate::process::TollgateProcess;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The virtual environment that `./check` makes, or the program in the path.
fn program() -> PathBuf {
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/schemathesis/bin/schemathesis");
    match std::env::var_os("TOLLGATE_SCHEMATHESIS") {
        Some(path) => path.into(),
        None if made.exists() => made,
        None => "schemathesis".into(),
    }
}

#[test]
fn every_answer_is_documented() {
    let folder = tempfile::tempdir().unwrap();
    let server = TollgateProcess::start(["--data", folder.path().to_str().unwrap()]);
    let url = format!("http://{}/openapi.json", server.admin_address());
    let output = Command::new(program())
        .args(["run", &url, "--checks"])
        .arg(
            "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
        )
        // A stream does not end.
        .args(["--exclude-path", "/v1/events/stream"])
        .args(["--phases", "examples,coverage,fuzzing", "--max-examples", "10"])
        .args(["--seed", "1", "--workers", "2", "--generation-database", "none"])
        .arg("--header")
        .arg(format!("Authorization: Bearer {}", server.operate_token()))
        .env("NO_COLOR", "1")
        .current_dir(folder.path())
        .output()
        .unwrap_or_else(|error| panic!("schemathesis cannot be started ({error}); `./check` installs it"));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("passed"), "it ran nothing: {text}");
    assert_eq!(server.admin().get("/healthz").status, 200, "the listener goes on");
}
