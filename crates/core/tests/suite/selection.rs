//! Which rules match a request.
//!
//! Most tests are rule files with tests, as users write them.

use tollgate_core::decision::Outcome;
use tollgate_core::key::KeySeed;
use tollgate_core::request::{Method, Request};
use tollgate_core::rules::{self, LoadedRules, RULE_TEST_START, VirtualNode};

pub fn load(text: &str) -> LoadedRules {
    rules::load("rules.yaml", text).unwrap_or_else(|report| panic!("{report}"))
}

/// Loads the file and runs its tests.
pub fn run_file_tests(text: &str) {
    let loaded = load(text);
    assert!(!loaded.tests.is_empty(), "the file has no tests");
    for result in rules::run_tests(&loaded) {
        assert_eq!(result.failures, [], "line {}: {}", result.line, result.name);
    }
}

/// How many of `count` requests at one instant are admitted.
pub fn admitted(loaded: &LoadedRules, node: &mut VirtualNode, request: &Request<'_>, count: usize) -> usize {
    let pass = |_: &usize| match node.check(loaded, request, RULE_TEST_START).unwrap() {
        Outcome::Admitted(_) | Outcome::Unlimited => true,
        Outcome::Limited(_) | Outcome::Denied => false,
    };
    (0..count).filter(pass).count()
}

#[test]
fn templates_fold_case_parameters_and_trailing_slashes() {
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
        match VirtualNode::default().check(&loaded, &request, RULE_TEST_START).unwrap() {
            Outcome::Admitted(status) => loaded.rules.rule_of(status.limit).id.clone(),
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
fn exact_templates_fold_nothing_but_escapes() {
    run_file_tests(
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
fn regular_expressions_match_decoded_paths() {
    run_file_tests(
        r#"
rules:
  - { id: batch, match: { endpoint_regex: "^/r1/items:batch$" }, limit: 100/min }
  - { id: template, endpoint: "/t1/items:batch", limit: 100/min }
  - { id: percent, endpoint: "/100%25", limit: 100/min }
  - { id: any, match: { endpoint_regex: "^/any/.+$" }, limit: 100/min }
  - { id: report, match: { endpoint_regex: "^/x/[^/]*report$" }, limit: 100/min }
  - { id: exact, match: { endpoint_regex: "^/e1/items:batch$", exact: true }, limit: 100/min }
tests:
  - name: decoded
    request: { key: a }
    steps:
      - { expect: pass, rule: batch, request: { endpoint: "/r1/items:batch" } }
      - { expect: pass, rule: batch, request: { endpoint: "/r1/items%3Abatch" } }
      - { expect: pass, rule: batch, request: { endpoint: "/r1/items%3abatch;x" } }
      - { expect: pass, rule: batch, request: { endpoint: "/r1;v=1/;/items:batch;x=y" } }
      - { expect: pass, rule: template, request: { endpoint: "/t1/items%3Abatch" } }
      - { expect: pass, rule: template, request: { endpoint: "/t1/items:batch;x" } }
      - { expect: pass, rule: percent, request: { endpoint: "/100%25" } }
      - { expect: unlimited, request: { endpoint: "/100%2525" } }
      - { expect: pass, rule: any, request: { endpoint: "/any/caf%c3%a9" } }
      - { expect: pass, rule: any, request: { endpoint: "/any/%22%7C" } }
  - name: parameters are also matched as a part of the name
    request: { key: a }
    steps:
      - { expect: pass, rule: report, request: { endpoint: "/x/report;a" } }
      - { expect: pass, rule: report, request: { endpoint: "/x/a;report" } }
  - name: exact
    request: { key: a }
    steps:
      - { expect: pass, rule: exact, request: { endpoint: "/e1/items%3Abatch" } }
      - { expect: unlimited, request: { endpoint: "/e1/items%3Abatch;x" } }
"#,
    );
}

#[test]
fn domains_are_case_insensitive() {
    run_file_tests(
        r#"
rules:
  - { id: api, domain: Api.example, limit: 100/min }
tests:
  - name: any case
    request: { key: a }
    steps:
      - { expect: pass, rule: api, request: { domain: api.example } }
      - { expect: pass, rule: api, request: { domain: API.EXAMPLE } }
      - { expect: unlimited, request: { domain: api.example.com } }
      - { expect: unlimited }
"#,
    );
}

#[test]
fn all_conditions_must_hold() {
    run_file_tests(
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
fn a_fallback_applies_where_no_other_rule_names_the_endpoint() {
    run_file_tests(
        r#"
rules:
  - { id: login, endpoint: /login, methods: POST, limit: 5/min }
  - { id: big, endpoint: /search, match: { api_key_pattern: "big_*" }, limit: 5/min }
  - { id: all, limit: 8/min }
  - { id: trial, endpoint: /trial, on_exceed: shadow, limit: 1/min }
  - { id: rest, fallback: true, limit: 2/min }
  - { id: rest-of-v2, fallback: true, endpoint: "/v2/{*rest}", limit: 1/min }
tests:
  - name: a named endpoint has no fallback
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
  - name: a shadow rule names nothing
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
fn a_request_without_method_and_path_matches_rules_without_them() {
    let loaded =
        load("rules: [{ id: a, methods: GET, limit: 1/min }, { id: b, endpoint: /x, limit: 1/min }]");
    let mut node = VirtualNode::default();
    let bare = Request { api_key: Some("k"), ..Request::default() };
    assert_eq!(node.check(&loaded, &bare, RULE_TEST_START), Ok(Outcome::Unlimited));
    let get = Request { method: Some(Method::Get), ..bare };
    assert_eq!(admitted(&loaded, &mut node, &get, 5), 1);
}

/// Client matches are cached by digest, so clients with equal digests must match the same rules.
#[test]
fn equal_digests_match_the_same_rules() {
    let patterns = "
        tiers: { pro: { api_key_pattern: 'sk_*', limit: 9/s }, free: { limit: 1/s } }
        rules:
          - { id: a, limit: 5/s, match: { api_key_pattern: ['sk_live_abcdefgh*', '*_x', 'k?'] } }
          - { id: b, limit: 5/s, tier: pro, match: { user_pattern: 'u*' } }
          - { id: c, match: { tenant_pattern: t } }";
    let plain = "rules: [{ id: a, key: user, limit: 5/s }]";
    let seed = KeySeed::new([1, 2]);
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
            let digest = loaded.rules.client_digest(&request, &seed.hasher(&request));
            let matched = loaded.rules.match_client(&request);
            let first = known.entry(digest).or_insert_with(|| matched.clone());
            assert_eq!(*first, matched, "{request:?}");
        }
    }
}
