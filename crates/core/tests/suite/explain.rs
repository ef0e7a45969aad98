//! Explanations, word for word.

use super::selection::load;
use tollgate_core::request::{Method, Request};
use tollgate_core::rules::{START_US, explain};

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

fn said(request: &Request<'_>) -> String {
    explain(&load(RULES), request, START_US).to_string()
}

#[test]
fn which_rules_meet_and_why_the_others_do_not() {
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
  · edge  it asks for domain, and this request has another or none
  · acme  the client does not match user_pattern ann or b*
  · inside  the client does not match ip 10.0.0.0/8 or 2001:db8::/32
  · yearly  the client does not match invoice yearly-*
  · search  `/v1/orders/7` does not match /search or ^/find
  · trial  `/v1/orders/7` does not match /search
  · rest  it is a fallback, and another rule names this endpoint
passes if nothing was spent before; `pro.1s` then has 9 of 10 left, and all of it again after 100ms";
    assert_eq!(said(&request), expected);
}

#[test]
fn those_of_another_kind() {
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
  · pro  it is for tier `pro` only
  · pro.ip  it is for tier `pro` only
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
  ✓ trial  only counted, for ip 2001:db8::/64
      5 per 1s, token_bucket
  · rest  it is a fallback, and another rule names this endpoint
passes if nothing was spent before; `edge` then has 4 of 5 left, and all of it again after 200ms";
    assert_eq!(said(&request), expected);
}

#[test]
fn lists_come_first() {
    let denied = Request { api_key: Some("sk_pro_bad"), ..Request::default() };
    let text = said(&denied);
    assert!(text.starts_with("lists   on the deny list by `sk_pr…` (unpaid)\n"), "{text}");
    assert!(
        text.ends_with("refused: it is on the deny list; removing the entry would let it pass"),
        "{text}"
    );
    let allowed = Request { api_key: Some("sk_internal_ci"), ..Request::default() };
    let text = said(&allowed);
    assert!(text.starts_with("lists   on the allow list by `sk_internal_*`\n"), "{text}");
    assert!(text.ends_with("passes, and no limit applies"), "{text}");
}

#[test]
fn what_can_never_pass() {
    let costly = Request { api_key: Some("k"), cost: 500, ..Request::default() };
    let text = said(&costly);
    assert!(text.ends_with("refused: a cost of 500 can never pass: rule `rest` holds at most 120"), "{text}");
    let text = said(&Request::default());
    assert!(text.ends_with("there is nobody to limit"), "{text}");
}

#[test]
fn a_rules_own_pattern_gives_the_tier() {
    let loaded = load("rules: [{ id: a, tier: gold, match: { api_key_pattern: g* }, limit: 5/s }]");
    let gold = explain(&loaded, &Request { api_key: Some("g1"), ..Request::default() }, START_US);
    assert_eq!(gold.tier.as_deref(), Some("gold"));
    let other = explain(&loaded, &Request { api_key: Some("x1"), ..Request::default() }, START_US);
    assert_eq!(other.tier, None);
    assert_eq!(other.rules[0].fails.as_deref(), Some("the client does not match api_key_pattern g*"));
    assert_eq!(other.verdict, "passes, and no limit applies");
}

#[test]
fn a_place_in_flight_comes_back_with_its_request() {
    let loaded = load("rules: [{ id: busy, algorithm: concurrency, limit: 3 }]");
    let explained = explain(&loaded, &Request { api_key: Some("k"), ..Request::default() }, START_US);
    let expected = "passes if nothing was spent before; `busy` then has 2 of 3 left, and all of it again when it has ended";
    assert_eq!(explained.verdict, expected);
}

/// A key is shown so that it can be recognised, never so that it can be used.
#[test]
fn keys_are_masked() {
    let loaded = load("rules: [{ id: a, limit: 5/s }]");
    for (key, shown) in
        [("sk_live_0123456789abcdef", "api_key sk_live_…"), ("secret", "api_key sec…"), ("k", "api_key …")]
    {
        let explained = explain(&loaded, &Request { api_key: Some(key), ..Request::default() }, START_US);
        assert_eq!(explained.rules[0].key, shown);
    }
}
