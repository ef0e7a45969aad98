//! What operators change at run time: list entries that the tests of the rules do not see, and numbers that must have an
//! effect.

use super::edits::{add, tier};
use super::selection::load;
use serde_json::{Value, json};
use tollgate_core::decision::Outcome;
use tollgate_core::request::Request;
use tollgate_core::rules::edit::RuleEdit;
use tollgate_core::rules::lists::ListVerdict;
use tollgate_core::rules::{RULE_TEST_START, VirtualNode, run_tests};

/// Puts a key on the deny list, by an operator.
fn block(key: &str, by: &str) -> RuleEdit {
    match add(ListVerdict::Denied, key, None, None) {
        RuleEdit::AddListEntry { list, mut entry } => {
            entry.by = Some(by.to_owned());
            RuleEdit::AddListEntry { list, entry }
        }
        other => other,
    }
}

const TESTED: &str = "rules: [{ id: api, limit: 2/s }]
deny: [sk_revoked, 198.51.100.0/24]
tests:
  - name: two at once
    steps:
      - { send: 2, expect: pass, request: { key: sk_1, ip: 203.0.113.9 } }
      - { expect: denied, request: { key: sk_revoked } }
      - { expect: denied, request: { key: sk_2, ip: 198.51.100.7 } }
";

#[test]
fn tests_do_not_see_entries_of_operators() {
    let mut text = TESTED.to_owned();
    for key in ["sk_1", "203.0.113.0/24", "sk_*", "sk_revoked", "198.51.100.0/24"] {
        text = block(key, "on-call").apply("x", &text).unwrap();
        let loaded = load(&text);
        assert!(run_tests(&loaded).iter().all(|test| test.failures.is_empty()), "{key}\n{text}");
    }
    // They are in force nevertheless.
    let request = Request { api_key: Some("sk_1"), endpoint: "/", ..Request::default() };
    let outcome = VirtualNode::default().check(&load(&text), &request, RULE_TEST_START);
    assert_eq!(outcome, Ok(Outcome::Denied));
    // What the author wrote is tested.
    let unlisted = text.replacen("sk_revoked", "sk_unknown", 1);
    assert_eq!(run_tests(&load(&unlisted))[0].failures.len(), 1, "{unlisted}");
}

#[test]
fn an_entry_names_its_operator_unless_it_is_of_the_author() {
    let text = "deny: [sk_1, { key: sk_2, by: ann }]\nrules: [{ id: a, limit: 1/s }]\n";
    for (key, expected) in [
        ("sk_3", "deny: [sk_1, { key: sk_2, by: ann }, { key: sk_3, by: bob }]"),
        ("sk_2", "deny: [sk_1, { key: sk_2, by: bob }]"),
        ("sk_1", "deny: [sk_1, { key: sk_2, by: ann }]"),
    ] {
        let changed = block(key, "bob").apply("x", text).unwrap();
        assert_eq!(changed.lines().next(), Some(expected), "{key}");
        load(&changed);
    }
}

#[test]
fn numbers_of_a_tier_must_have_an_effect() {
    let tiers = "tiers:\n  pro: { keys: [k], limit: 100/min }\n  free: { keys: [f], limit: 10/min }\n";
    let table: &[(&str, &str, Value, Result<(), &str>)] = &[
        ("rules: [{ id: plan }]", "pro", json!({ "limit": 500 }), Ok(())),
        ("rules: [{ id: plan }]", "pro", json!({ "limit": 500, "capacity": 900 }), Ok(())),
        ("rules: [{ id: plan, tier: pro }]", "pro", json!({ "limit": 500 }), Ok(())),
        // The same again is no error.
        ("rules: [{ id: plan }]", "pro", json!({ "limit": 100 }), Ok(())),
        ("rules: [{ id: plan }]", "pro", json!({ "limit": "100/60s", "capacity": 100 }), Ok(())),
        // No rule takes them.
        (
            "rules: [{ id: api, limit: 5/s }]",
            "pro",
            json!({ "limit": 500 }),
            Err("no rule takes the numbers of tier `pro`"),
        ),
        (
            "rules: [{ id: plan, tier: free }]",
            "pro",
            json!({ "limit": 500 }),
            Err("no rule takes the numbers of tier `pro`"),
        ),
        // The rule has its own.
        (
            "rules: [{ id: plan, tier: pro, limit: 7/s }]",
            "pro",
            json!({ "limit": 500 }),
            Err("the change would have no effect: other numbers come first for tier `pro` in plan"),
        ),
    ];
    for (rules, name, numbers, expected) in table {
        let old = format!("{tiers}{rules}\n");
        let edit = tier(name, numbers.clone());
        let new = edit.apply("x", &old).unwrap_or_else(|error| panic!("{error}\n{old}"));
        let verified = edit.verify_effect("x", &old, &load(&new).rules).map_err(|error| error.to_string());
        match (verified, expected) {
            (Ok(()), Ok(())) => {}
            (Err(error), Err(expected)) if error.starts_with(expected) => {}
            (found, _) => panic!("{rules} {numbers}: {found:?}"),
        }
    }
}

#[test]
fn a_limit_of_zero_is_an_error_in_every_tier() {
    let rules = "rules: [{ id: api, limit: 5/s }]\n";
    for (part, position) in [
        ("tiers: { pro: { limit: 0/min } }", "x:1:24:"),
        ("tiers: { pro: { params: { capacity: 0, refill_rate: 1 } } }", "x:1:37:"),
        ("tiers: { pro: { limits: [5/s, 0/min] } }", "x:1:31:"),
        ("defaults: { limit: 0/s }", "x:1:20:"),
    ] {
        let report = tollgate_core::rules::load("x", &format!("{part}\n{rules}")).unwrap_err();
        assert_eq!(report.errors(), 1, "{report}");
        let text = report.to_string();
        assert!(text.starts_with(position) && text.contains("would reject every request"), "{part}: {text}");
    }
    // One that rules take is reported once.
    let used = "tiers: { pro: { keys: [k], limit: 0/min } }\nrules: [{ id: a }, { id: b, tier: pro }]\n";
    let report = tollgate_core::rules::load("x", used).unwrap_err().to_string();
    assert_eq!(report.matches("would reject every request").count(), 1, "{report}");
}
