//! `tollgate rules …`: what is said, and how it exits.

use crate::program::{Ended, Server, example, run, tollgate};
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
fn rules(arguments: &[&str]) -> Ended {
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
        let ended = run(tollgate(["rules", command]).args(&files));
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{}", ended.stdout);
        let expected = if command == "check" { "no errors" } else { "0 failed" };
        assert_eq!(ended.stdout.matches(expected).count(), files.len(), "{}", ended.stdout);
        assert!(!ended.stdout.contains("FAIL"));
    }
}

#[test]
fn no_shipped_file_is_forgotten_here() {
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
fn check_says_everything_that_is_wrong() {
    let ended = rules(&["check", "broken.yaml", "good.yaml", "missing.yaml"]);
    assert_eq!(ended.code, Some(1));
    assert_eq!(
        ended.stdout, "good.yaml: 1 rule, 0 tests, no errors\n",
        "one bad file does not hide a good one"
    );
    let said = ended.stderr;
    assert!(
        said.starts_with("broken.yaml:3:5: error: unknown field `limt`\n  3 |     limt: 5/min\n"),
        "{said}"
    );
    assert!(said.contains("hint: did you mean `limit`?"), "{said}");
    assert!(said.contains("broken.yaml:5:12: error: "), "{said}");
    assert!(said.contains("error: cannot read missing.yaml: No such file"), "{said}");
}

/// Rules that are commented out, or lost, would be the end of every limit.
#[test]
fn a_file_without_rules_is_refused_unless_it_says_so() {
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
            let ended = run(tollgate(command).arg(&path));
            assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{text}: {command:?}");
            let said = ended.stderr;
            assert!(said.contains("error: there are no rules, so nothing is limited"), "{text}: {said}");
            assert!(said.contains("write `allow_empty: true`"), "{text}: {said}");
        }
        std::fs::write(&path, format!("{text}allow_empty: true\n")).unwrap();
        for command in ["check", "test"] {
            let ended = run(tollgate(["rules", command]).arg(&path));
            assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{text}");
        }
    }
    let server = Server::start(["--rules".as_ref(), path.as_os_str()]);
    assert_eq!(server.client().check("a", "/").json()["limit"], serde_json::Value::Null);
}

#[test]
fn test_says_what_differs() {
    let ended = rules(&["test", "failing.yaml"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(1), ""));
    assert_eq!(
        ended.stdout,
        "\
ok   five  (6 requests)
FAIL six  (11 requests)
       failing.yaml:8: step 2, at 0s: expected 6 of 6 to pass, found 0
failing.yaml: 1 passed, 1 failed
"
    );
    let ended = rules(&["test", "broken.yaml"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    assert!(ended.stderr.contains("broken.yaml:3:5: error: "), "{}", ended.stderr);
}

/// A server runs them too, at its start and before each change.
#[test]
fn a_server_does_not_use_rules_whose_tests_fail() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (rules, settings) = (path("rules.yaml"), path("tollgate.yaml"));
    std::fs::write(&rules, FAILING).unwrap();
    let ended = run(tollgate(["serve", "--listen", "127.0.0.1:0", "--rules"]).arg(&rules));
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    assert!(ended.stderr.contains("rules.yaml: error: of 2 tests, 1 failed\n"), "{}", ended.stderr);
    let failure = "rules.yaml:8: six: step 2, at 0s: expected 6 of 6 to pass, found 0";
    assert!(ended.stderr.contains(failure), "{}", ended.stderr);

    std::fs::write(&rules, GOOD).unwrap();
    let server = Server::start(["--rules".as_ref(), rules.as_os_str()]);
    std::fs::write(&rules, FAILING).unwrap();
    server.until_logged("rule reload failed; the previous rules stay in force");
    server.until_logged(failure);
    drop(server);

    std::fs::write(&settings, "rules: rules.yaml\nlisten: 127.0.0.1:0\non_failed_rule_tests: warn\n")
        .unwrap();
    let server = Server::from(tollgate(["serve", "--config"]).arg(&settings));
    server.until_logged("rules with failed tests are used");
    server.until_logged(failure);
    assert_eq!(server.client().check("a", "/").json()["limit"], 5);
}

#[test]
fn explain_says_which_rules_apply_and_why() {
    let explain = |arguments: &[&str]| {
        let path = example("orders.yaml");
        let ended = run(tollgate(["rules", "explain"]).arg(path).args(arguments));
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        ended.stdout
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
        let said = explain(arguments);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}

#[test]
fn explain_refuses_what_it_cannot_use() {
    for (arguments, code, expected) in [
        (["explain", "broken.yaml", "--key", "a"], 1, "broken.yaml:3:5: error: "),
        (["explain", "missing.yaml", "--key", "a"], 1, "error: cannot read missing.yaml: "),
        (["explain", "good.yaml", "--id", "invoice"], 2, "write it like invoice=EU-17"),
        (["explain", "good.yaml", "--ip", "here"], 2, "invalid IP address syntax"),
    ] {
        let ended = rules(&arguments);
        assert_eq!(ended.code, Some(code), "{arguments:?}");
        assert!(ended.stderr.contains(expected), "{arguments:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "");
    }
}

#[test]
fn schema_is_a_json_schema_of_rule_files() {
    let ended = rules(&["schema"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let schema: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(schema["$schema"].is_string());
    for field in ["rules", "tiers", "allow", "deny", "tests"] {
        assert!(schema["properties"][field].is_object(), "{field}");
    }
}
