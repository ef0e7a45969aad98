//! Explanations, word for word.

use super::selection::load;
use tollgate_core::request::{Method, Request};
use tollgate_core::rules::{RULE_TEST_START, explain};

const RULES: &str = r#"
defaults: { tier: anonymous }
tiers:
  anonymous: {}
  pro: { api_key_pattern: "sk_pro_*" }
rules:
  - { id: orders, endpoint: "/v1/orders/{id}", methods: [GET, POST], key: [api_key, route], limit: 100/min }
  - { id: pro, tier: pro, limits: [10/s, 1000/day], ip_safety_net: 10 }
  - { id: edge, domain: edge, limit: 5/s }
  - { id: acme, match: { tenant_pattern: "acme*", user_pattern: [ann, "b*"] }, limit: 5/s }
  - { id: inside, match: { ip: [10.0.0.0/8, "2001:db8::/32"] }, key: ip, limit: 5/s }
  - { id: yearly, match: { ids: { invoice: "yearly-*" } }, key: invoice, limit: 5/s }
  - { id: search, match: { endpoint: /search, endpoint_regex: "^/find" }, limit: 5/s }
  - { id: trial, endpoint: /search, on_exceed: shadow, limit: 5/s }
  - { id: rest, fallback: true, algorithm: sliding_window_counter, limit: 120/min }
deny: [{ key: sk_pro_bad, reason: unpaid }]
allow: [sk_internal_*]
"#;

fn explained(request: &Request<'_>) -> String {
    explain(&load(RULES), request, RULE_TEST_START).to_string()
}

#[test]
fn matching_rules_and_reasons_of_the_others() {
    let request = Request {
        api_key: Some("sk_pro_1234567890"),
        ip: Some("203.0.113.9".parse().unwrap()),
        endpoint: "/v1/orders/7?x=y",
        method: Some(Method::Get),
        ..Request::default()
    };
    let expected = "\
tier    pro
route   /v1/orders/{id}
  ✓ orders  counted for api_key sk_pro_1… + route /v1/orders/{id}
      100 per 1min, token_bucket
  ✓ pro  counted for api_key sk_pro_1…
      10 per 1s, token_bucket
      1000 per 1day, token_bucket
  ✓ pro.ip  counted for ip 203.0.113.9
      100 per 1s, token_bucket
      10000 per 1day, token_bucket
  · edge  the rule requires domain, and the request has another or none
  · acme  the client does not match user_pattern ann or b*
  · inside  the client does not match ip 10.0.0.0/8 or 2001:db8::/32
  · yearly  the client does not match invoice yearly-*
  · search  `/v1/orders/7` does not match /search or ^/find
  · trial  `/v1/orders/7` does not match /search
  · rest  the rule is a fallback, and another rule names this endpoint
admitted if no tokens were spent before; `pro.1s` then has 9 of 10 left, and is full again after 100ms";
    assert_eq!(explained(&request), expected);
}

#[test]
fn users_tenants_and_custom_identities() {
    let request = Request {
        user: Some("ann"),
        tenant: Some("acme-1"),
        ip: Some("2001:db8::7".parse().unwrap()),
        ids: &[("invoice", "yearly-3")],
        endpoint: "/search",
        method: Some(Method::Delete),
        domain: Some("edge"),
        ..Request::default()
    };
    let expected = "\
tier    anonymous
route   /search
  · orders  `/search` does not match /v1/orders/{id}
  · pro  the rule is for tier `pro` only
  · pro.ip  the rule is for tier `pro` only
  ✓ edge  counted for ip 2001:db8::/64
      5 per 1s, token_bucket
  ✓ acme  counted for ip 2001:db8::/64
      5 per 1s, token_bucket
  ✓ inside  counted for ip 2001:db8::/64
      5 per 1s, token_bucket
  ✓ yearly  counted for invoice yearly-3
      5 per 1s, token_bucket
  ✓ search  counted for ip 2001:db8::/64
      5 per 1s, token_bucket
  ✓ trial  counted only, for ip 2001:db8::/64
      5 per 1s, token_bucket
  · rest  the rule is a fallback, and another rule names this endpoint
admitted if no tokens were spent before; `edge` then has 4 of 5 left, and is full again after 200ms";
    assert_eq!(explained(&request), expected);
}

#[test]
fn lists_take_precedence() {
    let denied = Request { api_key: Some("sk_pro_bad"), ..Request::default() };
    let text = explained(&denied);
    assert!(text.starts_with("lists   on the deny list by `sk_pr…` (unpaid)\n"), "{text}");
    assert!(
        text.ends_with("refused: the client is on the deny list; removing the entry would admit the request"),
        "{text}"
    );
    let allowed = Request { api_key: Some("sk_internal_ci"), ..Request::default() };
    let text = explained(&allowed);
    assert!(text.starts_with("lists   on the allow list by `sk_internal_*`\n"), "{text}");
    assert!(text.ends_with("admitted: no limit applies"), "{text}");
}

#[test]
fn invalid_requests_are_explained() {
    let costly = Request { api_key: Some("k"), cost: 500, ..Request::default() };
    let text = explained(&costly);
    assert!(text.ends_with("refused: a cost of 500 can never pass: rule `rest` holds at most 120"), "{text}");
    let text = explained(&Request::default());
    assert!(text.ends_with("give at least one of key, user, tenant, ip or ids"), "{text}");
}

#[test]
fn the_pattern_of_a_rule_gives_the_tier() {
    let loaded = load("rules: [{ id: a, tier: gold, match: { api_key_pattern: g* }, limit: 5/s }]");
    let gold = explain(&loaded, &Request { api_key: Some("g1"), ..Request::default() }, RULE_TEST_START);
    assert_eq!(gold.tier.as_deref(), Some("gold"));
    let other = explain(&loaded, &Request { api_key: Some("x1"), ..Request::default() }, RULE_TEST_START);
    assert_eq!(other.tier, None);
    assert_eq!(other.rules[0].mismatch.as_deref(), Some("the client does not match api_key_pattern g*"));
    assert_eq!(other.verdict.text, "admitted: no limit applies");
}

#[test]
fn a_slot_is_freed_when_its_request_ends() {
    let loaded = load("rules: [{ id: busy, algorithm: concurrency, limit: 3 }]");
    let explained = explain(&loaded, &Request { api_key: Some("k"), ..Request::default() }, RULE_TEST_START);
    let expected = "admitted if no tokens were spent before; `busy` then has 2 of 3 left, and is full again when the request has ended";
    assert_eq!(explained.verdict.text, expected);
}

/// Enough of a key is shown to recognise it, not enough to use it.
#[test]
fn keys_are_masked() {
    let loaded = load("rules: [{ id: a, limit: 5/s }]");
    for (key, shown) in
        [("sk_live_0123456789abcdef", "api_key sk_live_…"), ("secret", "api_key sec…"), ("k", "api_key …")]
    {
        let explained =
            explain(&loaded, &Request { api_key: Some(key), ..Request::default() }, RULE_TEST_START);
        assert_eq!(explained.rules[0].key, shown);
    }
}
