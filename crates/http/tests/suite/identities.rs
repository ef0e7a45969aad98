//! The sources of identities.

use crate::decisions::START_US;
use crate::limited_service::{LimitedService, get, options};
use crate::tokens::Signer;
use jsonwebtoken::Algorithm;
use serde_json::json;
use std::path::Path;
use tollgate_core::document::Document;
use tollgate_core::time::UnixTime;
use tollgate_http::{IdentityExtractor, IdentityOptions};
use tollgate_limiter::Request;

/// The identities that the limiter gets of a request, in one line.
fn seen(identities: &IdentityExtractor, request: http::Request<()>, peer: &str) -> String {
    let (parts, ()) = request.into_parts();
    let caller = match identities.caller(
        &parts.uri,
        &parts.headers,
        Some(peer.parse().unwrap()),
        UnixTime::from_us(START_US),
    ) {
        Ok(caller) => caller,
        Err(error) => return error.to_string(),
    };
    caller.with_request(&parts.method, None, parts.uri.path(), describe)
}

fn describe(request: &Request<'_>) -> String {
    let mut entries = Vec::new();
    let named = [
        ("key", request.api_key),
        ("user", request.user),
        ("tenant", request.tenant),
        ("tier", request.tier),
    ];
    entries.extend(named.iter().filter_map(|(name, value)| Some(format!("{name}={}", (*value)?))));
    entries.extend(request.ids.iter().map(|(name, value)| format!("{name}={value}")));
    entries.extend(request.ip.map(|ip| format!("ip={ip}")));
    if request.cost != 1 {
        entries.push(format!("cost={}", request.cost));
    }
    entries.extend(request.priority.map(|priority| format!("priority={priority}")));
    entries.join(" ")
}

fn request(uri: &str, headers: &[(&str, &str)]) -> http::Request<()> {
    let request = http::Request::builder().uri(uri);
    headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).body(()).unwrap()
}

#[test]
fn by_default_a_key_is_a_header_or_the_bearer_token() {
    let identities = IdentityExtractor::default();
    for (headers, expected) in [
        (&[][..], "ip=203.0.113.9"),
        (&[("X-Api-Key", "k1")], "key=k1 ip=203.0.113.9"),
        (&[("authorization", "Bearer k2")], "key=k2 ip=203.0.113.9"),
        (&[("authorization", "Bearer k2"), ("x-api-key", "k1")], "key=k1 ip=203.0.113.9"),
        (&[("authorization", "Basic azI=")], "ip=203.0.113.9"),
        (&[("x-api-key", " k\u{e9}y ")], "key=k\u{e9}y ip=203.0.113.9"),
    ] {
        assert_eq!(seen(&identities, request("/", headers), "203.0.113.9"), expected, "{headers:?}");
    }
}

#[test]
fn every_source() {
    let options = options(
        "
api_key: [{ cookie: session }, { header: X-Key }]
user: { trusted_header: X-User }
tenant: { query: tenant }
tier: { header: X-Tier }
ids: { invoice_type: { query: type }, address: ip }
cost: { header: X-Cost }
priority: { header: X-Priority }
client_ip: { trusted: [10.0.0.0/8], header: forwarded }
",
    );
    let identities = IdentityExtractor::open(&options, Path::new("")).unwrap();
    let headers = [
        ("cookie", "a=b; session=\"s1\"; c=d"),
        ("x-key", "k"),
        ("x-user", "ann"),
        ("x-tier", "gold"),
        ("x-cost", "5"),
        ("x-priority", "7"),
        ("forwarded", "for=198.51.100.1, for=\"203.0.113.9:80\";proto=https;by=10.0.0.1"),
    ];
    let asked = || request("/x?tenant=a%20b+c&type=eu%2D17&empty", &headers);
    assert_eq!(
        seen(&identities, asked(), "10.0.0.1"),
        "key=s1 user=ann tenant=a b c tier=gold address=203.0.113.9 invoice_type=eu-17 ip=203.0.113.9 cost=5 priority=7"
    );
    // An untrusted peer has fewer of them.
    assert_eq!(
        seen(&identities, asked(), "192.0.2.1"),
        "key=s1 tenant=a b c address=192.0.2.1 invoice_type=eu-17 ip=192.0.2.1"
    );
    let wrong = request("/", &[("x-cost", "many")]);
    assert_eq!(seen(&identities, wrong, "10.0.0.1"), "the header `x-cost` is not a number in range");
}

#[tokio::test]
async fn claims_of_every_kind_of_key() {
    let rules = "rules: [{ id: api, key: user, algorithm: fixed_window, limit: 1/min }]";
    let es = |algorithm| Signer::es(algorithm);
    for signer in
        [Signer::hs256(), Signer::rs256(), es(Algorithm::ES256), es(Algorithm::ES384), Signer::eddsa()]
    {
        let folder = tempfile::tempdir().unwrap();
        let jwt = signer.publish(folder.path());
        let keys = json!({ "keys": [Signer::es(Algorithm::ES256).jwk("other"), signer.jwk("mine")] });
        std::fs::write(folder.path().join("jwks.json"), keys.to_string()).unwrap();
        let from_set = format!("{{ algorithm: {}, jwks_file: jwks.json", signer.name);
        for (jwt, kid) in [(jwt, None), (from_set, Some("mine"))] {
            let identity = format!("user: {{ jwt: sub }}\njwt: {jwt} }}");
            let service = LimitedService::in_folder(rules, &identity, folder.path());
            let ask_as = |kid: Option<&str>, sub: &str| {
                let token = signer.sign_as(kid, &json!({ "sub": sub, "exp": 1_800_000_100 }));
                get("203.0.113.9", "/").with("authorization", format!("Bearer {token}"))
            };
            for (sub, status) in [("ann", 200), ("ann", 429), ("ben", 200), ("ben", 429)] {
                let response = service.send(ask_as(kid, sub)).await;
                assert_eq!(response.status, status, "{} {kid:?} {sub}", signer.name);
            }
            // A `kid` that is not in the set.
            if kid.is_some() {
                assert_eq!(service.send(ask_as(Some("nobody"), "x")).await.status, 200);
                assert_eq!(service.send(ask_as(Some("nobody"), "y")).await.status, 429);
            }
        }
    }
}

#[test]
fn claims_are_strings_numbers_or_nested() {
    let folder = tempfile::tempdir().unwrap();
    let signer = Signer::hs256();
    let jwt = signer.publish(folder.path());
    let options = options(&format!(
        "{{ user: [{{ jwt: uid }}, {{ jwt: sub }}], tenant: {{ jwt: org.id }}, tier: {{ jwt: 'https://x.y/plan' }},
           jwt: {jwt}, issuer: me, audience: [api, web], token: {{ cookie: token }} }} }}"
    ));
    let identities = IdentityExtractor::open(&options, folder.path()).unwrap();
    let seen_with = |claims: serde_json::Value| {
        let cookie = format!("token={}", signer.sign(&claims));
        seen(&identities, request("/", &[("cookie", &cookie), ("authorization", "Bearer k")]), "203.0.113.9")
    };
    let exp = 1_800_000_000;
    let good = json!({"iss": "me", "aud": "web", "exp": exp, "sub": "s", "uid": 7, "org": {"id": "o"}, "https://x.y/plan": "pro"});
    assert_eq!(seen_with(good), "key=k user=7 tenant=o tier=pro ip=203.0.113.9");
    let few = json!({"iss": ["me"], "aud": ["api"], "exp": exp, "sub": "s", "uid": "", "org": "o", "https://x.y/plan": ["pro"]});
    assert_eq!(seen_with(few), "key=k user=s ip=203.0.113.9");
    for wrong in [
        json!({"iss": "you", "aud": "web", "exp": exp, "sub": "s"}),
        json!({"iss": "me", "aud": "other", "exp": exp, "sub": "s"}),
        json!({"iss": "me", "exp": exp, "sub": "s"}),
        json!({"aud": "web", "exp": exp, "sub": "s"}),
        json!({"iss": "me", "aud": "web", "exp": exp - 61, "sub": "s"}),
        json!({"iss": "me", "aud": "web", "exp": "soon", "sub": "s"}),
        json!({"iss": "me", "aud": "web", "exp": exp, "nbf": exp + 61, "sub": "s"}),
    ] {
        assert_eq!(seen_with(wrong.clone()), "key=k ip=203.0.113.9", "{wrong}");
    }
}

#[test]
fn settings_that_cannot_work() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in
        [("short", "secret"), ("pem", "-----BEGIN PUBLIC KEY-----\nAAAA"), ("empty.json", "{\"keys\":[]}")]
    {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    for (yaml, says) in [
        ("user: { jwt: sub }", "identity.user: a claim needs a `jwt:` section"),
        ("tier: { query: tier }", "identity.tier: a tier comes from a claim"),
        ("tier: { header: X-Tier }", "identity.tier: this header counts from trusted peers only"),
        ("ids: { a: { trusted_header: A } }", "identity.ids.a: this header counts from trusted peers only"),
        ("cost: { header: X-Cost }", "identity.cost: this header counts"),
        ("jwt: { algorithm: RS256 }", "identity.jwt: name one of"),
        ("jwt: { algorithm: RS256, key_file: a, jwks_file: b }", "identity.jwt: name one of"),
        (
            "jwt: { algorithm: RS256, secret_file: a }",
            "identity.jwt.secret_file: this algorithm takes a `key_file`",
        ),
        (
            "jwt: { algorithm: HS256, key_file: a }",
            "identity.jwt.key_file: this algorithm takes a `secret_file`",
        ),
        ("jwt: { algorithm: HS256, secret_file: missing }", "identity.jwt.secret_file: cannot read"),
        ("jwt: { algorithm: HS256, secret_file: short }", "a secret has at least 32 bytes"),
        ("jwt: { algorithm: HS256, secret_file: pem }", "a public key is not a secret"),
        ("jwt: { algorithm: ES256, key_file: pem }", "no public key for this algorithm in"),
        ("jwt: { algorithm: ES256, jwks_file: empty.json }", "the key set has no key for ES256"),
        ("jwt: { algorithm: ES256, jwks_file: short }", "not a JSON Web Key Set"),
        (
            "jwt: { algorithm: HS256, secret_file: short, token: ip }",
            "identity.jwt.token: a token comes from",
        ),
    ] {
        let error = IdentityExtractor::open(&options(yaml), folder.path()).unwrap_err().to_string();
        assert!(error.contains(says), "{yaml}: {error}");
    }
}

#[test]
fn settings_that_cannot_be_read_say_where() {
    for (yaml, says) in [
        ("api_key: { heder: X }", "1:12: error: unknown field `heder`"),
        ("api_key: cookie", "1:10: error: `cookie` is not a source"),
        ("api_key: { header: a, cookie: b }", "error: a source has one field"),
        ("api_key: [bearer, { header: 'X Y' }]", "1:29: error: `X Y` is not a header name"),
        ("client_ip: { trusted: [10.0.0/8] }", "1:24: error: `10.0.0/8` is not an address or a network"),
        ("client_ip: { header: x-real-ip }", "1:22: error"),
        ("jwt: { algorithm: none }", "1:19: error"),
        ("usr: bearer", "1:1: error: unknown field `usr`"),
    ] {
        let mut document = Document::parse("identity.yaml", yaml).unwrap();
        let _: Option<IdentityOptions> = document.decode();
        let report = document.into_report().to_string();
        assert!(report.contains(says), "{yaml}: {report}");
    }
}
