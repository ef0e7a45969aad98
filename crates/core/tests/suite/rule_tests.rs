//! The runner of the tests in rule files: its reports of failures.

use super::selection::load;
use tollgate_core::rules::{RuleTestResult, run_tests};

const RULES: &str = r#"
rules: [{ id: api, limit: 2/s, endpoint: /a }, { id: free, limit: 9/min, match: { api_key_pattern: "f*" } }]
deny: [bad]
tests:
  - name: case
    request: { key: k, endpoint: /a }
    steps:
      - STEP
"#;

fn failures(step: &str) -> String {
    let results = run_tests(&load(&RULES.replace("STEP", step)));
    assert_eq!((results.len(), results[0].name.as_str(), results[0].line), (1, "case", 5));
    let texts: Vec<String> = results[0].failures.iter().map(|(step, how)| format!("{step} {how}")).collect();
    texts.join("\n")
}

#[test]
fn a_failure_reports_step_expectation_and_finding() {
    for (step, failure) in [
        ("{ expect: pass }", ""),
        ("{ expect: limited }", "1 at 0s: expected limited, found pass, 1 left by `api`"),
        ("{ at: 90s, expect: denied }", "1 at 90s: expected denied, found pass, 1 left by `api`"),
        (
            "{ send: 3, expect: pass }",
            "1 at 0s: request 3 of 3: expected pass, found limited by `api` for 500ms",
        ),
        ("{ send: 5, pass: 3 }", "1 at 0s: expected 3 of 5 to pass, found 2"),
        ("{ send: 3, retry_after: 1s }", "1 at 0s: expected a wait of 1s, found 500ms"),
        ("{ retry_after: 1s }", "1 at 0s: expected a wait of 1s, found pass, 1 left by `api`"),
        ("{ remaining: 7 }", "1 at 0s: expected remaining 7, found 1"),
        ("{ rule: free }", "1 at 0s: expected the rule `free`, found `api`"),
        ("{ expect: unlimited }", "1 at 0s: expected unlimited, found pass, 1 left by `api`"),
        (
            "{ rule: free, request: { endpoint: /b } }",
            "1 at 0s: expected the rule `free`, found pass, with no limit",
        ),
        (
            "{ expect: limited, request: { endpoint: /b } }",
            "1 at 0s: expected limited, found pass, with no limit",
        ),
        ("{ expect: pass, request: { key: bad } }", "1 at 0s: expected pass, found denied"),
        ("{ remaining: 3, request: { key: bad } }", "1 at 0s: expected remaining 3, found denied"),
        (
            "{ expect: pass, request: { cost: 3 } }",
            "1 at 0s: expected pass, found a cost of 3 can never pass: rule `api` holds at most 2",
        ),
        ("{ expect: too_costly, request: { cost: 3 } }", ""),
        ("{ expect: too_costly }", "1 at 0s: expected too_costly, found pass, 1 left by `api`"),
    ] {
        assert_eq!(failures(step), failure, "{step}");
    }
}

#[test]
fn later_steps_run_after_a_failure() {
    let steps = "{ send: 2, expect: limited }\n      - { expect: pass }\n      - { at: 500ms, pass: 0 }\n";
    assert_eq!(
        failures(steps),
        "1 at 0s: request 1 of 2: expected limited, found pass, 1 left by `api`\n\
         3 at 500ms: expected 0 of 1 to pass, found 1"
    );
}

#[test]
fn cases_do_not_share_states() {
    let text = r#"
rules: [{ id: a, limit: 1/min }]
tests:
  - { name: first, request: { key: k }, steps: [{ send: 2, pass: 1 }] }
  - { name: second, request: { key: k }, steps: [{ send: 2, pass: 1 }] }
"#;
    let passed =
        |name: &str, line| RuleTestResult { name: name.to_owned(), line, requests: 2, failures: vec![] };
    assert_eq!(run_tests(&load(text)), [passed("first", 4), passed("second", 5)]);
}

#[test]
fn a_case_starts_on_a_window_boundary_by_default() {
    let text = r#"
rules: [{ id: a, algorithm: fixed_window, limit: 1/day }]
tests:
  - { name: midnight, request: { key: k }, steps: [{ send: 2, pass: 1, retry_after: 1day }] }
  - { name: noon, start: 2026-06-01T12:00:00Z, request: { key: k }, steps: [{ send: 2, pass: 1, retry_after: 12h }] }
"#;
    assert!(run_tests(&load(text)).iter().all(|result| result.failures.is_empty()));
}

#[test]
fn a_limit_on_requests_in_flight_has_no_retry_time() {
    let rules = "
rules:
  - { id: busy, algorithm: concurrency, limit: 1 }
  - { id: rate, limit: 2/min, endpoint: /rate }
tests:
  - name: no retry time
    request: { key: k, endpoint: / }
    steps:
      - { send: 2, pass: 1, rule: busy }
      - { retry_after: 60s }
  - name: the longest known wait decides
    request: { key: k, endpoint: /rate }
    steps:
      - { send: 1, expect: pass }
      - { send: 1, expect: limited, rule: busy }
      - { at: 60s, send: 1, request: { cost: 2 }, expect: pass }
      - { at: 60s, expect: limited, rule: rate, retry_after: 30s }
";
    let results = run_tests(&load(rules));
    let expected = "at 0s: expected a wait of 1min, found limited by `busy`, without a retry time";
    assert_eq!(results[0].failures, [(2, expected.to_owned())]);
    assert_eq!(results[1].failures, []);
}
