//! What takes requests out of a rule: `except`, `exactly`, `replaces`; keys that are properties of the request.

use tollgate_core::request::Request;
use tollgate_core::rules::{self, RULE_TEST_START};

/// Loads a file without warnings, and runs its tests.
fn passes(text: &str) {
    let loaded = rules::load("rules.yaml", text).unwrap_or_else(|report| panic!("{report}"));
    assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
    assert!(!loaded.tests.is_empty());
    for result in rules::run_tests(&loaded) {
        assert!(result.failures.is_empty(), "{}: {:?}", result.name, result.failures);
    }
}

#[test]
fn each_condition_of_except_takes_requests_out() {
    passes(
        "
rules:
  - id: api
    limit: 1/day
    except:
      api_key_pattern: sk_*
      user_pattern: [root, admin]
      tenant_pattern: acme
      ip: 10.0.0.0/8
      ids: { plan: free* }
      endpoint: /open/{*rest}
      endpoint_regex: ^/v[12]/
      methods: OPTIONS
      domain: '*.internal'
tests:
  - name: one condition is enough
    steps:
      - { request: { key: a, endpoint: /x, method: GET, domain: example.com }, send: 2, pass: 1 }
      - { request: { key: sk_1 }, expect: unlimited }
      - { request: { user: root }, expect: unlimited }
      - { request: { tenant: acme }, expect: unlimited }
      - { request: { ip: 10.1.2.3 }, expect: unlimited }
      - { request: { key: b, ids: { plan: free2 } }, expect: unlimited }
      - { request: { key: c, endpoint: /open/7 }, expect: unlimited }
      - { request: { key: d, endpoint: /v1/x }, expect: unlimited }
      - { request: { key: e, method: OPTIONS }, expect: unlimited }
      - { request: { key: f, domain: A.Internal }, expect: unlimited }
      - { request: { key: g, ids: { plan: pro } }, send: 2, pass: 1 }
      - { request: { key: h, domain: internal }, send: 2, pass: 1 }
",
    );
}

/// The cached parts of a selection must not confuse clients that differ only in what is excepted.
#[test]
fn excepted_clients_have_other_digests() {
    let text = "rules: [{ id: api, key: all, limit: 5/s, except: { user_pattern: root } }]";
    let loaded = rules::load("x", text).unwrap();
    let seed = tollgate_core::key::KeySeed::new([1, 2]);
    let digest = |user| {
        let request = Request { user: Some(user), ..Request::default() };
        loaded.rules.client_digest(&request, &seed.hasher(&request))
    };
    assert_ne!(digest("root"), digest("ann"));
    assert_eq!(digest("ben"), digest("ann"));
}

#[test]
fn exactly_these_identities() {
    passes(
        "
rules:
  - { id: number, match: { exactly: to_number }, key: to_number, limit: 1/day }
  - { id: path, match: { exactly: [ip, endpoint, method] }, key: [ip, endpoint, method], limit: 1/day }
tests:
  - name: no others
    steps:
      - { request: { ids: { to_number: '1' } }, send: 2, pass: 1, rule: number }
      - { request: { ids: { to_number: '1', kind: x } }, expect: unlimited }
      - { request: { ids: { to_number: '2' }, user: ann }, expect: unlimited }
      - { request: { ids: { to_number: '3' }, endpoint: /x }, expect: unlimited }
      - { request: { ip: 192.0.2.1, endpoint: /x, method: GET }, send: 2, pass: 1, rule: path }
      - { request: { ip: 192.0.2.1, endpoint: /x, method: PUT }, send: 2, pass: 1, rule: path }
      - { request: { ip: 192.0.2.1, endpoint: /y, method: PUT }, send: 2, pass: 1, rule: path }
      - { request: { ip: 192.0.2.1, endpoint: /x }, expect: unlimited }
",
    );
}

#[test]
fn keys_that_are_properties_of_the_request() {
    passes(
        "
rules:
  - { id: everything, endpoint: /all, key: all, limit: 2/day }
  - { id: hosts, endpoint: /hosts, key: domain, limit: 1/day }
tests:
  - name: one count
    steps:
      - { request: { key: a, endpoint: /all }, expect: pass }
      - { request: { key: b, endpoint: /all }, expect: pass }
      - { request: { key: c, endpoint: /all }, expect: limited, rule: everything }
  - name: a count for each host
    request: { key: a, endpoint: /hosts }
    steps:
      - { request: { domain: one.example }, send: 2, pass: 1 }
      - { request: { domain: two.example }, send: 2, pass: 1 }
",
    );
}

#[test]
fn domains_are_names_and_patterns() {
    passes(
        "
rules:
  - { id: shop, domain: [shop.example, '*.shop.example', www.*], limit: 1/day }
tests:
  - name: which
    steps:
      - { request: { key: a, domain: SHOP.example }, expect: pass, rule: shop }
      - { request: { key: b, domain: a.b.shop.example }, expect: pass, rule: shop }
      - { request: { key: c, domain: www.shop.org }, expect: pass, rule: shop }
      - { request: { key: d, domain: ashop.example }, expect: unlimited }
      - { request: { key: e, domain: www. }, expect: unlimited }
      - { request: { key: f }, expect: unlimited }
",
    );
}

#[test]
fn a_rule_replaces_others() {
    passes(
        "
rules:
  - { id: reads, match: { ids: { kind: read } }, key: user, limit: 1/day, ip_safety_net: 1 }
  - { id: report, endpoint: /report, key: user, limit: 5/day, replaces: [reads] }
  - { id: trial, endpoint: /trial, key: user, limit: 5/day, replaces: reads, on_exceed: shadow }
tests:
  - name: only the replacing rule counts, and a shadow rule replaces nothing
    request: { user: ann, ip: 192.0.2.1, ids: { kind: read } }
    steps:
      - { request: { endpoint: /report }, send: 6, pass: 5, rule: report }
      - { request: { endpoint: /trial }, expect: pass }
      - { request: { endpoint: /trial }, expect: limited, rule: reads }
",
    );
}

#[test]
fn explanations_name_the_exception() {
    let text = "
rules:
  - { id: wide, key: user, limit: 5/s, except: { user_pattern: root, endpoint: /open } }
  - { id: narrow, endpoint: /x, key: user, limit: 5/s, replaces: wide }
  - { id: only, match: { exactly: user }, key: user, limit: 5/s }
";
    let loaded = rules::load("x", text).unwrap();
    for (user, endpoint, rule, expected) in [
        ("root", "/", "wide", "the client matches the exception user_pattern root"),
        ("ann", "/open", "wide", "`/open` matches the exception /open"),
        ("ann", "/x", "wide", "rule `narrow` replaces it"),
        (
            "ann",
            "/x",
            "only",
            "the rule requires exactly the identities in `exactly`, and the request has another or none",
        ),
        ("ann", "/y", "narrow", "`/y` does not match /x"),
    ] {
        let request = Request { user: Some(user), endpoint, ..Request::default() };
        let explanation = rules::explain(&loaded, &request, RULE_TEST_START);
        let found = explanation.rules.iter().find(|explained| explained.id == rule).unwrap();
        assert_eq!(found.mismatch.as_deref(), Some(expected), "{user} {endpoint}");
    }
}

#[test]
fn errors_have_positions_and_hints() {
    for (rule, expected) in [
        ("except: {}", "3:13: error: `except` has no condition"),
        ("except: { exact: true, ip: 10.0.0.1 }", "3:15: error: `exact` needs an endpoint"),
        ("domain: a*b", "3:13: error: `a*b` is not a domain or a pattern of domains"),
        ("key: [all, user]", "3:11: error: `all` cannot be combined: it is one count for all requests"),
        ("match: { exactly: [route] }", "3:24: error: `route` is not an identity of a request"),
        ("match: { exactly: [user, user] }", "3:30: error: `user` is given twice"),
        ("replaces: apj", "3:15: error: there is no rule `apj`"),
        ("replaces: one", "3:15: error: a rule cannot replace itself"),
    ] {
        let text =
            format!("rules:\n  - id: one\n    {rule}\n    limit: 5/s\n  - {{ id: api, limit: 5/s }}\n");
        let report = rules::load("x", &text).expect_err(rule).to_string();
        assert!(report.contains(&format!("x:{expected}")), "{rule}:\n{report}");
    }
}
