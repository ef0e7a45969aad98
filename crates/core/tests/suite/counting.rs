//! Which requests share a state, and several limits at once.

use crate::selection::{admitted, load, run_file_tests};
use std::net::IpAddr;
use tollgate_core::decision::InvalidRequest;
use tollgate_core::key::KeySeed;
use tollgate_core::request::Request;
use tollgate_core::rules::{ClientTraits, RULE_TEST_START, VirtualNode};

#[test]
fn a_missing_identity_is_never_unlimited() {
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
            assert_eq!(admitted(&loaded, &mut node, request, 3), 1, "by {key}: {request:?}");
        }
        let anonymous = node.check(&loaded, &Request::default(), RULE_TEST_START);
        assert_eq!(anonymous, Err(InvalidRequest::NoIdentity), "by {key}");
    }
}

#[test]
fn the_chain_is_user_then_key_then_address() {
    run_file_tests(
        r#"
rules: [{ id: a, key: user, limit: 1/min }]
tests:
  - name: with a user, only the user counts
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
    run_file_tests(
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
  - name: one state for a template in any spelling, and the most specific template
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
fn several_rules_are_all_or_nothing() {
    run_file_tests(
        r#"
rules:
  - { id: per-key, limit: 3/min }
  - { id: per-ip, key: ip, limit: 5/min }
  - { id: day, limits: [4/h, 100/day], endpoint: /a }
tests:
  - name: a refusal spends no other limit
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
  - name: a cost above the capacity of one rule
    request: { key: a, cost: 4 }
    steps:
      - { expect: too_costly }
"#,
    );
}

#[test]
fn shadow_rules_count_and_never_block() {
    run_file_tests(
        r#"
rules:
  - { id: trial, on_exceed: shadow, limit: 1/min }
  - { id: real, limit: 3/min, endpoint: /a }
tests:
  - name: alone it has no effect
    request: { key: k, endpoint: /b }
    steps: [{ send: 50, expect: unlimited }, { expect: unlimited, request: { cost: 7 } }]
  - name: with an enforced rule
    request: { key: k, endpoint: /a }
    steps: [{ send: 9, pass: 3, rule: real }]
"#,
    );
}

#[test]
fn a_safety_net_is_larger_and_by_address() {
    run_file_tests(
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
  - name: no safety net without an address
    steps:
      - { send: 5, pass: 2, request: { user: u1 } }
      - { send: 5, pass: 2, request: { user: u2 } }
      - { send: 5, pass: 2, request: { user: u3 } }
  - name: a client with an override has its own safety net
    request: { ip: 203.0.113.9 }
    steps:
      - { send: 30, pass: 20, rule: a, request: { user: vip } }
      - { send: 5, pass: 2, rule: a, request: { user: u1 } }
      - { send: 2, expect: pass, request: { user: u2 } }
      - { send: 5, pass: 0, rule: a.ip, request: { user: u3 } }
"#,
    );
    run_file_tests(
        r#"
defaults: { ip_safety_net: 3, tier: free }
tiers: { free: { limit: 1/min }, pro: { api_key_pattern: "pro_*", limit: 9/min } }
rules:
  - { id: plan }
  - { id: by-address, key: ip, endpoint: /login, limit: 2/min }
tests:
  - name: a safety net for each tier, and none for keys by address
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
fn ipv6_addresses_count_by_64_bits() {
    let loaded = load("rules: [{ id: a, key: ip, limit: 1/min }]");
    let mut node = VirtualNode::default();
    for (ip, expected) in [
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
        assert_eq!(admitted(&loaded, &mut node, &request, 1), expected, "{ip}");
    }
}

#[test]
fn the_ipv6_prefix_can_be_set() {
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
                admitted(&loaded, &mut node, &request, 1)
            });
            assert_eq!(passed, [1, 0, 1, 1, 1], "{rules}");
        }
    }
}

/// Cached results of a client are found by this hash alone.
#[test]
fn traits_of_different_kinds_have_different_hashes() {
    let traits = ClientTraits { ip: true, tier: true, ids: true, ..ClientTraits::ALL_NAMED };
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
    let seed = KeySeed::new([1, 2]);
    let hashes: std::collections::HashSet<u64> =
        requests.iter().map(|request| seed.hasher(request).hash_traits(traits, request)).collect();
    assert_eq!(hashes.len(), requests.len());
}
