//! The ways around a limit that people try. None of them is a second quota, and what stands behind the layer
//! is asked for the path that was matched.

use crate::gatehouse::{Ask, Gatehouse, ask};
use crate::tokens::{Signer, hs256_with, unsigned};
use http::Uri;
use serde_json::json;
use tollgate_testbed::bypass::{self, BypassOutcome, BypassSpelling};

/// One request a minute on each count.
const RULES: &str = "
rules:
  - { id: login, endpoint: /login, key: ip, algorithm: fixed_window, limit: 1/min }
  - { id: api, endpoint: /api, key: user, algorithm: fixed_window, limit: 1/min }
  - { id: keyed, endpoint: /keyed, algorithm: fixed_window, limit: 1/min }
  - { id: routed, endpoint: '/users/{id}', key: [ip, route], algorithm: fixed_window, limit: 1/min }
";
const BEHIND_PROXIES: &str = "client_ip: { trusted: [10.0.0.0/8, '::ffff:192.168.0.0/112'] }";

/// Spends the quota with `first`, and finds all of `others` limited.
async fn all_one(gatehouse: &Gatehouse, first: Ask, others: impl IntoIterator<Item = Ask>) {
    assert_eq!(gatehouse.tell(first.clone()).await.status, 200, "{first:?}");
    for other in others {
        assert_eq!(gatehouse.tell(other.clone()).await.status, 429, "{other:?}");
    }
}

#[tokio::test]
async fn a_stranger_cannot_name_another_address() {
    let spoofs = ["1.2.3.4", "10.0.0.1, 1.2.3.4", "127.0.0.1", "::1", "garbage", ""];
    let forwarded = ["for=1.2.3.4", "for=\"[2001:db8::1]:80\""];
    for identity in ["", BEHIND_PROXIES] {
        let gatehouse = Gatehouse::new(RULES, identity);
        let asks = spoofs.iter().map(|spoof| ask("203.0.113.9", "/login").with("x-forwarded-for", *spoof));
        let lines = ask("203.0.113.9", "/login")
            .with("x-forwarded-for", "1.1.1.1")
            .with("x-forwarded-for", "2.2.2.2");
        let others = forwarded.iter().map(|spoof| ask("203.0.113.9", "/login").with("forwarded", *spoof));
        let real = ask("203.0.113.9", "/login").with("x-real-ip", "1.2.3.4").with("client-ip", "1.2.3.4");
        let mapped = ask("::ffff:203.0.113.9", "/login");
        all_one(&gatehouse, ask("203.0.113.9", "/login"), asks.chain(others).chain([lines, real, mapped]))
            .await;
    }
}

#[tokio::test]
async fn behind_a_proxy_only_its_own_word_counts() {
    let gatehouse = Gatehouse::new(RULES, BEHIND_PROXIES);
    let through = |lines: &[&str]| {
        let asked = ask("10.0.0.1", "/login");
        lines.iter().fold(asked, |asked, line| asked.with("x-forwarded-for", *line))
    };
    all_one(
        &gatehouse,
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
    assert_eq!(gatehouse.tell(through(&["203.0.113.10"])).await.status, 200);
    // What cannot be read is whoever sent it: here the proxy.
    all_one(&gatehouse, through(&["unknown"]), [through(&["1.2.3.4, _hidden"]), ask("10.0.0.1", "/login")])
        .await;
}

#[tokio::test]
async fn an_ipv6_network_is_one_client() {
    let gatehouse = Gatehouse::new(RULES, BEHIND_PROXIES);
    let rotated = (0..20).map(|host| ask(&format!("2001:db8:1:2:{host:x}::{host:x}"), "/login"));
    let forwarded = ask("10.0.0.1", "/login").with("x-forwarded-for", "2001:db8:1:2:ffff::1");
    all_one(&gatehouse, ask("2001:db8:1:2::1", "/login"), rotated.chain([forwarded])).await;
    assert_eq!(gatehouse.tell(ask("2001:db8:1:3::1", "/login")).await.status, 200);
}

/// The table of all doors. What cannot even be a [`Uri`] is refused by the server before the layer sees it.
#[tokio::test]
async fn no_spelling_is_a_way_around_a_limit() {
    let gatehouse = Gatehouse::new(bypass::RULES, "");
    for (number, row) in bypass::bypasses().enumerate() {
        let ask_for = |target: &str, host: &str| {
            let with_host = ask("203.0.113.9", target).with("host", host);
            with_host.with("x-api-key", format!("row-{number}"))
        };
        let (target, host) = match row.spelling {
            BypassSpelling::Path(path) | BypassSpelling::Target(path) => (path, "test"),
            BypassSpelling::Host(host) => (row.limited, host),
            BypassSpelling::PseudoPath(_) => continue,
        };
        let limited_host =
            if matches!(row.spelling, BypassSpelling::Host(_)) { bypass::HOST } else { "test" };
        assert_eq!(gatehouse.tell(ask_for(row.limited, limited_host)).await.status, 200, "{row:?}");
        let told = match target.parse::<Uri>() {
            Ok(_) => gatehouse.tell(ask_for(target, host)).await,
            Err(_) => {
                assert_eq!(row.outcome, BypassOutcome::Refused, "{row:?}");
                continue;
            }
        };
        match row.outcome {
            BypassOutcome::Limited => assert_eq!(told.status, 429, "{row:?}"),
            BypassOutcome::Refused => {
                assert_eq!(told.status, 400, "{row:?}");
                assert!(told.body.starts_with(r#"{"error":{"code":"BAD_REQUEST""#), "{}", told.body);
            }
        }
    }
}

#[tokio::test]
async fn the_host_that_counts_is_the_host_that_is_seen() {
    let gatehouse = Gatehouse::new(bypass::RULES, "");
    let both = |target: &str, host: &str| ask("203.0.113.9", target).with("host", host);
    for (asked, status) in [
        (both("http://shop.example/shop", "other"), 200),
        (both("/shop", "shop.example"), 429),
        (both("http://other/shop", "shop.example"), 200),
        (both("/shop", "other"), 200),
        (both("/shop", "other").with("host", "shop.example"), 400),
        (both("http://other/shop", "other").with("host", "shop.example"), 400),
        (ask("203.0.113.9", "/shop"), 200),
    ] {
        let told = gatehouse.tell(asked.clone()).await;
        assert_eq!(told.status, status, "{asked:?}");
        if status == 200 {
            let authority = asked.uri.strip_prefix("http://").and_then(|rest| rest.split('/').next());
            let seen = authority.or(asked.headers.first().map(|(_, host)| host.as_str())).unwrap_or_default();
            assert_eq!(told.headers["x-host"], seen, "{asked:?}");
        }
    }
}

#[tokio::test]
async fn the_inner_service_sees_what_was_matched() {
    let gatehouse = Gatehouse::new(RULES, "");
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
        let told = gatehouse.tell(ask("203.0.113.9", sent)).await;
        assert_eq!((told.status, told.body.as_str()), (200, seen), "{sent}");
        gatehouse.clock.advance_us(60_000_000);
    }
    // What is no path is one only where the protocol says so.
    let methods =
        [("OPTIONS", "*", 200), ("GET", "*", 400), ("CONNECT", "login:80", 200), ("GET", "login", 400)];
    for (method, target, status) in methods {
        let asked = ask("203.0.113.9", target).by(method);
        assert_eq!(gatehouse.tell(asked).await.status, status, "{method} {target}");
    }
}

#[tokio::test]
async fn a_key_said_twice_is_refused() {
    let identity = "{ user: { query: user }, tenant: { cookie: tenant } }";
    let gatehouse = Gatehouse::new(RULES, identity);
    let keyed = || ask("203.0.113.9", "/keyed");
    for (asked, says) in [
        (keyed().with("x-api-key", "a").with("x-api-key", "b"), "the header `x-api-key` occurs twice"),
        (
            keyed().with("authorization", "Bearer a").with("authorization", "Bearer b"),
            "the header `authorization`",
        ),
        (ask("203.0.113.9", "/keyed?user=a&user=b"), "the query parameter `user`"),
        (ask("203.0.113.9", "/keyed?user=a&us%65r=b"), "the query parameter `user`"),
        (ask("203.0.113.9", "/keyed?user=%ff"), "cannot be decoded"),
        (ask("203.0.113.9", "/keyed?user=a%00b"), "cannot be decoded"),
        (ask("203.0.113.9", "/keyed?user=a%0ab"), "cannot be decoded"),
        (ask("203.0.113.9", "/keyed?user=a;b"), "cannot be decoded"),
        (ask("203.0.113.9", "/keyed?x=y;user=a"), "`user` could be read as `user`"),
        (ask("203.0.113.9", "/keyed?user=a;us%65r=b"), "could be read as `user`"),
        (ask("203.0.113.9", "/keyed?USER=a"), "`USER` could be read as `user`"),
        (ask("203.0.113.9", "/keyed?user[]=a"), "could be read as `user`"),
        (ask("203.0.113.9", "/keyed?user%5b0%5d=a"), "could be read as `user`"),
        (ask("203.0.113.9", "/keyed?+user=a"), "could be read as `user`"),
        (ask("203.0.113.9", "/keyed?user%00x=a"), "could be read as `user`"),
        (ask("203.0.113.9", "/keyed?[user]=a"), "could be read as `user`"),
        (ask("203.0.113.9", "/keyed?%5Buser%5D%5B0%5D=a"), "could be read as `user`"),
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
        let told = gatehouse.tell(asked.clone()).await;
        assert_eq!(told.status, 400, "{asked:?}");
        assert!(told.body.contains(says), "{asked:?}: {}", told.body);
    }
    // Empty is absent: all of these count by the address.
    let empty = [
        keyed().with("x-api-key", ""),
        keyed().with("x-api-key", "  "),
        keyed().with("authorization", "Bearer "),
        keyed().with("authorization", "Basic abc"),
        keyed().with("authorization", "Bearer"),
    ];
    all_one(&gatehouse, keyed(), empty).await;
    all_one(
        &gatehouse,
        keyed().with("x-api-key", "k"),
        [
            keyed().with("authorization", "Bearer k"),
            keyed().with("authorization", "bearer  k "),
            keyed().with("x-api-key", "k").with("authorization", "Bearer other"),
        ],
    )
    .await;
}

/// Other spellings of one value are one value, wherever a server may undo them.
#[tokio::test]
async fn a_value_is_one_however_it_is_spelt() {
    let rules = "rules: [{ id: by, key: user, algorithm: fixed_window, limit: 1/min }]";
    let spelt = |number: usize, uri: &str| ask(&format!("198.51.100.{number}"), uri);
    let gatehouse = Gatehouse::new(rules, "user: { query: user_id }");
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
    all_one(&gatehouse, spelt(99, "/?user_id=ann"), others).await;
    for uri in [
        "/?user.id=ann",
        "/?user+id=ann",
        "/?user-id=ann",
        "/?user%20id=ann",
        "/?User_Id=ann",
        "/?user[id=ann",
    ] {
        assert_eq!(gatehouse.tell(spelt(1, uri)).await.status, 400, "{uri}");
    }
    // Others are others.
    for (number, uri) in
        [(2, "/?user_id=ann%2Bx"), (3, "/?user_id=Ann"), (4, "/?user_ids=ann"), (5, "/?id=ann;x")]
    {
        assert_eq!(gatehouse.tell(spelt(number, uri)).await.status, 200, "{uri}");
    }
    let gatehouse = Gatehouse::new(rules, "user: { cookie: sid }");
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
    all_one(&gatehouse, with(99, "sid=ann"), others).await;
    for (number, cookie) in [(2, "sid=ann%"), (3, "sid=ann%zz"), (4, "sid=an+n"), (5, "sids=ann; xsid=ann")] {
        assert_eq!(gatehouse.tell(with(number, cookie)).await.status, 200, "{cookie}");
    }
}

/// Whatever is written behind `Bearer`, servers that skip more than others must not find a token that we do not.
#[tokio::test]
async fn a_bearer_token_is_one_however_it_is_spelt() {
    let folder = tempfile::tempdir().unwrap();
    let signer = Signer::hs256();
    let jwt = signer.publish(folder.path());
    let claims = json!({"sub": "ann", "exp": 1_800_000_060});
    for (identity, token) in [
        (String::new(), "k".to_owned()),
        (format!("user: {{ jwt: sub }}\njwt: {jwt} }}"), signer.sign(&claims)),
    ] {
        let gatehouse = Gatehouse::in_folder(RULES, &identity, folder.path());
        let path = if identity.is_empty() { "/keyed" } else { "/api" };
        // Each from another address: what is not found to be the token would have a count of its own.
        let spelt = |number: usize, value: String| {
            ask(&format!("198.51.100.{number}"), path).with("authorization", value)
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
        all_one(&gatehouse, spelt(99, format!("Bearer {token}")), others).await;
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
            let told = gatehouse.tell(spelt(1, text.replace("{}", &token))).await;
            assert_eq!(told.status, 400, "{text:?}");
            assert!(told.body.contains("`Bearer`, a space and one token"), "{}", told.body);
        }
        let twice = spelt(1, format!("Bearer {token}")).with("authorization", format!("Bearer {token}"));
        let told = gatehouse.tell(twice).await;
        assert_eq!((told.status, told.body.contains("occurs twice")), (400, true));
        // No token at all, for us and for every server: all of these count by the address.
        let none = ["Bearer", "Bearer ", "bearer \t", "Basic azI=", "Token {}", "Bear {}", ""];
        let none = none
            .iter()
            .map(|text| ask("203.0.113.9", path).with("authorization", text.replace("{}", &token)));
        all_one(&gatehouse, ask("203.0.113.9", path), none).await;
    }
}

#[tokio::test]
async fn a_forged_token_has_no_quota_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (signer, stranger, other) = (Signer::rs256(), Signer::rs256(), Signer::hs256());
    let jwt = signer.publish(folder.path());
    for api_key in ["", "api_key: [{ header: X-Api-Key }, bearer]\n"] {
        let identity = format!("{api_key}user: {{ jwt: sub }}\njwt: {jwt}, leeway: 0 }}");
        let gatehouse = Gatehouse::in_folder(RULES, &identity, folder.path());
        let now = 1_800_000_000;
        let claims = |sub: &str, exp: i64| json!({ "sub": sub, "exp": now + exp });
        let with = |token: &str| ask("203.0.113.9", "/api").with("authorization", format!("Bearer {token}"));
        let good = signer.sign(&claims("ann", 60));
        let (head, signature) = good.rsplit_once('.').unwrap();
        let mut tampered = good.clone();
        tampered.replace_range(good.find('.').unwrap() + 3..good.find('.').unwrap() + 4, "x");
        let forged = [
            unsigned(&json!({"alg": "none"}), &claims("ann", 60)),
            unsigned(&json!({"alg": "None", "typ": "JWT"}), &claims("u1", 60)),
            unsigned(&json!({"alg": "RS256"}), &claims("u2", 60)),
            stranger.sign(&claims("u3", 60)),
            signer.sign(&claims("u4", -1)),
            signer.sign(&json!({"sub": "u5"})),
            signer.sign(&json!({"sub": "u6", "exp": now + 60, "nbf": now + 30})),
            other.sign(&claims("u7", 60)),
            signer.sign_critical(&["b64"], &claims("u10", 60)),
            signer.sign_critical(&["https://example.com/ext"], &claims("u11", 60)),
            signer.sign_critical(&["exp"], &claims("u12", 60)),
            signer.sign_critical(&[], &claims("u13", 60)),
            // The public key, which everybody has, as the secret of another algorithm.
            hs256_with(&signer.file, &claims("u8", 60)),
            hs256_with(signer.file.trim_ascii(), &claims("u9", 60)),
            format!("{head}."),
            format!("{head}.{}", &signature[..8]),
            format!("{good}.more"),
            tampered,
        ];
        // Libraries accept more than one spelling of a signature; what such a token would prove to a server is not known.
        let (rest, last) = good.split_at(good.len() - 1);
        let neighbour = char::from_u32(u32::from(last.as_bytes()[0]) ^ 1).unwrap();
        let respelt =
            [format!("{good}="), format!("{good}=="), format!("{rest}{neighbour}"), format!("{good}+/")];
        for token in respelt.iter().map(String::as_str).chain(["a.b.c", "a.b.c="]) {
            let told = gatehouse.tell(with(token)).await;
            assert_eq!(told.status, 400, "{token}");
            assert!(told.body.contains("base64url"), "{}", told.body);
        }
        // All of them count by the address, as whoever has no token does.
        all_one(&gatehouse, ask("203.0.113.9", "/api"), forged.iter().map(|token| with(token))).await;
        // The honest ones have quotas of their own, each one, from wherever.
        assert_eq!(gatehouse.tell(with(&good)).await.status, 200);
        assert_eq!(gatehouse.tell(with(&good)).await.status, 429);
        let again = ask("198.51.100.7", "/api");
        let again = again.with("authorization", format!("Bearer {}", signer.sign(&claims("ann", 30))));
        assert_eq!(gatehouse.tell(again).await.status, 429);
        assert_eq!(gatehouse.tell(with(&signer.sign(&claims("ben", 60)))).await.status, 200);
        // A token that was good until now.
        gatehouse.clock.advance_us(61_000_000);
        let asks = [with(&good), with(&signer.sign(&claims("ben", 60)))];
        all_one(&gatehouse, ask("203.0.113.9", "/api"), asks).await;
        // Where bearer tokens are no keys, a made-up one is nobody.
        let made_up = gatehouse.tell(with("made-up")).await.status;
        assert_eq!(made_up, if api_key.is_empty() { 429 } else { 200 });
    }
}
