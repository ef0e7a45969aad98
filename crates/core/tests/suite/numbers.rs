//! The size of a rule for a client: an override, that of its tier, or the common one.

use crate::selection::{admitted, load, run_file_tests};
use tollgate_core::request::Request;
use tollgate_core::rules::VirtualNode;

#[test]
fn a_tier_is_stated_listed_matched_or_the_default() {
    run_file_tests(
        r#"
defaults: { tier: anonymous }
tiers:
  anonymous: { limit: 1/min }
  free: { api_key_pattern: "sk_*", limit: 2/min }
  # More specific than the one above, though later in the alphabet and in the file.
  pro: { api_key_pattern: ["sk_pro_*", "x_*"], keys: [ann, sk_free_but_listed], limit: 3/min }
  vip: { limit: 4/min }
rules: [{ id: plan, key: [api_key, user] }]
tests:
  - name: each source of a tier
    steps:
      - { send: 9, pass: 1, request: { ip: 203.0.113.9 } }
      - { send: 9, pass: 1, request: { key: unknown } }
      - { send: 9, pass: 2, request: { key: sk_1 } }
      - { send: 9, pass: 3, request: { key: sk_pro_1 } }
      - { send: 9, pass: 3, request: { key: sk_free_but_listed } }
      - { send: 9, pass: 3, request: { user: ann } }
      - { send: 9, pass: 3, request: { user: ann, key: sk_2 } }
      - { send: 9, pass: 4, request: { key: sk_3, tier: vip } }
  - name: an undeclared tier is ignored
    steps:
      - { send: 9, pass: 2, request: { key: sk_1, tier: platinum } }
      - { send: 9, pass: 1, request: { key: unknown, tier: "" } }
"#,
    );
}

#[test]
fn the_pattern_of_a_rule_gives_its_tier() {
    run_file_tests(
        r#"
tiers: { pro: { limit: 3/min }, free: { api_key_pattern: "pro_but_free_*" } }
rules:
  - { id: pro, tier: pro, match: { api_key_pattern: "pro_*" } }
tests:
  - name: members
    steps:
      - { send: 9, pass: 3, request: { key: pro_1 } }
      - { send: 9, pass: 3, request: { key: pro_2, tier: pro } }
      - { send: 9, expect: unlimited, request: { key: other, tier: pro } }
      - { send: 9, expect: unlimited, request: { key: pro_3, tier: free } }
      - { send: 9, expect: unlimited, request: { key: pro_but_free_1 } }
"#,
    );
}

#[test]
fn numbers_are_inherited_from_defaults_tier_rule_and_override() {
    run_file_tests(
        r#"
defaults: { limit: 1/min, tier: free }
tiers:
  free: {}
  pro: { keys: [p], limit: 2/min }
rules:
  - { id: a, endpoint: /a }
  - { id: b, endpoint: /b, limit: 3/min, override: { vip: { limit: 4 }, big: { limit: 5/min } } }
  - { id: c, endpoint: /c, tier: pro }
  - { id: d, endpoint: /d, tier: pro, limit: 6/min }
  - { id: e, endpoint: /e, params: { capacity: 7 } }
  - { id: f, endpoint: /f, algorithm: fixed_window, params: { window: 30 } }
tests:
  - name: sizes
    request: { key: p }
    steps:
      - { send: 9, pass: 2, request: { endpoint: /a } }
      - { send: 9, pass: 1, request: { endpoint: /a, key: f } }
      - { send: 9, pass: 3, request: { endpoint: /b } }
      - { send: 9, pass: 4, request: { endpoint: /b, key: vip } }
      - { send: 9, pass: 5, request: { endpoint: /b, key: big } }
      - { send: 9, pass: 2, request: { endpoint: /c } }
      - { send: 9, pass: 6, request: { endpoint: /d } }
      - { send: 9, pass: 7, request: { endpoint: /e }, retry_after: 1min }
      - { send: 9, pass: 2, request: { endpoint: /f }, retry_after: 30s }
"#,
    );
}

#[test]
fn replaced_numbers_need_not_fit_the_algorithm() {
    run_file_tests(
        r#"
defaults: { params: { capacity: 9, refill_rate: 1 } }
rules:
  - { id: a, algorithm: fixed_window, limit: 2/min }
  - { id: b, algorithm: sliding_window_log, params: { limit: 2, window: 60 } }
  - { id: c, algorithm: leaky_bucket, params: { capacity: 2, leak_rate: 1 } }
  - { id: d, limits: [2/min, 7/h] }
tests:
  - { name: two, request: { key: a }, steps: [{ send: 9, pass: 2 }] }
"#,
    );
}

#[test]
fn overrides_of_keys_users_tenants_addresses_and_custom_identities() {
    run_file_tests(
        r#"
rules:
  - id: a
    key: [invoice, api_key]
    limit: 1/min
    override:
      k1: { limit: 2/min }
      u1: { limit: 3/min }
      t1: { limit: 4/min }
      "2001:DB8:0::1": { limit: 5/min }
      "::ffff:203.0.113.9": { limit: 6/min }
      yearly: { limit: 7/min }
tests:
  - name: overrides
    steps:
      - { send: 9, pass: 1, request: { key: k } }
      - { send: 9, pass: 2, request: { key: k1 } }
      - { send: 9, pass: 3, request: { user: u1 } }
      - { send: 9, pass: 4, request: { tenant: t1 } }
      - { send: 9, pass: 5, request: { ip: "2001:db8::1" } }
      - { send: 9, pass: 6, request: { ip: 203.0.113.9 } }
      - { send: 9, pass: 7, request: { key: k, ids: { invoice: yearly } } }
      - { send: 9, pass: 1, request: { key: k, ids: { other: yearly, invoice: "3" } } }
"#,
    );
}

/// Default < tier < override: numbers absent from an override come from the tier of its key.
#[test]
fn an_override_inherits_from_the_tier_of_its_key() {
    let loaded = load(
        "
        tiers: { free: { algorithm: leaky_bucket, limit: 3/min }, pro: { limit: 5/min } }
        rules: [{ id: plan, override: { vip: { limit: 7/min }, wide: { burst: 9 } } }]
        defaults: { tier: pro }",
    );
    let mut node = VirtualNode::default();
    for (key, tier, expected) in
        [("a", "free", 3), ("a", "pro", 5), ("vip", "free", 7), ("vip", "pro", 7), ("wide", "pro", 9)]
    {
        let request = Request { api_key: Some(key), tier: Some(tier), ..Request::default() };
        assert_eq!(admitted(&loaded, &mut node, &request, 20), expected, "{key} in {tier}");
    }
}
