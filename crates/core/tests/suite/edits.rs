//! Edits of rule files as text, word for word.

use super::edit_laws::check_law;
use serde_json::{Value, json};
use tollgate_core::rules::edit::{RuleEdit, RuleEditError, TierNumbers, to_yaml};
use tollgate_core::rules::lists::ListVerdict;
use tollgate_core::rules::short_forms::Timestamp;
use tollgate_core::rules::written::WrittenListEntry;
use tollgate_core::rules::{load, rule_file_json};
use tollgate_core::time::UnixTime;

pub(super) const FILE: &str = "\
# The rules of the shop.
defaults:
  tier: anonymous   # without a key

tiers:
  anonymous: { limit: 20/min }   # by address
  free:
    api_key_pattern: \"sk_free_*\"
    limit: 100/min  # a plan
  pro: { api_key_pattern: \"sk_pro_*\", limit: 1_000 / min, burst: 2000 }
  gold:
    api_key_pattern: sk_gold_*
    params: { capacity: 100, refill_rate: 1.67, window: 60 }

rules:
  # Everything.
  - id: plan

  - id: login   # brute force
    endpoint: /login
    # Only writes.
    methods: [POST]
    key: ip
    algorithm: sliding_window_log
    limit: 5/min

  # The end.
  - { id: search, endpoint: /search, limits: [10/s, 250/day] }

allow:
  - sk_internal_*   # our own
  - { key: sk_loadtest, expires: 2027-02-01T00:00:00Z, reason: load test }
deny: [sk_revoked_*, 198.51.100.0/24]
# Bye.
";

fn numbers(value: Value) -> TierNumbers {
    serde_json::from_value(value).unwrap()
}

pub(super) fn tier(tier: &str, value: Value) -> RuleEdit {
    RuleEdit::SetTierNumbers { tier: tier.to_owned(), numbers: numbers(value) }
}

pub(super) fn patch(id: &str, patch: Value) -> RuleEdit {
    RuleEdit::PatchRule { id: id.to_owned(), patch }
}

pub(super) fn put(id: &str, rule: Value) -> RuleEdit {
    RuleEdit::PutRule { id: id.to_owned(), rule }
}

pub(super) fn remove(id: &str) -> RuleEdit {
    RuleEdit::RemoveRule { id: id.to_owned() }
}

pub(super) fn add(list: ListVerdict, key: &str, expires: Option<u64>, reason: Option<&str>) -> RuleEdit {
    let expires = expires.map(|seconds| Timestamp { time: UnixTime::from_us(seconds * 1_000_000) });
    let entry =
        WrittenListEntry { key: key.to_owned(), expires, reason: reason.map(str::to_owned), by: None };
    RuleEdit::AddListEntry { list, entry }
}

pub(super) fn unlist(list: ListVerdict, key: &str) -> RuleEdit {
    RuleEdit::RemoveListEntry { list, key: key.to_owned() }
}

/// The lines that differ, as `-old` and `+new`.
pub(super) fn changed_lines(old: &str, new: &str) -> Vec<String> {
    let diff = tollgate_core::rules::diff(old, new);
    let changed = diff.lines.iter().filter_map(|line| match line.kind {
        tollgate_core::rules::DiffLineKind::Same => None,
        tollgate_core::rules::DiffLineKind::Added => Some(format!("+{}", line.text)),
        tollgate_core::rules::DiffLineKind::Removed => Some(format!("-{}", line.text)),
    });
    changed.collect()
}

#[track_caller]
fn assert_changes(text: &str, edit: RuleEdit, expected: &[&str]) -> String {
    let changed = edit.apply("rules.yaml", text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(changed_lines(text, &changed), expected, "{changed}");
    changed
}

#[test]
fn only_the_lines_of_a_change_differ() {
    use ListVerdict::{Allowed, Denied};
    let table: Vec<(RuleEdit, &[&str])> = vec![
        (
            tier("free", json!({ "limit": 500, "capacity": 500 })),
            &["-    limit: 100/min  # a plan", "+    limit: 500/min  # a plan"],
        ),
        (
            tier("free", json!({ "limit": "7/s", "capacity": 20 })),
            &["-    limit: 100/min  # a plan", "+    limit: 7/s  # a plan", "+    burst: 20"],
        ),
        (
            tier("anonymous", json!({ "limit": 30 })),
            &[
                "-  anonymous: { limit: 20/min }   # by address",
                "+  anonymous: { limit: 30/min }   # by address",
            ],
        ),
        (
            tier("pro", json!({ "limit": 500, "capacity": 500 })),
            &[
                "-  pro: { api_key_pattern: \"sk_pro_*\", limit: 1_000 / min, burst: 2000 }",
                "+  pro: { api_key_pattern: \"sk_pro_*\", limit: 500 / min }",
            ],
        ),
        (
            tier("pro", json!({ "window": "1h" })),
            &[
                "-  pro: { api_key_pattern: \"sk_pro_*\", limit: 1_000 / min, burst: 2000 }",
                "+  pro: { api_key_pattern: \"sk_pro_*\", limit: 1000/h, burst: 2000 }",
            ],
        ),
        (
            tier("gold", json!({ "limit": 500 })),
            &[
                "-    params: { capacity: 100, refill_rate: 1.67, window: 60 }",
                "+    params: { capacity: 500, refill_rate: 500/min, window: 60 }",
            ],
        ),
        (
            tier("gold", json!({ "limit": 500, "capacity": 50 })),
            &[
                "-    params: { capacity: 100, refill_rate: 1.67, window: 60 }",
                "+    params: { capacity: 50, refill_rate: 500/min, window: 60 }",
            ],
        ),
        (
            patch("login", json!({ "limit": "10/min", "methods": null, "soft": "80%" })),
            &["-    methods: [POST]", "-    limit: 5/min", "+    limit: 10/min", "+    soft: 80%"],
        ),
        (
            patch("login", json!({ "endpoint": ["/login", "/v1/{x}"], "penalty": { "after": 3 } })),
            &["-    endpoint: /login", "+    endpoint: [/login, \"/v1/{x}\"]", "+    penalty: { after: 3 }"],
        ),
        (
            patch("search", json!({ "limits": null, "limit": "9/s" })),
            &[
                "-  - { id: search, endpoint: /search, limits: [10/s, 250/day] }",
                "+  - { id: search, endpoint: /search, limit: 9/s }",
            ],
        ),
        (
            patch("plan", json!({ "override": { "sk_pro_acme": { "limit": "5/s" } } })),
            &["+    override: { sk_pro_acme: { limit: 5/s } }"],
        ),
        (put("plan", json!({})), &[]),
        (put("plan", json!({ "limit": "3/s" })), &["+    limit: 3/s"]),
        (
            put("exports", json!({ "id": "exports", "limit": "3/s", "match": { "user_pattern": "a: b" } })),
            &["+  - id: exports", "+    match: { user_pattern: \"a: b\" }", "+    limit: 3/s", "+"],
        ),
        (remove("plan"), &["-  - id: plan"]),
        (remove("search"), &["-  - { id: search, endpoint: /search, limits: [10/s, 250/day] }"]),
        (
            add(Denied, "sk_bad", None, None),
            &["-deny: [sk_revoked_*, 198.51.100.0/24]", "+deny: [sk_revoked_*, 198.51.100.0/24, sk_bad]"],
        ),
        (
            add(Denied, "sk_revoked_*", Some(1_800_000_000), Some("no: # it's \"bad\"")),
            &[
                "-deny: [sk_revoked_*, 198.51.100.0/24]",
                "+deny: [{ key: sk_revoked_*, expires: 2027-01-15T08:00:00Z, reason: \"no: # it's \\\"bad\\\"\" }, 198.51.100.0/24]",
            ],
        ),
        (
            add(Allowed, "2001:db8::/32", Some(1_800_000_000), None),
            &["+  - { key: 2001:db8::/32, expires: 2027-01-15T08:00:00Z }"],
        ),
        (
            add(Allowed, "sk_loadtest", None, Some("again")),
            &[
                "-  - { key: sk_loadtest, expires: 2027-02-01T00:00:00Z, reason: load test }",
                "+  - { key: sk_loadtest, reason: again }",
            ],
        ),
        (unlist(Allowed, "sk_internal_*"), &["-  - sk_internal_*   # our own"]),
        (
            unlist(Denied, "198.51.100.0/24"),
            &["-deny: [sk_revoked_*, 198.51.100.0/24]", "+deny: [sk_revoked_*]"],
        ),
    ];
    for (edit, expected) in table {
        let changed = assert_changes(FILE, edit, expected);
        load("rules.yaml", &changed).unwrap_or_else(|report| panic!("{report}\n{changed}"));
    }
}

#[test]
fn lists_appear_and_become_empty() {
    use ListVerdict::{Allowed, Denied};
    let rules = "rules: [{ id: a, limit: 1/s }]";
    assert_changes(rules, add(Denied, "x", None, None), &["+deny:", "+  - x"]);
    let spaced = "rules:\n- id: a\n  limit: 1/s\n\nallow: []  # none\n# end\n";
    assert_changes(spaced, add(Denied, "5", None, None), &["+", "+deny:", "+  - \"5\""]);
    assert_changes(
        spaced,
        add(Allowed, "x", None, None),
        &["-allow: []  # none", "+allow:  # none", "+  - x"],
    );
    let aliased =
        "rules: [{ id: a, limit: 1/s }]\nwhitelist:\n# one\n- x # y\n\nblacklist:\n  - 5\n  - z\n  - 5\n";
    assert_changes(aliased, add(Allowed, "why", None, None), &["+- why"]);
    assert_changes(aliased, unlist(Allowed, "x"), &["-whitelist:", "+whitelist: []", "-- x # y"]);
    assert_changes(aliased, unlist(Denied, "5"), &["-  - 5", "-  - 5"]);
    // Addresses have several spellings.
    let addresses = "deny:\n  - 2001:db8::1\n  - 10.1.2.3/8\n  - 10.1.2.3\n";
    assert_changes(addresses, unlist(Denied, "2001:0DB8:0::0001"), &["-  - 2001:db8::1"]);
    assert_changes(addresses, unlist(Denied, "10.0.0.0/8"), &["-  - 10.1.2.3/8"]);
    assert_changes(addresses, unlist(Denied, "10.1.2.3/32"), &["-  - 10.1.2.3"]);
    assert_changes(
        aliased,
        add(Denied, "5", None, Some("r")),
        &["-  - 5", "+  - { key: \"5\", reason: r }", "-  - 5"],
    );
    assert_changes("", add(Denied, "x", None, None), &["+deny:", "+  - x"]);
    assert_changes("# only a comment", add(Denied, "x", None, None), &["+deny:", "+  - x"]);
    assert_changes("{}", add(Denied, "x", None, None), &["-{}", "+{ deny: [x] }"]);
    for text in ["---\n...\n", "---\n", "~", "--- # c\n~", "deny:\n", "deny: ~ # c\nallow:\n"] {
        check_law(text, &add(Denied, "x", None, None));
    }
}

#[test]
fn line_breaks_and_the_byte_order_mark_are_kept() {
    let text = "\u{feff}rules:\r\n  - id: a # é\r\n    limit: 1/s\r\n";
    let changed = patch("a", json!({ "burst": 5, "description": "é🦀\n\u{2028}" })).apply("x", text).unwrap();
    assert_eq!(
        changed,
        "\u{feff}rules:\r\n  - id: a # é\r\n    limit: 1/s\r\n    burst: 5\r\n    description: \"é🦀\\n\\u2028\"\r\n"
    );
}

/// What is shared, merged or laid out unusually is changed in one place only, or not at all.
#[test]
fn anchors_aliases_and_merges() {
    let text = "\
tiers:
  a: &numbers { limit: 10/min }
  b: *numbers
  c: { <<: *numbers, burst: 20 }
rules: [{ id: x }]
";
    assert_changes(text, tier("b", json!({ "limit": 5 })), &["-  b: *numbers", "+  b: { limit: 5/min }"]);
    assert_changes(
        text,
        tier("c", json!({ "limit": 5 })),
        &["-  c: { <<: *numbers, burst: 20 }", "+  c: { <<: *numbers, burst: 20, limit: 5/min }"],
    );
    let Err(RuleEditError::Text(report)) = tier("a", json!({ "limit": 5 })).apply("rules.yaml", text) else {
        panic!("the anchor is used elsewhere");
    };
    assert_eq!(
        report.to_string(),
        "\
rules.yaml:2:24: error: this part of the file cannot be changed on its own
  2 |   a: &numbers { limit: 10/min }
    |                        ^^^^^^
  hint: it is shared by an anchor, or its layout is unusual; change the file as a whole
"
    );
}

#[test]
fn unusual_layouts_are_changed_or_refused() {
    let texts = [
        "rules:\n-\n  id: a\n  limit: 1/s\n- # c\n  id: b\n  limit: 2/s\n",
        "rules:\n  - ? id\n    : a\n    limit: 1/s\n  - id: b\n    limit: 1/s\n",
        "{rules: [{id: a, limit: 1/s}, # c\n {id: b,\n limit: 2/s,}]}",
        "\"rules\": [\n  {\"id\": \"a\", \"limit\": \"1/s\"},\n  {\"id\": \"b\", \"limit\": \"1/s\"}\n]\n",
        "rules:\n  - id: a\n    description: |\n      two\n      lines\n\n    limit: 1/s\n  - id: b\n    limit: 2/s\n    description: >-\n      x\n",
        "--- # start\nrules:\n  - &r\n    id: a\n    limit: 1/s\n  - <<: *r\n    id: b\n...\n",
        "rules:\n  - id: a\n    limit: 1/s\n\n\n  # x\n\n  - id: b\n    limit:\n      2/s\n#end",
    ];
    for text in texts {
        for id in ["a", "b"] {
            let edits = [
                patch(id, json!({ "limit": "9/s" })),
                patch(id, json!({ "limit": null })),
                patch(id, json!({ "id": null })),
                patch(id, json!({ "description": "d", "burst": 5, "match": { "ip": ["10.0.0.0/8"] } })),
                patch(id, json!({ "id": "c" })),
                remove(id),
                put("new", json!({ "limit": "1/s" })),
                put(id, json!({ "limits": ["1/s", { "limit": "5/min", "burst": 7 }] })),
                add(ListVerdict::Allowed, "k", None, Some("r")),
            ];
            let done = edits.iter().filter(|edit| check_law(text, edit)).count();
            assert!(done >= 4, "{done} of {text}");
        }
    }
}

#[test]
fn errors_say_where() {
    let table: &[(&str, RuleEdit, &str)] = &[
        ("rules: [", patch("a", json!({})), "x:1:8: error: this is not YAML"),
        ("rules: []\nrules: []", patch("a", json!({})), "x:2:1: error: `rules` is given twice"),
        ("- a", add(ListVerdict::Denied, "k", None, None), "x:1:1: error: the document must be a mapping"),
        ("rules: []\n---\nrules: []", remove("a"), "x:2:1: error: a second document starts here"),
        ("rules:\n\t- id: a", remove("a"), "x:2:"),
        ("rules: []", remove("a"), "there is no rule `a`"),
        ("rules: []", patch("a", json!(5)), "a patch is an object with fields of the rule"),
        ("rules: []", put("a", json!({ "id": "b" })), "the rule has the id \"b\" instead of `a`"),
        ("rules: []", tier("a", json!({ "limit": 5 })), "there is no tier `a`; the rules have none"),
        (
            "tiers: { b: {}, a: {} }\nrules: [{ id: r, tier: c, limit: 1/s }]",
            tier("d", json!({ "limit": 5 })),
            "there is no tier `d`; there are a, b, c",
        ),
        (
            "tiers: { a: { limit: 5/s } }",
            tier("a", json!({ "limit": 0 })),
            "a limit of 0 rejects all traffic",
        ),
        (
            "tiers: { a: { limit: 5/s } }",
            tier("a", json!({ "limit": "0/s" })),
            "a limit of 0 rejects all traffic",
        ),
        (
            "tiers: { a: { limit: 5/s } }",
            tier("a", json!({ "capacity": 0 })),
            "a limit of 0 rejects all traffic",
        ),
        (
            "tiers: { a: { limit: 5/s } }",
            tier("a", json!({ "window": 0 })),
            "the window must be longer than 0",
        ),
        ("tiers: { a: {} }", tier("a", json!({})), "give at least one of `limit`, `capacity` and `window`"),
        (
            "tiers: { a: {} }",
            tier("a", json!({ "limit": 5 })),
            "x:1:13: error: the limit of tier `a` has no single period",
        ),
        (
            "tiers: { a: { limits: [1/s, 5/min] } }",
            tier("a", json!({ "limit": 5 })),
            "x:1:13: error: the limit of tier",
        ),
        (
            "tiers: { a: { limit: 5/s, algorithm: fixed_window } }",
            tier("a", json!({ "capacity": 9 })),
            "x:1:13: error: a fixed_window has no capacity of its own",
        ),
        ("allow: [a]", unlist(ListVerdict::Allowed, "b"), "the allow list has no such entry"),
        ("allow: 5", add(ListVerdict::Allowed, "b", None, None), "x:1:8: error: expected a list"),
    ];
    for (text, edit, expected) in table {
        let error = edit.apply("x", text).expect_err(text).to_string();
        assert!(error.starts_with(expected), "{text}\n{error}");
    }
}

/// No secret of the file appears in an error about an edit.
#[test]
fn errors_hide_keys() {
    let text = "allow: &keys [sk_secret_9, sk_other_9]\ndeny: *keys\nrules: [{ id: a, limit: 1/s }]\n";
    let error = unlist(ListVerdict::Allowed, "sk_secret_9").apply("x", text).expect_err("shared").to_string();
    assert!(!error.contains("sk_secret") && !error.contains("sk_other"), "{error}");
}

/// The rules that a client of each tier gets are those that were asked for.
#[test]
fn numbers_mean_what_was_asked_in_every_spelling() {
    let spellings = [
        "limit: 100/min",
        "limit: 1_00 / 60s, burst: 7",
        "params: { limit: 100, window: 60 }",
        "params: { limit: 100/min, burst: 300 }",
        "limit: 100, params: { window: 1min }",
        "params: { capacity: 100, refill_rate: 1.67, window: 60 }",
        "params: { capacity: 300, refill_rate: 100/min }",
        "limits: [10/s, 250/day]",
        "algorithm: gcra, limit: 100/min, burst: 0",
        "algorithm: leaky_bucket, params: { capacity: 9, leak_rate: 100/min }",
        "",
    ];
    for spelling in spellings {
        for (limit, capacity) in [(json!("500/min"), 500), (json!("500/min"), 50), (json!("7/s"), 7)] {
            let text = format!("tiers:\n  pro: {{ keys: [k], {spelling} }}\nrules:\n  - id: plan\n");
            let edit = tier("pro", json!({ "limit": limit, "capacity": capacity }));
            let changed = edit.apply("x", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            let quota = limit.as_str().unwrap();
            let expected = format!(
                "tiers:\n  pro: {{ keys: [k], {}params: {{ capacity: {capacity}, {}_rate: {quota} }} }}\nrules:\n  - id: plan\n",
                match spelling.split_once(", ") {
                    Some((first, _)) if first.starts_with("algorithm") => format!("{first}, "),
                    _ => String::new(),
                },
                if spelling.contains("leaky") { "leak" } else { "refill" },
            );
            assert_eq!(behaviour(&changed), behaviour(&expected), "{changed}");
        }
    }
    let one_rule = "rules:\n  - { id: p, tier: pro, match: { api_key_pattern: k }, limit: 5/s }\n";
    assert_changes(
        one_rule,
        tier("pro", json!({ "limit": 9 })),
        &[
            "-  - { id: p, tier: pro, match: { api_key_pattern: k }, limit: 5/s }",
            "+  - { id: p, tier: pro, match: { api_key_pattern: k }, limit: 9/s }",
        ],
    );
}

/// How many requests pass at once, and how many of as many again after 31 s.
fn behaviour(text: &str) -> (u64, u64) {
    use tollgate_core::decision::Outcome;
    use tollgate_core::request::Request;
    use tollgate_core::rules::{RULE_TEST_START, VirtualNode};
    let loaded = load("x", text).unwrap_or_else(|report| panic!("{report}\n{text}"));
    let mut node = VirtualNode::default();
    let request = Request { api_key: Some("k"), ..Request::default() };
    let mut count = |at_us: u64| {
        let passes = (0..2_000).filter(|_| {
            matches!(node.check(&loaded, &request, RULE_TEST_START + at_us), Ok(Outcome::Admitted(_)))
        });
        passes.count() as u64
    };
    (count(0), count(31_000_000))
}

#[test]
fn rules_as_json_become_yaml() {
    let value = rule_file_json("x", FILE).unwrap();
    let text = to_yaml(&value);
    assert_eq!(rule_file_json("x", &text).unwrap(), value, "{text}");
    load("x", &text).unwrap_or_else(|report| panic!("{report}\n{text}"));
    assert!(text.contains("\n  - id: login\n    endpoint: /login\n"), "{text}");
}
