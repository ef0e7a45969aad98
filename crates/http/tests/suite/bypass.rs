//! Known ways to bypass a limit. None gives a second quota, and the inner service gets the path that was matched.

use crate::limited_service::{LimitedService, TestRequest, get};
use crate::tokens::{Signer, hs256_with, unsigned};
use http::Uri;
use serde_json::json;
use tollgate_testbed::bypass::{self, BypassOutcome, BypassSpelling};

/// One request a minute by each identity.
const RULES: &str = "
rules:
  - { id: login, endpoint: /login, key: ip, algorithm: fixed_window, limit: 1/min }
  - { id: api, endpoint: /api, key: user, algorithm: fixed_window, limit: 1/min }
  - { id: keyed, endpoint: /keyed, algorithm: fixed_window, limit: 1/min }
  - { id: routed, endpoint: '/users/{id}', key: [ip, route], algorithm: fixed_window, limit: 1/min }
";
const BEHIND_PROXIES: &str = "client_ip: { trusted: [10.0.0.0/8, '::ffff:192.168.0.0/112'] }";

/// Spends the quota with `first`; all of `others` are refused.
async fn share_one_quota(
    service: &LimitedService,
    first: TestRequest,
    others: impl IntoIterator<Item = TestRequest>,
) {
    assert_eq!(service.send(first.clone()).await.status, 200, "{first:?}");
    for other in others {
        assert_eq!(service.send(other.clone()).await.status, 429, "{other:?}");
    }
}

#[tokio::test]
async fn untrusted_peers_cannot_claim_an_address() {
    let spoofs = ["1.2.3.4", "10.0.0.1, 1.2.3.4", "127.0.0.1", "::1", "garbage", ""];
    let forwarded = ["for=1.2.3.4", "for=\"[2001:db8::1]:80\""];
    for identity in ["", BEHIND_PROXIES] {
        let service = LimitedService::new(RULES, identity);
        let asks = spoofs.iter().map(|spoof| get("203.0.113.9", "/login").with("x-forwarded-for", *spoof));
        let lines = get("203.0.113.9", "/login")
            .with("x-forwarded-for", "1.1.1.1")
            .with("x-forwarded-for", "2.2.2.2");
        let others = forwarded.iter().map(|spoof| get("203.0.113.9", "/login").with("forwarded", *spoof));
        let real = get("203.0.113.9", "/login").with("x-real-ip", "1.2.3.4").with("client-ip", "1.2.3.4");
        let mapped = get("::ffff:203.0.113.9", "/login");
        share_one_quota(
            &service,
            get("203.0.113.9", "/login"),
            asks.chain(others).chain([lines, real, mapped]),
        )
        .await;
    }
}

#[tokio::test]
async fn only_the_address_that_a_trusted_proxy_adds_counts() {
    let service = LimitedService::new(RULES, BEHIND_PROXIES);
    let through = |lines: &[&str]| {
        let asked = get("10.0.0.1", "/login");
        lines.iter().fold(asked, |asked, line| asked.with("x-forwarded-for", *line))
    };
    share_one_quota(
        &service,
        through(&["203.0.113.9"]),
        [
            through(&["1.2.3.4, 203.0.113.9"]),
            through(&["1.2.3.4", "203.0.113.9"]),
            through(&["1.2.3.4", "10.9.9.9, 203.0.113.9", "192.168.0.7, 10.0.0.2"]),
            through(&["10.0.0.9, garbage,, 203.0.113.9:4711"]),
            through(&["1.2.3.4,::ffff:203.0.113.9"]),
            through(&["[::ffff:203.0.113.9]:443"]),
            through(&["1.2.3.4\", 203.0.113.9"]),
            through(&["203.0.113.9"]).with("forwarded", "for=1.2.3.4"),
        ],
    )
    .await;
    // Another client of the same proxy has a quota of its own.
    assert_eq!(service.send(through(&["203.0.113.10"])).await.status, 200);
    // A line that cannot be parsed counts as the peer: here the proxy.
    share_one_quota(
        &service,
        through(&["unknown"]),
        [through(&["1.2.3.4, _hidden"]), get("10.0.0.1", "/login")],
    )
    .await;
}

#[tokio::test]
async fn an_ipv6_network_is_one_client() {
    let service = LimitedService::new(RULES, BEHIND_PROXIES);
    let rotated = (0..20).map(|host| get(&format!("2001:db8:1:2:{host:x}::{host:x}"), "/login"));
    let forwarded = get("10.0.0.1", "/login").with("x-forwarded-for", "2001:db8:1:2:ffff::1");
    share_one_quota(&service, get("2001:db8:1:2::1", "/login"), rotated.chain([forwarded])).await;
    assert_eq!(service.send(get("2001:db8:1:3::1", "/login")).await.status, 200);
}

/// The table of all doors. What is no valid [`Uri`] is refused by the server before the layer.
#[tokio::test]
async fn no_spelling_of_a_path_bypasses_a_limit() {
    let service = LimitedService::new(bypass::RULES, "");
    for (number, row) in bypass::bypasses().enumerate() {
        let ask_for = |target: &str, host: &str| {
            let with_host = get("203.0.113.9", target).with("host", host);
            with_host.with("x-api-key", format!("row-{number}"))
        };
        let (target, host) = match row.spelling {
            BypassSpelling::Path(path) | BypassSpelling::Target(path) => (path, "test"),
            BypassSpelling::Host(host) => (row.limited, host),
            BypassSpelling::PseudoPath(_) => continue,
        };
        let limited_host =
            if matches!(row.spelling, BypassSpelling::Host(_)) { bypass::HOST } else { "test" };
        assert_eq!(service.send(ask_for(row.limited, limited_host)).await.status, 200, "{row:?}");
        let response = match target.parse::<Uri>() {
            Ok(_) => service.send(ask_for(target, host)).await,
            Err(_) => {
                assert_eq!(row.outcome, BypassOutcome::Refused, "{row:?}");
                continue;
            }
        };
        match row.outcome {
            BypassOutcome::Limited => assert_eq!(response.status, 429, "{row:?}"),
            BypassOutcome::Refused => {
                assert_eq!(response.status, 400, "{row:?}");
                assert!(response.body.starts_with(r#"{"error":{"code":"BAD_REQUEST""#), "{}", response.body);
            }
        }
    }
}

#[tokio::test]
async fn the_inner_service_sees_the_host_that_counts() {
    let service = LimitedService::new(bypass::RULES, "");
    let both = |target: &str, host: &str| get("203.0.113.9", target).with("host", host);
    for (asked, status) in [
        (both("http://shop.example/shop", "other"), 200),
        (both("/shop", "shop.example"), 429),
        (both("http://other/shop", "shop.example"), 200),
        (both("/shop", "other"), 200),
        (both("/shop", "other").with("host", "shop.example"), 400),
        (both("http://other/shop", "other").with("host", "shop.example"), 400),
        (get("203.0.113.9", "/shop"), 200),
    ] {
        let response = service.send(asked.clone()).await;
        assert_eq!(response.status, status, "{asked:?}");
        if status == 200 {
            let authority = asked.uri.strip_prefix("http://").and_then(|rest| rest.split('/').next());
            let seen = authority.or(asked.headers.first().map(|(_, host)| host.as_str())).unwrap_or_default();
            assert_eq!(response.headers["x-host"], seen, "{asked:?}");
        }
    }
}

#[tokio::test]
async fn the_inner_service_sees_what_was_matched() {
    let service = LimitedService::new(RULES, "");
    for (sent, seen) in [
        ("/login", "/login"),
        ("//x/./y", "/x/y"),
        ("/a/../%6cogin?next=//x/../%2f", "/login?next=//x/../%2f"),
        ("/Keep/Case;x/", "/Keep/Case;x/"),
        ("/;x/a;y/;z?q", "/a;y/?q"),
        ("/a%3ab", "/a%3Ab"),
        ("/a#x", "/a"),
        ("http://example.com", "/"),
        ("http://example.com#x", "/"),
        ("http://example.com?x", "/?x"),
        ("http://example.com/?x#y", "/?x"),
        ("/caf%c3%a9?", "/caf%C3%A9?"),
        ("http://example.com//x", "/x"),
    ] {
        let response = service.send(get("203.0.113.9", sent)).await;
        assert_eq!((response.status, response.body.as_str()), (200, seen), "{sent}");
        service.clock.advance_us(60_000_000);
    }
    // `*` and an empty path are valid only where the protocol says so.
    let methods =
        [("OPTIONS", "*", 200), ("GET", "*", 400), ("CONNECT", "login:80", 200), ("GET", "login", 400)];
    for (method, target, status) in methods {
        let asked = get("203.0.113.9", target).by(method);
        assert_eq!(service.send(asked).await.status, status, "{method} {target}");
    }
}

#[tokio::test]
async fn an_identity_that_occurs_twice_is_refused() {
    let identity = "{ user: { query: user }, tenant: { cookie: tenant } }";
    let service = LimitedService::new(RULES, identity);
    let keyed = || get("203.0.113.9", "/keyed");
    for (asked, says) in [
        (keyed().with("x-api-key", "a").with("x-api-key", "b"), "the header `x-api-key` occurs twice"),
        (
            keyed().with("authorization", "Bearer a").with("authorization", "Bearer b"),
            "the header `authorization`",
        ),
        (get("203.0.113.9", "/keyed?user=a&user=b"), "the query parameter `user`"),
        (get("203.0.113.9", "/keyed?user=a&us%65r=b"), "the query parameter `user`"),
        (get("203.0.113.9", "/keyed?user=%ff"), "cannot be decoded"),
        (get("203.0.113.9", "/keyed?user=a%00b"), "cannot be decoded"),
        (get("203.0.113.9", "/keyed?user=a%0ab"), "cannot be decoded"),
        (get("203.0.113.9", "/keyed?user=a;b"), "cannot be decoded"),
        (get("203.0.113.9", "/keyed?x=y;user=a"), "`user` could be read as `user`"),
        (get("203.0.113.9", "/keyed?user=a;us%65r=b"), "could be read as `user`"),
        (get("203.0.113.9", "/keyed?USER=a"), "`USER` could be read as `user`"),
        (get("203.0.113.9", "/keyed?user[]=a"), "could be read as `user`"),
        (get("203.0.113.9", "/keyed?user%5b0%5d=a"), "could be read as `user`"),
        (get("203.0.113.9", "/keyed?+user=a"), "could be read as `user`"),
        (get("203.0.113.9", "/keyed?user%00x=a"), "could be read as `user`"),
        (get("203.0.113.9", "/keyed?[user]=a"), "could be read as `user`"),
        (get("203.0.113.9", "/keyed?%5Buser%5D%5B0%5D=a"), "could be read as `user`"),
        (keyed().with("cookie", "tenant=\"a\\142c\""), "that servers read differently"),
        (keyed().with("cookie", "tenant=\"\\a\\b\""), "that servers read differently"),
        (keyed().with("cookie", "tenant=j:%22\\u0061bc%22"), "that servers read differently"),
        (keyed().with("cookie", "tenant=j%3A%22abc%22"), "that servers read differently"),
        (keyed().with("cookie", "Tenant=a"), "the cookie `Tenant` could be read as `tenant`"),
        (keyed().with("cookie", "x=y, tenant=a"), "the cookie `tenant` could be read as `tenant`"),
        (keyed().with("cookie", "x=y tenant=a"), "the cookie `tenant`"),
        (keyed().with("cookie", "x=\"y tenant=a\""), "the cookie `tenant`"),
        (keyed().with("cookie", "tenant=a%00b"), "has control characters"),
        (keyed().with("cookie", "tenant=a; tenant=b"), "the cookie `tenant`"),
        (keyed().with("cookie", "tenant=a").with("cookie", "tenant=b"), "the cookie `tenant`"),
    ] {
        let response = service.send(asked.clone()).await;
        assert_eq!(response.status, 400, "{asked:?}");
        assert!(response.body.contains(says), "{asked:?}: {}", response.body);
    }
    // Empty is absent: all of these count by the address.
    let empty = [
        keyed().with("x-api-key", ""),
        keyed().with("x-api-key", "  "),
        keyed().with("authorization", "Bearer "),
        keyed().with("authorization", "Basic abc"),
        keyed().with("authorization", "Bearer"),
    ];
    share_one_quota(&service, keyed(), empty).await;
    share_one_quota(
        &service,
        keyed().with("x-api-key", "k"),
        [
            keyed().with("authorization", "Bearer k"),
            keyed().with("authorization", "bearer  k "),
            keyed().with("x-api-key", "k").with("authorization", "Bearer other"),
        ],
    )
    .await;
}

/// Spellings of one value that some server decodes are one value.
#[tokio::test]
async fn spellings_of_one_value_share_a_quota() {
    let rules = "rules: [{ id: by, key: user, algorithm: fixed_window, limit: 1/min }]";
    let spelt = |number: usize, uri: &str| get(&format!("198.51.100.{number}"), uri);
    let service = LimitedService::new(rules, "user: { query: user_id }");
    let same = [
        "/?user_id=%61nn",
        "/?user_id=%20ann",
        "/?user_id=ann%20",
        "/?user_id=+ann++",
        "/?user_id=ann%0a",
        "/?user%5fid=ann",
        "/?x=y&user_id=ann&z",
        "/?user_id=%09ann%0D%0A",
    ];
    let others = same.iter().enumerate().map(|(at, uri)| spelt(at, uri));
    share_one_quota(&service, spelt(99, "/?user_id=ann"), others).await;
    for uri in [
        "/?user.id=ann",
        "/?user+id=ann",
        "/?user-id=ann",
        "/?user%20id=ann",
        "/?User_Id=ann",
        "/?user[id=ann",
    ] {
        assert_eq!(service.send(spelt(1, uri)).await.status, 400, "{uri}");
    }
    // Other values have quotas of their own.
    for (number, uri) in
        [(2, "/?user_id=ann%2Bx"), (3, "/?user_id=Ann"), (4, "/?user_ids=ann"), (5, "/?id=ann;x")]
    {
        assert_eq!(service.send(spelt(number, uri)).await.status, 200, "{uri}");
    }
    let service = LimitedService::new(rules, "user: { cookie: sid }");
    let with = |number: usize, cookie: &str| spelt(number, "/").with("cookie", cookie);
    let same = [
        "sid=\"ann\"",
        "sid=%61nn",
        "sid=a%6En",
        "sid=\"%61nn\"",
        "sid=\" ann \"",
        "sid=%20ann",
        " sid = ann ",
        "x=y; sid=ann; z",
    ];
    let others = same.iter().enumerate().map(|(at, cookie)| with(at, cookie));
    share_one_quota(&service, with(99, "sid=ann"), others).await;
    for (number, cookie) in [(2, "sid=ann%"), (3, "sid=ann%zz"), (4, "sid=an+n"), (5, "sids=ann; xsid=ann")] {
        assert_eq!(service.send(with(number, cookie)).await.status, 200, "{cookie}");
    }
}

/// Whatever follows `Bearer`, a lenient server must not find a token that the layer does not.
#[tokio::test]
async fn spellings_of_one_bearer_token_share_a_quota() {
    let folder = tempfile::tempdir().unwrap();
    let signer = Signer::hs256();
    let jwt = signer.publish(folder.path());
    let claims = json!({"sub": "ann", "exp": 1_800_000_060});
    for (identity, token) in [
        (String::new(), "k".to_owned()),
        (format!("user: {{ jwt: sub }}\njwt: {jwt} }}"), signer.sign(&claims)),
    ] {
        let service = LimitedService::in_folder(RULES, &identity, folder.path());
        let path = if identity.is_empty() { "/keyed" } else { "/api" };
        // Each from another address: if the token were not found, the address would have a quota of its own.
        let spelt = |number: usize, value: String| {
            get(&format!("198.51.100.{number}"), path).with("authorization", value)
        };
        let same = [
            "bearer {}",
            "BEARER {}",
            "bEaReR {}",
            "Bearer  {}",
            "Bearer\t{}",
            "Bearer \t  {}",
            "Bearer\t\t{}",
            "Bearer {} ",
            "Bearer {}\t",
            " Bearer {}",
            "\tBearer\t{} \t",
        ];
        let others = same.iter().enumerate().map(|(at, text)| spelt(at, text.replace("{}", &token)));
        share_one_quota(&service, spelt(99, format!("Bearer {token}")), others).await;
        let refused = [
            "Bearer {} x",
            "Bearer x {}",
            "Bearer {}\tx",
            "Bearer {}, Bearer {}",
            "Bearer:{}",
            "Bearer={}",
            "Bearer,{}",
            "Bearer: {}",
            "Bearer{}",
            "bearer\"{}\"",
            "Bearer \u{a0}{}",
            "Bearer\u{3000}{}",
            "Bearer {}\u{a0}x",
        ];
        for text in refused {
            let response = service.send(spelt(1, text.replace("{}", &token))).await;
            assert_eq!(response.status, 400, "{text:?}");
            assert!(response.body.contains("`Bearer`, a space and one token"), "{}", response.body);
        }
        let twice = spelt(1, format!("Bearer {token}")).with("authorization", format!("Bearer {token}"));
        let response = service.send(twice).await;
        assert_eq!((response.status, response.body.contains("occurs twice")), (400, true));
        // No token at all, to the layer and to every server: these count by the address.
        let none = ["Bearer", "Bearer ", "bearer \t", "Basic azI=", "Token {}", "Bear {}", ""];
        let none = none
            .iter()
            .map(|text| get("203.0.113.9", path).with("authorization", text.replace("{}", &token)));
        share_one_quota(&service, get("203.0.113.9", path), none).await;
    }
}

#[tokio::test]
async fn a_forged_token_has_no_quota_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (signer, unknown, other) = (Signer::rs256(), Signer::rs256(), Signer::hs256());
    let jwt = signer.publish(folder.path());
    for api_key in ["", "api_key: [{ header: X-Api-Key }, bearer]\n"] {
        let identity = format!("{api_key}user: {{ jwt: sub }}\njwt: {jwt}, leeway: 0 }}");
        let service = LimitedService::in_folder(RULES, &identity, folder.path());
        let now = 1_800_000_000;
        let claims = |sub: &str, exp: i64| json!({ "sub": sub, "exp": now + exp });
        let with = |token: &str| get("203.0.113.9", "/api").with("authorization", format!("Bearer {token}"));
        let good = signer.sign(&claims("ann", 60));
        let (head, signature) = good.rsplit_once('.').unwrap();
        let mut tampered = good.clone();
        tampered.replace_range(good.find('.').unwrap() + 3..good.find('.').unwrap() + 4, "x");
        let forged = [
            unsigned(&json!({"alg": "none"}), &claims("ann", 60)),
            unsigned(&json!({"alg": "None", "typ": "JWT"}), &claims("u1", 60)),
            unsigned(&json!({"alg": "RS256"}), &claims("u2", 60)),
            unknown.sign(&claims("u3", 60)),
            signer.sign(&claims("u4", -1)),
            signer.sign(&json!({"sub": "u5"})),
            signer.sign(&json!({"sub": "u6", "exp": now + 60, "nbf": now + 30})),
            other.sign(&claims("u7", 60)),
            signer.sign_critical(&["b64"], &claims("u10", 60)),
            signer.sign_critical(&["https://example.com/ext"], &claims("u11", 60)),
            signer.sign_critical(&["exp"], &claims("u12", 60)),
            signer.sign_critical(&[], &claims("u13", 60)),
            // The public key as the secret of another algorithm.
            hs256_with(&signer.file, &claims("u8", 60)),
            hs256_with(signer.file.trim_ascii(), &claims("u9", 60)),
            format!("{head}."),
            format!("{head}.{}", &signature[..8]),
            format!("{good}.more"),
            tampered,
        ];
        // Libraries accept several spellings of a signature; such a token may be valid to a server.
        let (rest, last) = good.split_at(good.len() - 1);
        let neighbour = char::from_u32(u32::from(last.as_bytes()[0]) ^ 1).unwrap();
        let respelt =
            [format!("{good}="), format!("{good}=="), format!("{rest}{neighbour}"), format!("{good}+/")];
        for token in respelt.iter().map(String::as_str).chain(["a.b.c", "a.b.c="]) {
            let response = service.send(with(token)).await;
            assert_eq!(response.status, 400, "{token}");
            assert!(response.body.contains("base64url"), "{}", response.body);
        }
        // All of them count by the address, as requests without a token do.
        share_one_quota(&service, get("203.0.113.9", "/api"), forged.iter().map(|token| with(token))).await;
        // Valid tokens have quotas of their own, from any address.
        assert_eq!(service.send(with(&good)).await.status, 200);
        assert_eq!(service.send(with(&good)).await.status, 429);
        let again = get("198.51.100.7", "/api");
        let again = again.with("authorization", format!("Bearer {}", signer.sign(&claims("ann", 30))));
        assert_eq!(service.send(again).await.status, 429);
        assert_eq!(service.send(with(&signer.sign(&claims("ben", 60)))).await.status, 200);
        // A token that was valid until now.
        service.clock.advance_us(61_000_000);
        let asks = [with(&good), with(&signer.sign(&claims("ben", 60)))];
        share_one_quota(&service, get("203.0.113.9", "/api"), asks).await;
        // Where bearer tokens are no keys, an invented one is no identity.
        let made_up = service.send(with("made-up")).await.status;
        assert_eq!(made_up, if api_key.is_empty() { 429 } else { 200 });
    }
}
