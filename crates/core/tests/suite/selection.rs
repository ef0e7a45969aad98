//! Which rules a request meets, with which numbers, and with whom it shares a count.
//!
//! Most of it is said in rule files with tests of their own, as users would say it.

use std::net::IpAddr;
use tollgate_core::decision::{Invalid, Outcome};
use tollgate_core::key::Seed;
use tollgate_core::request::{Method, Request};
use tollgate_core::rules::{self, ClientTraits, Loaded, START_US, VirtualNode};

pub fn load(text: &str) -> Loaded {
    rules::load("rules.yaml", text).unwrap_or_else(|report| panic!("{report}"))
}

/// Loads the file and runs its tests.
pub fn holds(text: &str) {
    let loaded = load(text);
    assert!(!loaded.tests.is_empty(), "there is nothing to show");
    for result in rules::run_tests(&loaded) {
        assert_eq!(result.failures, [], "line {}: {}", result.line, result.name);
    }
}

/// How many of `count` requests at one instant pass.
fn passes(loaded: &Loaded, node: &mut VirtualNode, request: &Request<'_>, count: usize) -> usize {
    let pass = |_: &usize| match node.check(loaded, request, START_US).unwrap() {
        Outcome::Admitted(_) | Outcome::Unlimited => true,
        Outcome::Limited(_) | Outcome::Denied => false,
    };
    (0..count).filter(pass).count()
}

#[test]
fn a_tier_is_stated_listed_matched_or_the_default() {
    holds(
        r#"
defaults: { tier: anonymous }
tiers:
  anonymous: { limit: 1/min }
  free: { api_key_pattern: "sk_*", limit: 2/min }
  # More exact than the one above, though it comes later in the alphabet and in the file.
  pro: { api_key_pattern: ["sk_pro_*", "x_*"], keys: [ann, sk_free_but_listed], limit: 3/min }
  vip: { limit: 4/min }
rules: [{ id: plan, key: [api_key, user] }]
tests:
  - name: each way to a tier
    steps:
      - { send: 9, pass: 1, request: { ip: 203.0.113.9 } }
      - { send: 9, pass: 1, request: { key: unknown } }
      - { send: 9, pass: 2, request: { key: sk_1 } }
      - { send: 9, pass: 3, request: { key: sk_pro_1 } }
      - { send: 9, pass: 3, request: { key: sk_free_but_listed } }
      - { send: 9, pass: 3, request: { user: ann } }
      - { send: 9, pass: 3, request: { user: ann, key: sk_2 } }
      - { send: 9, pass: 4, request: { key: sk_3, tier: vip } }
  - name: a tier that nobody declared says nothing
    steps:
      - { send: 9, pass: 2, request: { key: sk_1, tier: platinum } }
      - { send: 9, pass: 1, request: { key: unknown, tier: "" } }
"#,
    );
}

#[test]
fn a_rule_of_a_tier_takes_its_own_pattern_for_a_sign_of_the_tier() {
    holds(
        r#"
tiers: { pro: { limit: 3/min }, free: { api_key_pattern: "pro_but_free_*" } }
rules:
  - { id: pro, tier: pro, match: { api_key_pattern: "pro_*" } }
tests:
  - name: who is in
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
    holds(
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
fn what_a_rule_replaces_need_not_suit_its_algorithm() {
    holds(
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
fn overrides_know_keys_users_tenants_addresses_and_custom_identities() {
    holds(
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
  - name: own numbers
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

#[test]
fn a_missing_identity_falls_back_and_never_to_no_limit() {
    let chain = "rules: [{ id: a, key: KEY, limit: 1/min }]";
    for key in ["user", "api_key", "tenant", "ip", "invoice", "[user, route]", "[invoice, tenant]"] {
        let loaded = load(&chain.replace("KEY", key));
        let mut node = VirtualNode::default();
        let ip = Some("203.0.113.9".parse::<IpAddr>().unwrap());
        let named = [
            Request { user: Some("u"), ..Request::default() },
            Request { api_key: Some("k"), ..Request::default() },
            Request { tenant: Some("t"), ..Request::default() },
            Request { ip, ..Request::default() },
            Request { ids: &[("invoice", "7")], ..Request::default() },
            Request { ids: &[("something", "7")], ..Request::default() },
        ];
        for request in &named {
            assert_eq!(passes(&loaded, &mut node, request, 3), 1, "by {key}: {request:?}");
        }
        let nobody = node.check(&loaded, &Request::default(), START_US);
        assert_eq!(nobody, Err(Invalid::NamesNobody), "by {key}");
    }
}

#[test]
fn the_chain_is_user_then_key_then_address() {
    holds(
        r#"
rules: [{ id: a, key: user, limit: 1/min }]
tests:
  - name: with a user, nothing else matters
    request: { user: u, key: k, ip: 203.0.113.9 }
    steps:
      - { expect: pass }
      - { expect: limited, request: { key: other, ip: 203.0.113.10 } }
  - name: then the key
    request: { key: k }
    steps:
      - { expect: pass, request: { ip: 203.0.113.9 } }
      - { expect: limited, request: { ip: 203.0.113.10 } }
  - name: a user, a key and an address of the same name are three
    steps:
      - { expect: pass, request: { user: "203.0.113.9" } }
      - { expect: pass, request: { key: "203.0.113.9" } }
      - { expect: pass, request: { ip: 203.0.113.9 } }
"#,
    );
}

#[test]
fn keys_combine() {
    holds(
        r#"
routes: ["/v1/users/{id}"]
rules:
  - { id: pair, key: [api_key, ip], domain: pair, limit: 1/min }
  - { id: custom, key: [tenant, resource], domain: custom, limit: 1/min }
  - { id: route, key: [api_key, route], domain: route, limit: 1/min, match: { endpoint_regex: "^/v1" } }
  - { id: files, endpoint: ["/v1/{*rest}", "/v1/users/me"], domain: none, limit: 9/s }
tests:
  - name: both count
    request: { domain: pair, key: a, ip: 203.0.113.1 }
    steps:
      - { send: 2, pass: 1 }
      - { expect: pass, request: { ip: 203.0.113.2 } }
      - { expect: pass, request: { key: b } }
  - name: the order of custom identities does not matter, their names do
    request: { domain: custom, tenant: t }
    steps:
      - { send: 2, pass: 1, request: { ids: { resource: r, other: x } } }
      - { expect: limited, request: { ids: { a: first, resource: r } } }
      - { expect: pass, request: { ids: { resource: s } } }
  - name: one count for a template, however it is spelt, and the most specific template
    request: { domain: route, key: a }
    steps:
      - { expect: pass, request: { endpoint: /v1/users/1 } }
      - { expect: limited, request: { endpoint: "/v1/users/2" } }
      - { expect: limited, request: { endpoint: "/v1/users/3/?page=1" } }
      - { expect: limited, request: { endpoint: "/v1/users/3;x=y" } }
      - { expect: pass, request: { endpoint: /v1/users/me } }
      - { expect: pass, request: { endpoint: /v1/anything/else } }
      - { expect: limited, request: { endpoint: /v1/users/1/orders } }
      - { expect: pass, request: { endpoint: /v1 } }
      - { expect: limited, request: { endpoint: /v1x } }
"#,
    );
}

#[test]
fn templates_fold_what_must_not_be_a_second_quota() {
    let loaded = load(
        r#"
rules:
  - { id: user, endpoint: "/v1/users/{id}", limit: 100/min }
  - { id: root, endpoint: /, limit: 100/min }
  - { id: files, endpoint: "/files/{*path}", limit: 100/min }
  - { id: dots, endpoint: "/a.b/c+d", limit: 100/min }
"#,
    );
    let decides = |endpoint: &str| {
        let request = Request { api_key: Some("k"), endpoint, ..Request::default() };
        match VirtualNode::default().check(&loaded, &request, START_US).unwrap() {
            Outcome::Admitted(standing) => loaded.rules.rule_of(standing.limit).id.clone(),
            _ => "none".to_owned(),
        }
    };
    for (endpoint, rule) in [
        ("/v1/users/7", "user"),
        ("/V1/Users/7", "user"),
        ("/v1/users/7/", "user"),
        ("/v1/users/7;a=b", "user"),
        ("/v1;x/users;y/7;a=b/", "user"),
        ("/v1/users/7?q=/v1/other", "user"),
        ("/v1/users/7#part", "user"),
        ("/v1/users/7\n", "user"),
        ("/v1/users/", "none"),
        ("/v1/users", "none"),
        ("/v1/users/7/orders", "none"),
        ("/v1/users/;x", "none"),
        ("x/v1/users/7", "none"),
        ("/", "root"),
        ("/?a", "root"),
        ("/;x", "root"),
        ("", "none"),
        ("/files/", "files"),
        ("/files/a/b\n/c", "files"),
        ("/FILES;v=1/a", "files"),
        ("/files", "none"),
        ("/a.b/c+d", "dots"),
        ("/axb/c+d", "none"),
        ("/a.b/ccd", "none"),
    ] {
        assert_eq!(decides(endpoint), rule, "{endpoint:?}");
    }
}

#[test]
fn exact_templates_fold_nothing_and_escapes_are_no_difference() {
    holds(
        r#"
rules:
  - { id: exact, match: { endpoint: [/V1/Orders, "/V1/items/{id}", /shop/], exact: true }, limit: 100/min }
  - { id: me, endpoint: [/users/@me, "/caf\u00e9", "/a b"], limit: 100/min }
  - { id: routed, domain: d, match: { endpoint: /v1/twice, exact: true }, limit: 100/min }
  - { id: loosely, domain: d, endpoint: /v1/twice, key: [api_key, route], limit: 1/min }
tests:
  - name: exact
    request: { key: a }
    steps:
      - { expect: pass, rule: exact, request: { endpoint: /V1/Orders } }
      - { expect: unlimited, request: { endpoint: /v1/orders } }
      - { expect: unlimited, request: { endpoint: /V1/Orders/ } }
      - { expect: unlimited, request: { endpoint: /V1/Orders;x } }
      - { expect: pass, rule: exact, request: { endpoint: /V1/%4frders } }
      - { expect: pass, rule: exact, request: { endpoint: "/V1/items/7;x" } }
      - { expect: pass, rule: exact, request: { endpoint: /shop/ } }
      - { expect: unlimited, request: { endpoint: /shop } }
  - name: escaped or not
    request: { key: a }
    steps:
      - { expect: pass, rule: me, request: { endpoint: /users/@me } }
      - { expect: pass, rule: me, request: { endpoint: /users/%40me } }
      - { expect: pass, rule: me, request: { endpoint: "/x/..//users/./%40m%65/" } }
      - { expect: pass, rule: me, request: { endpoint: "/caf\u00e9" } }
      - { expect: pass, rule: me, request: { endpoint: /caf%c3%a9 } }
      - { expect: pass, rule: me, request: { endpoint: /a%20b } }
  - name: a route is the same route, exact or not
    request: { key: a, domain: d }
    steps:
      - { expect: pass, request: { endpoint: /v1/twice } }
      - { expect: limited, request: { endpoint: /V1/Twice/ } }
"#,
    );
}

#[test]
fn conditions_all_have_to_hold() {
    holds(
        r#"
rules:
  - id: a
    domain: edge
    methods: [post, PUT]
    match:
      api_key_pattern: ["a*z", "?b"]
      user_pattern: u*
      tenant_pattern: "*"
      ip: [10.0.0.0/8, "2001:db8::/32"]
      ids: { invoice: [yearly-*, once] }
      endpoint_regex: ["^/a$", "b+"]
    limit: 1/min
tests:
  - name: one condition after the other
    request:
      { domain: edge, method: POST, key: a-z, user: u1, tenant: t, ip: 10.1.1.1, ids: { invoice: once }, endpoint: /a }
    steps:
      - { expect: pass, rule: a }
      - { expect: limited, request: { method: PUT } }
      - { expect: limited, request: { endpoint: "/xbbx?y" } }
      - { expect: limited, request: { ids: { invoice: yearly-7 } } }
      - { expect: unlimited, request: { domain: other } }
      - { expect: unlimited, request: { method: GET } }
      - { expect: unlimited, request: { method: BREW } }
      - { expect: unlimited, request: { key: a-y } }
      - { expect: pass, rule: a, request: { key: éb } }
      - { expect: unlimited, request: { key: bb-b } }
      - { expect: unlimited, request: { user: v } }
      - { expect: unlimited, request: { ip: 11.1.1.1 } }
      - { expect: limited, request: { ip: "::ffff:10.9.9.9" } }
      - { expect: limited, request: { ip: "2001:db8:1::1" } }
      - { expect: unlimited, request: { ids: { invoice: monthly } } }
      - { expect: unlimited, request: { endpoint: /A } }
"#,
    );
}

#[test]
fn a_fallback_is_for_what_no_other_rule_names_for_this_request() {
    holds(
        r#"
rules:
  - { id: login, endpoint: /login, methods: POST, limit: 5/min }
  - { id: big, endpoint: /search, match: { api_key_pattern: "big_*" }, limit: 5/min }
  - { id: all, limit: 8/min }
  - { id: trial, endpoint: /trial, on_exceed: shadow, limit: 1/min }
  - { id: rest, fallback: true, limit: 2/min }
  - { id: rest-of-v2, fallback: true, endpoint: "/v2/{*rest}", limit: 1/min }
tests:
  - name: what is named has no fallback
    request: { key: k }
    steps:
      - { send: 9, pass: 5, rule: login, request: { endpoint: /login, method: POST } }
  - name: another method is not named
    request: { key: k }
    steps:
      - { send: 9, pass: 2, rule: rest, request: { endpoint: /login, method: GET } }
  - name: another client's endpoint is not named
    steps:
      - { send: 9, pass: 5, request: { key: big_1, endpoint: /search } }
      - { send: 9, pass: 2, request: { key: small_1, endpoint: /search } }
  - name: a rule that only counts names nothing
    request: { key: k, endpoint: /trial }
    steps:
      - { send: 9, pass: 2, rule: rest }
  - name: a fallback may have an endpoint itself
    request: { key: k, endpoint: /v2/x }
    steps:
      - { send: 9, pass: 1, rule: rest-of-v2 }
"#,
    );
}

#[test]
fn several_rules_are_all_or_nothing() {
    holds(
        r#"
rules:
  - { id: per-key, limit: 3/min }
  - { id: per-ip, key: ip, limit: 5/min }
  - { id: day, limits: [4/h, 100/day], endpoint: /a }
tests:
  - name: one that refuses leaves the others unspent
    request: { key: a, ip: 203.0.113.9 }
    steps:
      - { send: 9, pass: 3, rule: per-key }
      - { send: 9, pass: 2, rule: per-ip, request: { key: b } }
      - { send: 9, pass: 1, rule: per-key, request: { key: b, ip: 203.0.113.10 } }
  - name: the longest wait decides
    request: { key: a, ip: 203.0.113.9, endpoint: /a }
    steps:
      - { send: 3, expect: pass }
      - { expect: limited, rule: per-key, retry_after: 20s }
      - { at: 20s, expect: pass }
      - { at: 20s, expect: limited, rule: day, retry_after: 880s }
  - name: what costs too much for one rule
    request: { key: a, cost: 4 }
    steps:
      - { expect: too_costly }
"#,
    );
}

#[test]
fn shadow_rules_count_and_never_block() {
    holds(
        r#"
rules:
  - { id: trial, on_exceed: shadow, limit: 1/min }
  - { id: real, limit: 3/min, endpoint: /a }
tests:
  - name: alone, it leaves no trace
    request: { key: k, endpoint: /b }
    steps: [{ send: 50, expect: unlimited }, { expect: unlimited, request: { cost: 7 } }]
  - name: beside a real one
    request: { key: k, endpoint: /a }
    steps: [{ send: 9, pass: 3, rule: real }]
"#,
    );
}

#[test]
fn a_safety_net_is_wider_and_by_address() {
    holds(
        r#"
rules:
  - { id: a, key: user, limit: 2/min, ip_safety_net: 2, override: { vip: { limit: 20/min } } }
tests:
  - name: many users behind one address
    request: { ip: 203.0.113.9 }
    steps:
      - { send: 5, pass: 2, rule: a, request: { user: u1 } }
      - { send: 2, expect: pass, request: { user: u2 } }
      - { send: 5, pass: 0, rule: a.ip, request: { user: u3 } }
      - { send: 5, pass: 2, rule: a, request: { user: u3, ip: 203.0.113.10 } }
  - name: without an address there is no net
    steps:
      - { send: 5, pass: 2, request: { user: u1 } }
      - { send: 5, pass: 2, request: { user: u2 } }
      - { send: 5, pass: 2, request: { user: u3 } }
  - name: who has more has a wider net, and does not spend that of the others
    request: { ip: 203.0.113.9 }
    steps:
      - { send: 30, pass: 20, rule: a, request: { user: vip } }
      - { send: 5, pass: 2, rule: a, request: { user: u1 } }
      - { send: 2, expect: pass, request: { user: u2 } }
      - { send: 5, pass: 0, rule: a.ip, request: { user: u3 } }
"#,
    );
    holds(
        r#"
defaults: { ip_safety_net: 3, tier: free }
tiers: { free: { limit: 1/min }, pro: { api_key_pattern: "pro_*", limit: 9/min } }
rules:
  - { id: plan }
  - { id: by-address, key: ip, endpoint: /login, limit: 2/min }
tests:
  - name: a net for each tier, and none for what counts by address
    request: { ip: 203.0.113.9 }
    steps:
      - { send: 12, pass: 9, rule: plan, request: { key: pro_1 } }
      - { send: 12, pass: 9, rule: plan, request: { key: pro_2 } }
      - { send: 9, expect: pass, request: { key: pro_3 } }
      - { send: 1, pass: 0, rule: plan.ip, request: { key: pro_4 } }
      - { send: 2, pass: 1, rule: plan, request: { key: a } }
      - { send: 2, pass: 1, rule: plan, request: { key: b } }
      - { send: 1, expect: pass, request: { key: c } }
      - { send: 1, pass: 0, rule: plan.ip, request: { key: d } }
      - { send: 5, pass: 1, rule: plan, request: { key: e, ip: 203.0.113.10, endpoint: /login } }
"#,
    );
}

#[test]
fn addresses_count_by_what_one_household_has() {
    let loaded = load("rules: [{ id: a, key: ip, limit: 1/min }]");
    let mut node = VirtualNode::default();
    for (ip, passes_again) in [
        ("203.0.113.9", 1),
        ("::ffff:203.0.113.9", 0),
        ("::203.0.113.9", 1),
        ("203.0.113.10", 1),
        ("2001:db8:1:2:3:4:5:6", 1),
        ("2001:db8:1:2:ffff::", 0),
        ("2001:db8:1:3::", 1),
        ("::1", 0),
    ] {
        let request = Request { ip: Some(ip.parse().unwrap()), ..Request::default() };
        assert_eq!(passes(&loaded, &mut node, &request, 1), passes_again, "{ip}");
    }
}

#[test]
fn a_household_may_be_larger_or_smaller() {
    for (prefix, same, other) in
        [(48, "2001:db8:1:ffff::", "2001:db8:2::"), (128, "2001:db8:1:2::3", "2001:db8:1:2::4")]
    {
        for rules in [
            format!("rules: [{{ id: a, key: ip, ipv6_prefix: {prefix}, limit: 1/min }}]"),
            format!("{{ defaults: {{ ipv6_prefix: {prefix} }}, rules: [{{ id: a, limit: 1/min }}] }}"),
        ] {
            let loaded = load(&rules);
            let mut node = VirtualNode::default();
            let passed = ["2001:db8:1:2::3", same, other, "203.0.113.9", "203.0.113.10"].map(|ip| {
                let request = Request { ip: Some(ip.parse().unwrap()), ..Request::default() };
                passes(&loaded, &mut node, &request, 1)
            });
            assert_eq!(passed, [1, 0, 1, 1, 1], "{rules}");
        }
    }
}

#[test]
fn a_request_without_a_method_or_path_meets_rules_that_ask_for_none() {
    let loaded =
        load("rules: [{ id: a, methods: GET, limit: 1/min }, { id: b, endpoint: /x, limit: 1/min }]");
    let mut node = VirtualNode::default();
    let bare = Request { api_key: Some("k"), ..Request::default() };
    assert_eq!(node.check(&loaded, &bare, START_US), Ok(Outcome::Unlimited));
    let get = Request { method: Some(Method::Get), ..bare };
    assert_eq!(passes(&loaded, &mut node, &get, 5), 1);
}

/// What a client meets is remembered by its number, so clients with the same number must meet the same.
#[test]
fn the_same_number_means_the_same_rules() {
    let patterns = "
        tiers: { pro: { api_key_pattern: 'sk_*', limit: 9/s }, free: { limit: 1/s } }
        rules:
          - { id: a, limit: 5/s, match: { api_key_pattern: ['sk_live_abcdefgh*', '*_x', 'k?'] } }
          - { id: b, limit: 5/s, tier: pro, match: { user_pattern: 'u*' } }
          - { id: c, match: { tenant_pattern: t } }";
    let plain = "rules: [{ id: a, key: user, limit: 5/s }]";
    let seed = Seed::new([1, 2]);
    let words = ["sk_live_abcdefgh1", "sk_live_abcd", "sk_x", "k1", "k", "u1", "t", "", "sk_vip", "acme"];
    for text in [super::rule_files::EVERYTHING, patterns, plain] {
        let loaded = load(text);
        let rng = &mut fastrand::Rng::with_seed(5);
        let mut known = std::collections::HashMap::new();
        for _ in 0..20_000 {
            let mut word = || rng.bool().then(|| words[rng.usize(..words.len())]);
            let (api_key, user, tenant) = (word(), word(), word());
            let tier = [None, Some("pro"), Some("free"), Some("nonsense")][rng.usize(..4)];
            let request = Request { api_key, user, tenant, tier, ..Request::default() };
            let number = loaded.rules.sum_up(&request, &seed.hashes(&request));
            let matched = loaded.rules.match_client(&request);
            let first = known.entry(number).or_insert_with(|| matched.clone());
            assert_eq!(*first, matched, "{request:?}");
        }
    }
}

/// What is remembered of a client is found by this hash alone.
#[test]
fn no_two_kinds_of_trait_are_taken_for_each_other() {
    let traits = ClientTraits { api_key: true, user: true, tenant: true, ip: true, tier: true, ids: true };
    let ip = Some("203.0.113.9".parse::<IpAddr>().unwrap());
    let bare = Request::default();
    let requests = [
        bare,
        Request { api_key: Some("x"), ..bare },
        Request { user: Some("x"), ..bare },
        Request { tenant: Some("x"), ..bare },
        Request { tier: Some("x"), ..bare },
        Request { ids: &[("tier", "x")], ..bare },
        Request { ids: &[("user", "x")], ..bare },
        Request { ids: &[("tie", "rx")], ..bare },
        Request { ids: &[("x", "tier")], ..bare },
        Request { tier: Some("x"), ids: &[("tier", "x")], ..bare },
        Request { tier: Some("x"), user: Some("x"), ..bare },
        Request { tenant: Some("x"), user: Some("x"), ..bare },
        Request { ip, ..bare },
        Request { ip, tier: Some("x"), ..bare },
    ];
    let seed = Seed::new([1, 2]);
    let hashes: std::collections::HashSet<u64> =
        requests.iter().map(|request| seed.hashes(request).of_traits(traits, request)).collect();
    assert_eq!(hashes.len(), requests.len());
}

/// Default < tier < override: what an override leaves open comes from the tier of its key.
#[test]
fn an_override_lies_over_the_tier_of_its_key() {
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
        assert_eq!(passes(&loaded, &mut node, &request, 20), expected, "{key} in {tier}");
    }
}
