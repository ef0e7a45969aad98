//! `tollgate rules …`: output and exit codes.

use crate::process::{CommandOutput, TollgateProcess, example, run, tollgate};
use std::path::Path;

const EXAMPLES: [&str; 5] =
    ["api-endpoints.yaml", "b2b-edge.yaml", "orders.yaml", "quickstart.yaml", "saas-tiers.yaml"];
const GOOD: &str = "rules:\n  - { id: one, limit: 5/min }\n";
const BROKEN: &str = "rules:\n  - id: one\n    limt: 5/min\n  - id: two\n    limit: 5 a minute\n";
const FAILING: &str = "\
rules:
  - { id: one, limit: 5/min }
tests:
  - name: five
    request: { key: a }
    steps:
      - { send: 6, pass: 5 }
  - name: six
    request: { key: a }
    steps:
      - { send: 5, expect: pass }
      - { send: 6, pass: 6 }
";

/// Runs `rules` in a folder with the files above.
fn rules(arguments: &[&str]) -> CommandOutput {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [("good.yaml", GOOD), ("broken.yaml", BROKEN), ("failing.yaml", FAILING)] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    run(tollgate(["rules"]).args(arguments).current_dir(folder.path()))
}

#[test]
fn the_shipped_files_are_good() {
    for command in ["check", "test"] {
        let files = EXAMPLES.map(example);
        let output = run(tollgate(["rules", command]).args(&files));
        assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "{}", output.stdout);
        let expected = if command == "check" { "no errors" } else { "0 failed" };
        assert_eq!(output.stdout.matches(expected).count(), files.len(), "{}", output.stdout);
        assert!(!output.stdout.contains("FAIL"));
    }
}

#[test]
fn all_shipped_files_are_tested() {
    let folder = example("");
    let mut found: Vec<String> = Path::new(&folder)
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".yaml"))
        .collect();
    found.sort();
    assert_eq!(found, EXAMPLES);
}

#[test]
fn check_reports_all_errors() {
    let output = rules(&["check", "broken.yaml", "good.yaml", "missing.yaml"]);
    assert_eq!(output.code, Some(1));
    assert_eq!(
        output.stdout, "good.yaml: 1 rule, 0 tests, no errors\n",
        "one bad file does not hide a good one"
    );
    let stderr = output.stderr;
    assert!(
        stderr.starts_with("broken.yaml:3:5: error: unknown field `limt`\n  3 |     limt: 5/min\n"),
        "{stderr}"
    );
    assert!(stderr.contains("hint: did you mean `limit`?"), "{stderr}");
    assert!(stderr.contains("broken.yaml:5:12: error: "), "{stderr}");
    assert!(stderr.contains("error: cannot read missing.yaml: No such file"), "{stderr}");
}

/// A file without rules would disable every limit.
#[test]
fn a_file_without_rules_needs_allow_empty() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    for text in [
        "",
        "# rules: [{ id: one, limit: 5/min }]\n",
        "rules: []\n",
        "deny: [sk_1]\n",
        "tiers: { free: {} }\n",
    ] {
        std::fs::write(&path, text).unwrap();
        for command in
            [&["rules", "check"][..], &["rules", "test"], &["serve", "--listen", "127.0.0.1:0", "--rules"]]
        {
            let output = run(tollgate(command).arg(&path));
            assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""), "{text}: {command:?}");
            let stderr = output.stderr;
            assert!(stderr.contains("error: there are no rules, so nothing is limited"), "{text}: {stderr}");
            assert!(stderr.contains("write `allow_empty: true`"), "{text}: {stderr}");
        }
        std::fs::write(&path, format!("{text}allow_empty: true\n")).unwrap();
        for command in ["check", "test"] {
            let output = run(tollgate(["rules", command]).arg(&path));
            assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "{text}");
        }
    }
    let server = TollgateProcess::start(["--rules".as_ref(), path.as_os_str()]);
    assert_eq!(server.client().check("a", "/").json()["limit"], serde_json::Value::Null);
}

#[test]
fn test_reports_differences() {
    let output = rules(&["test", "failing.yaml"]);
    assert_eq!((output.code, output.stderr.as_str()), (Some(1), ""));
    assert_eq!(
        output.stdout,
        "\
ok   five  (6 requests)
FAIL six  (11 requests)
       failing.yaml:8: step 2, at 0s: expected 6 of 6 to pass, found 0
failing.yaml: 1 passed, 1 failed
"
    );
    let output = rules(&["test", "broken.yaml"]);
    assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""));
    assert!(output.stderr.contains("broken.yaml:3:5: error: "), "{}", output.stderr);
}

/// A server runs the tests, too: at the start and before each change.
#[test]
fn a_server_does_not_use_rules_whose_tests_fail() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (rules, settings) = (path("rules.yaml"), path("tollgate.yaml"));
    std::fs::write(&rules, FAILING).unwrap();
    let output = run(tollgate(["serve", "--listen", "127.0.0.1:0", "--rules"]).arg(&rules));
    assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""));
    assert!(output.stderr.contains("rules.yaml: error: of 2 tests, 1 failed\n"), "{}", output.stderr);
    let failure = "rules.yaml:8: six: step 2, at 0s: expected 6 of 6 to pass, found 0";
    assert!(output.stderr.contains(failure), "{}", output.stderr);

    std::fs::write(&rules, GOOD).unwrap();
    let server = TollgateProcess::start(["--rules".as_ref(), rules.as_os_str()]);
    std::fs::write(&rules, FAILING).unwrap();
    server.wait_for_log("rule reload failed; the previous rules stay in force");
    server.wait_for_log(failure);
    drop(server);

    std::fs::write(&settings, "rules: rules.yaml\nlisten: 127.0.0.1:0\non_failed_rule_tests: warn\n")
        .unwrap();
    let server = TollgateProcess::from(tollgate(["serve", "--config"]).arg(&settings));
    server.wait_for_log("rules with failed tests are used");
    server.wait_for_log(failure);
    assert_eq!(server.client().check("a", "/").json()["limit"], 5);
}

#[test]
fn explain_shows_which_rules_apply_and_why() {
    let explain = |arguments: &[&str]| {
        let path = example("orders.yaml");
        let output = run(tollgate(["rules", "explain"]).arg(path).args(arguments));
        assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""));
        output.stdout
    };
    assert_eq!(
        explain(&["--key", "sk_prod_1", "--endpoint", "/v1/orders/7"]),
        "\
tier    pro
route   none
  ✓ orders  counted for api_key sk_p…
      100 per 1min, token_bucket
  · free-tier  the client does not match api_key_pattern sk_free_*
admitted if no tokens were spent before; `orders` then has 99 of 100 left, and is full again after 598.803ms
"
    );
    for (arguments, expected) in [
        (["--key", "sk_revoked_1"].as_slice(), "lists   on the deny list by `sk_revoked_*`\n"),
        (&["--key", "a", "--ip", "10.1.2.3"], "admitted: no limit applies\n"),
        (
            &["--key", "sk_prod_1", "--endpoint", "/v1/orders", "--cost", "101"],
            "refused: a cost of 101 can never pass: rule `orders` holds at most 100\n",
        ),
        (&[], "refused: there is no identity: give at least one of key, user, tenant, ip or ids\n"),
    ] {
        let stdout = explain(arguments);
        assert!(stdout.contains(expected), "{arguments:?}: {stdout}");
    }
}

#[test]
fn explain_rejects_invalid_input() {
    for (arguments, code, expected) in [
        (["explain", "broken.yaml", "--key", "a"], 1, "broken.yaml:3:5: error: "),
        (["explain", "missing.yaml", "--key", "a"], 1, "error: cannot read missing.yaml: "),
        (["explain", "good.yaml", "--id", "invoice"], 2, "write it like invoice=EU-17"),
        (["explain", "good.yaml", "--ip", "here"], 2, "invalid IP address syntax"),
    ] {
        let output = rules(&arguments);
        assert_eq!(output.code, Some(code), "{arguments:?}");
        assert!(output.stderr.contains(expected), "{arguments:?}: {}", output.stderr);
        assert_eq!(output.stdout, "");
    }
}

#[test]
fn schema_is_a_json_schema_of_rule_files() {
    let output = rules(&["schema"]);
    assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""));
    let schema: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    assert!(schema["$schema"].is_string());
    for field in ["rules", "tiers", "allow", "deny", "tests"] {
        assert!(schema["properties"][field].is_object(), "{field}");
    }
}
