//! The format of the process log, and repeated lines.

use crate::process::{TollgateProcess, run, tollgate};
use std::process::Command;
use std::time::Duration;
use tokio::time::Instant;

const RELOAD: &str = "reloading rules, certificates and keys";

/// Waits for the line about the first rules, which must be a JSON object.
fn assert_json(command: &mut Command) {
    let server = TollgateProcess::from(command);
    let line = server.wait_for_log("rules in force");
    let line: serde_json::Value =
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
    assert_eq!((&line["level"], &line["message"]), (&"INFO".into(), &"rules in force".into()), "{line}");
    assert_eq!((&line["revision"], &line["rules"]), (&1.into(), &1.into()), "{line}");
    assert_eq!(line["target"], "tollgate_control::rule_installer");
    let timestamp = line["timestamp"].as_str().unwrap();
    assert!(timestamp.len() == 27 && timestamp.ends_with('Z'), "{timestamp}");
    server.signal("TERM");
    for line in server.rest_of_log().lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
}

#[test]
fn the_log_can_be_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("rules.yaml"), "rules: [{ id: mine, limit: 3/min }]").unwrap();
    std::fs::write(path("tollgate.yaml"), "log_format: json\n").unwrap();
    let command = || {
        let mut command = tollgate(["serve", "--listen", "127.0.0.1:0", "--rules"]);
        command.arg(path("rules.yaml"));
        command
    };
    assert_json(command().args(["--log-format", "json"]));
    assert_json(command().env("TOLLGATE_LOG_FORMAT", "json"));
    assert_json(command().arg("--config").arg(path("tollgate.yaml")));
    let server = TollgateProcess::from(command().env("TOLLGATE_LOG_FORMAT", ""));
    assert!(server.wait_for_log("rules in force").contains("  INFO rules in force revision=1"));
}

#[test]
fn an_unknown_log_format_is_an_error() {
    let output = run(&mut tollgate(["serve", "--log-format", "xml"]));
    assert_eq!(output.code, Some(1), "{output:?}");
    assert_eq!(output.stderr, "error: `xml` is not a log format; use text or json\n");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tollgate.yaml"), "log_format: xml\n").unwrap();
    let output = run(tollgate(["serve", "--config", "tollgate.yaml"]).current_dir(folder.path()));
    let expected = "tollgate.yaml:1:13: error: `xml` is not a log format; use text or json\n";
    assert!(output.stderr.starts_with(expected), "{}", output.stderr);
}

#[test]
fn help_describes_the_log() {
    let help = run(&mut tollgate(["serve", "--help"])).stdout;
    assert!(help.contains("--log-format <FORMAT>") && help.contains("TOLLGATE_LOG  Log level"), "{help}");
}

/// Every SIGHUP logs the same line.
#[test]
fn repeated_lines_are_counted() {
    // On a busy machine, the signals may take longer than the ten seconds in which lines are counted.
    let attempts = (0..5).map(|_| log_of_repeats());
    let (log, _) =
        attempts.into_iter().find(|(_, time)| *time < Duration::from_secs(9)).expect("a busy machine");
    let line = log.lines().find(|line| line.contains("repeated")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains("INFO reloading rules, certificates and keys"), "{line}");
    // Signals that arrive together are one.
    let times = line.rsplit("repeated ").next().unwrap().strip_suffix(" times").unwrap();
    assert!(["1", "2", "3"].contains(&times), "{line}");
    assert_eq!(log.matches(RELOAD).count(), 1, "{log}");
}

/// The log after ten lines about reloads and three more signals, and how long all of them took.
fn log_of_repeats() -> (String, Duration) {
    let server = TollgateProcess::start([""; 0]);
    let start = Instant::now();
    for _ in 0..10 {
        server.signal("HUP");
        let line = server.wait_for_log(RELOAD);
        assert!(!line.contains("repeated"), "{line}");
    }
    for _ in 0..3 {
        server.signal("HUP");
    }
    server.signal("TERM");
    let log = server.rest_of_log();
    (log, start.elapsed())
}
