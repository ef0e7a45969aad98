//! Differences of rule files, and reports as data.

use serde_json::json;
use tollgate_core::request::Request;
use tollgate_core::rules::{RULE_TEST_START, RuleReport, RuleTestRun, diff, explain, load, run_tests_if};

const OLD: &str = "\
defaults: { tier: free }
tiers:
  free: { limit: 100/min }
  pro: { keys: [k], limit: 1000/min }
# one
# two
# three
# four
rules:
  - id: plan
  - id: login
    endpoint: /login
    limit: 5/min
  - { id: old, endpoint: /old, limit: 1/s }
allow: [a, { key: b, reason: r }]
whitelist: [c]
";

const NEW: &str = "\
defaults: { tier: free }
tiers:
  free: { limit: 200/min }
  gold: { keys: [k], limit: 1000/min }
# one
# two
# three
# four
rules:
  - id: plan
  - id: login
    endpoint: [/login, /signin]
    params: { limit: 5, window: 60 }
  - { id: new, endpoint: /old, limit: 1/s }
allow: [a, b, c]
deny: [d]
allow_empty: false
";

#[test]
fn a_change_is_summarised() {
    let diff = diff(OLD, NEW);
    let summary: Vec<String> = diff.summary.iter().map(ToString::to_string).collect();
    assert_eq!(
        summary,
        [
            "~ rule login: endpoint /login -> [\"/login\",\"/signin\"], limit 5/min -> none, params none -> {\"limit\":5,\"window\":60}",
            "- rule old",
            "+ rule new",
            "~ tier free: limit 100/min -> 200/min",
            "- tier pro",
            "+ tier gold",
            "~ allow list entry b: reason r -> none",
            "+ deny list entry d",
            "+ field allow_empty",
        ]
    );
    let json = serde_json::to_value(&diff.summary[3]).unwrap();
    let fields = json!([{ "name": "limit", "before": "100/min", "after": "200/min" }]);
    assert_eq!(json, json!({ "kind": "changed", "part": "tier", "name": "free", "fields": fields }));
}

#[test]
fn a_change_is_shown_by_lines() {
    let unified = "\
@@ -1,7 +1,7 @@
 defaults: { tier: free }
 tiers:
-  free: { limit: 100/min }
-  pro: { keys: [k], limit: 1000/min }
+  free: { limit: 200/min }
+  gold: { keys: [k], limit: 1000/min }
 # one
 # two
 # three
@@ -9,8 +9,9 @@
 rules:
   - id: plan
   - id: login
-    endpoint: /login
-    limit: 5/min
-  - { id: old, endpoint: /old, limit: 1/s }
-allow: [a, { key: b, reason: r }]
-whitelist: [c]
+    endpoint: [/login, /signin]
+    params: { limit: 5, window: 60 }
+  - { id: new, endpoint: /old, limit: 1/s }
+allow: [a, b, c]
+deny: [d]
+allow_empty: false
";
    assert_eq!(diff(OLD, NEW).unified, unified);
    assert_eq!(diff(OLD, OLD).unified, "");
    assert_eq!(diff("", "a: 1\n").unified, "@@ -0,0 +1 @@\n+a: 1\n");
    assert_eq!(diff("a: 1", "").unified, "@@ -1 +0,0 @@\n-a: 1\n");
    let line = &diff("a: 1\nb: 2\n", "b: 2\nc: [").lines;
    let shown = serde_json::to_value(line).unwrap();
    assert_eq!(
        shown,
        json!([
            { "kind": "removed", "a": 1, "text": "a: 1" },
            { "kind": "same", "a": 2, "b": 1, "text": "b: 2" },
            { "kind": "added", "b": 2, "text": "c: [" },
        ])
    );
    assert_eq!(diff("a: 1\nb: 2\n", "b: 2\nc: [").summary, []);
}

/// Both texts can be read from the lines, whatever they are; large ones take bounded time.
#[test]
fn lines_give_both_texts() {
    let mut rng = fastrand::Rng::with_seed(5);
    for size in [0, 1, 2, 5, 20, 200, 20_000] {
        let mut text = |choices: u32| -> Vec<String> {
            (0..rng.usize(..=size)).map(|_| format!("l{}", rng.u32(..choices))).collect()
        };
        let (a, b) = (text(5), text(7));
        let diff = diff(&a.join("\n"), &b.join("\n"));
        let of = |number: fn(&tollgate_core::rules::DiffLine) -> Option<usize>| -> Vec<(usize, &str)> {
            diff.lines.iter().filter_map(|line| Some((number(line)?, line.text.as_str()))).collect()
        };
        assert!(of(|line| line.a).into_iter().eq((1..).zip(a.iter().map(String::as_str))));
        assert!(of(|line| line.b).into_iter().eq((1..).zip(b.iter().map(String::as_str))));
    }
}

#[test]
fn reports_are_data_without_secrets() {
    let broken =
        "rules:\n  - id: a\n    limit: 0/s\nallow: [10.0.0/24, { key: sk_secret_9, expires: nev }]\n";
    let report = RuleReport::from(&load("x", broken).expect_err("it is broken"));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["valid"], false);
    assert_eq!(
        json["errors"][0],
        json!({
            "line": 3, "column": 12, "length": 3,
            "message": "this limit would reject every request",
            "hint": "a limit must be at least 1; to deny a client, use `deny:`",
        })
    );
    assert!(!json.to_string().contains("sk_secret"), "{json}");
    assert_eq!(serde_json::from_value::<RuleReport>(json).unwrap(), report);

    let tested = "\
rules: [{ id: a, key: userid, limit: 1/s }]
tests:
  - { name: good, request: { key: k }, steps: [{ expect: pass }] }
  - { name: bad, request: { key: k }, steps: [{ send: 2, expect: pass }] }
  - { name: long, request: { key: k }, steps: [{ send: 9, expect: pass }] }
";
    let loaded = load("x", tested).unwrap();
    let run: RuleTestRun = run_tests_if(&loaded, |requests| requests < 9);
    let report = RuleReport::new(&loaded, &run);
    assert!(!report.valid && report.errors.is_empty());
    assert_eq!((report.warnings.len(), report.skipped_tests), (1, 1));
    let json = serde_json::to_value(&report.tests).unwrap();
    let failure = "step 1, at 0s: request 2 of 2: expected pass, found limited by `a` for 1s";
    assert_eq!(
        json,
        json!([
            { "name": "good", "line": 3, "requests": 1, "passed": true, "failures": [] },
            { "name": "bad", "line": 4, "requests": 2, "passed": false, "failures": [failure] },
        ])
    );
}

#[test]
fn explanations_are_data() {
    let loaded =
        load("x", "rules: [{ id: a, limit: 10/s, burst: 20 }]\ndeny: [{ key: bad, reason: unpaid }]")
            .unwrap();
    let explained = explain(&loaded, &Request { api_key: Some("k1"), ..Request::default() }, RULE_TEST_START);
    let json = serde_json::to_value(&explained).unwrap();
    assert_eq!(
        json["rules"],
        json!([{
            "id": "a", "mismatch": null, "is_shadow": false, "key": "api_key k…",
            "limits": [
                { "name": "a", "quota": 20, "window_seconds": 2, "capacity": 20, "algorithm": "token_bucket" },
            ],
        }])
    );
    assert_eq!(
        (&json["verdict"]["outcome"], &json["verdict"]["remaining"]),
        (&json!("admitted"), &json!(19))
    );
    assert_eq!(serde_json::from_value::<tollgate_core::rules::Explanation>(json).unwrap(), explained);
    let denied = explain(&loaded, &Request { api_key: Some("bad"), ..Request::default() }, RULE_TEST_START);
    let listed = serde_json::to_value(&denied.listed).unwrap();
    assert_eq!(listed, json!({ "list": "deny", "pattern": "b…", "reason": "unpaid" }));
}
