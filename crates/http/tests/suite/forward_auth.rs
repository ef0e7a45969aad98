//! The original request of a proxy that asks: what its headers say, and nothing else.

use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_core::document::Document;
use tollgate_core::time::UnixTime;
use tollgate_http::forward_auth::{MissingPart, OriginalRequest, ProxyAddressHeader};
use tollgate_http::{
    DenyStatus, ForwardAuthOptions, HttpError, IdentityExtractor, IdentityOptions, host, path,
};

/// A description of `GET /x` by a client at 203.0.113.9, with one header replaced, or removed if the value is empty.
fn described(changes: &[(&'static str, &str)]) -> Result<OriginalRequest, HttpError> {
    let mut headers = HeaderMap::new();
    for (name, value) in
        [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/x"), ("x-forwarded-for", "203.0.113.9")]
    {
        headers.insert(name, HeaderValue::from_static(value));
    }
    for (name, value) in changes {
        headers.remove(*name);
        for line in value.split('\n').filter(|line| !line.is_empty()) {
            headers.append(*name, HeaderValue::try_from(line).unwrap());
        }
    }
    original(&ForwardAuthOptions::default(), headers)
}

fn original(options: &ForwardAuthOptions, headers: HeaderMap) -> Result<OriginalRequest, HttpError> {
    let mut request = Request::get("/v1/auth").body(()).unwrap();
    *request.headers_mut() = headers;
    options.original(request.into_parts().0, IpAddr::from([127, 0, 0, 1]))
}

#[test]
fn a_request_is_restored_from_the_headers_of_each_proxy() {
    for (changes, expected) in [
        (&[][..], "GET /x 203.0.113.9"),
        (&[("x-forwarded-method", "DELETE"), ("x-forwarded-uri", "/a/b?c=d")], "DELETE /a/b?c=d 203.0.113.9"),
        (
            &[
                ("x-forwarded-uri", ""),
                ("x-original-uri", "/n"),
                ("x-forwarded-method", ""),
                ("x-original-method", "PUT"),
            ],
            "PUT /n 203.0.113.9",
        ),
        (
            &[("x-forwarded-uri", ""), ("x-original-url", "https://shop.example/n?x")],
            "GET https://shop.example/n?x 203.0.113.9",
        ),
        (&[("x-original-uri", "/x"), ("x-original-method", "GET")], "GET /x 203.0.113.9"),
        (&[("x-original-url", "http://a/x")], "GET /x 203.0.113.9"),
        (&[("x-forwarded-for", "1.2.3.4, 203.0.113.7")], "GET /x 203.0.113.7"),
        (&[("x-forwarded-for", "1.2.3.4\n203.0.113.7, ")], "GET /x 203.0.113.7"),
        (&[("x-forwarded-for", "[2001:db8::1]:80")], "GET /x 2001:db8::1"),
        (&[("x-real-ip", "1.2.3.4")], "GET /x 203.0.113.9"),
        (&[("x-forwarded-uri", "*"), ("x-forwarded-method", "OPTIONS")], "OPTIONS * 203.0.113.9"),
        (&[("x-forwarded-uri", "//evil/x")], "GET //evil/x 203.0.113.9"),
        // What is not described is that of the proxy's own request.
        (&[("x-forwarded-method", "")], "GET /x 203.0.113.9"),
        (&[("x-forwarded-for", "")], "GET /x 127.0.0.1"),
        (&[("x-forwarded-for", ""), ("x-real-ip", "1.2.3.4")], "GET /x 127.0.0.1"),
    ] {
        let OriginalRequest { request, peer, .. } = described(changes).unwrap();
        assert_eq!(format!("{} {} {peer}", request.method(), request.uri()), expected, "{changes:?}");
    }
}

#[test]
fn what_is_not_described_is_told() {
    for (changes, expected) in [
        (&[][..], None),
        (&[("x-forwarded-method", "")], Some(MissingPart::Method)),
        (&[("x-forwarded-for", "")], Some(MissingPart::Address)),
        (&[("x-forwarded-method", ""), ("x-forwarded-for", "")], Some(MissingPart::Address)),
    ] {
        assert_eq!(described(changes).unwrap().missing, expected, "{changes:?}");
    }
}

#[test]
fn descriptions_without_a_uri_or_with_contradictions_are_refused() {
    for (changes, expected) in [
        (&[("x-forwarded-method", "G T")][..], "not a method"),
        (&[("x-forwarded-method", "GET\nGET")], "`x-forwarded-method` occurs more than once"),
        (&[("x-original-method", "POST")], "`x-forwarded-method` and `x-original-method` contradict"),
        (&[("x-forwarded-uri", "")], "no URI is named"),
        (&[("x-forwarded-uri", "/a b")], "`x-forwarded-uri` is not a URI"),
        (&[("x-forwarded-uri", "/x\n/y")], "`x-forwarded-uri` occurs more than once"),
        (&[("x-original-uri", "/y")], "`x-forwarded-uri` and `x-original-uri` contradict"),
        (&[("x-original-url", "http://a/x?y")], "`x-forwarded-uri` and `x-original-url` contradict"),
        // A client must not choose the host of its request.
        (
            &[("x-original-uri", "/x"), ("x-forwarded-uri", "http://other/x"), ("x-forwarded-host", "shop")],
            "`x-forwarded-uri` and `x-forwarded-host` contradict",
        ),
        (
            &[("x-original-uri", "/x"), ("x-forwarded-uri", "http://other/x"), ("host", "shop")],
            "`x-forwarded-uri` and `x-original-uri` contradict",
        ),
        (
            &[("x-original-url", "http://shop/x"), ("x-forwarded-uri", "http://other/x")],
            "`x-forwarded-uri` and `x-original-url` contradict",
        ),
        (&[("x-forwarded-for", "203.0.113.9, unknown")], "does not end with the client's address"),
        (&[("x-forwarded-host", "a\nb")], "`x-forwarded-host` occurs more than once"),
    ] {
        let error = described(changes).unwrap_err().to_string();
        assert!(error.contains(expected), "{changes:?}: {error}");
    }
}

#[test]
fn the_address_may_be_that_of_x_real_ip() {
    let options =
        ForwardAuthOptions { client_address: ProxyAddressHeader::XRealIp, ..ForwardAuthOptions::default() };
    let with = |address: &'static str| {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-original-method", "GET"),
            ("x-original-uri", "/"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-real-ip", address),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        original(&options, headers)
    };
    assert_eq!(with("203.0.113.9").unwrap().peer.to_string(), "203.0.113.9");
    assert!(with("203.0.113.9, 1.2.3.4").unwrap_err().to_string().contains("`x-real-ip` has no address"));
}

#[test]
fn loopback_is_trusted_by_default_and_statuses_are_validated() {
    let options = ForwardAuthOptions::default();
    for (peer, expected) in [
        ("127.0.0.1", true),
        ("::1", true),
        ("::ffff:127.0.0.9", true),
        ("10.0.0.1", false),
        ("0.0.0.0", false),
    ] {
        assert_eq!(options.trusts(peer.parse().unwrap()), expected, "{peer}");
    }
    let read = |text: &str| Document::parse("a.yaml", text).unwrap().decode::<ForwardAuthOptions>();
    let options = read("{ trusted: [10.0.0.0/8], client_address: x-real-ip, deny_status: 403 }").unwrap();
    assert_eq!(options.deny_status, DenyStatus::Forbidden);
    assert!(!options.trusts("127.0.0.1".parse().unwrap()));
    for status in [200, 204, 302, 404, 500] {
        let error = DenyStatus::try_from(status).unwrap_err().to_string();
        assert!(error.contains("write 429, 403, 401 or 503"), "{error}");
    }
}

const IDENTITY: &str =
    "{ api_key: [{ header: X-Api-Key }, bearer], user: { cookie: session }, tenant: { query: t },
    ids: { a: { trusted_header: X-A } }, tier: { header: X-Tier }, client_ip: { trusted: [10.0.0.0/8] } }";
const NAMES: [&str; 12] = [
    "x-api-key",
    "authorization",
    "cookie",
    "x-a",
    "x-tier",
    "x-forwarded-for",
    "x-original-uri",
    "x-original-url",
    "x-original-method",
    "x-forwarded-host",
    "x-real-ip",
    "host",
];
const VALUES: [&str; 12] = [
    "sk_1",
    "Bearer sk_2",
    "session=ann",
    "10.0.0.7",
    "203.0.113.7, 10.0.0.8",
    "/other",
    "http://shop.example/other?t=1",
    "POST",
    "shop.example:80",
    "[::1]",
    "",
    "\u{e9}",
];
const URIS: [&str; 10] = [
    "/v1/orders",
    "/a/../b?t=acme",
    "/%6cogin;x?t=1&t=2",
    "/a%2fb",
    "/%00",
    "http://Shop.Example/x",
    "*",
    "/..",
    "//x",
    "/caf\u{e9}",
];

/// How often each case occurred, so that the target cannot pass without covering them.
#[derive(Debug, Default)]
struct AuthCoverage {
    same: AtomicU64,
    refused: AtomicU64,
    arbitrary: AtomicU64,
}

/// A proxy that writes the headers of its kind, over those of its client, and removes those of the other kinds: the identities, the
/// path and the host of the original request are those that a server in its place would find. Only a client that names two hosts is
/// refused. Arbitrary bytes never panic.
#[test]
fn fuzz_forward_auth() {
    let options: IdentityOptions = Document::parse("identity.yaml", IDENTITY).unwrap().decode().unwrap();
    let identities = IdentityExtractor::open(&options, Path::new("")).unwrap();
    let coverage = AuthCoverage::default();
    let input = bolero::check!().with_iterations(20_000).with_max_len(256).with_type::<Vec<u8>>();
    let coverage = &coverage;
    let identities = std::panic::AssertUnwindSafe(&identities);
    input.for_each(|choices| {
        let mut choices_left = choices.iter().copied();
        let mut pick = |most: usize| usize::from(choices_left.next().unwrap_or(0)) % most;
        let mut sent = HeaderMap::new();
        for _ in 0..pick(6) {
            let name = HeaderName::from_static(NAMES[pick(NAMES.len())]);
            let value = HeaderValue::from_bytes(VALUES[pick(VALUES.len())].as_bytes()).unwrap();
            sent.append(name, value);
        }
        sent.entry("host").or_insert(HeaderValue::from_static("shop.example"));
        let method = [Method::GET, Method::POST, Method::OPTIONS][pick(3)].clone();
        let uri = URIS[pick(URIS.len())];
        let peer: IpAddr = ["203.0.113.9", "10.0.0.1", "2001:db8::1"][pick(3)].parse().unwrap();
        let is_nginx = pick(2) == 0;

        let mut headers = sent.clone();
        for name in ["x-original-uri", "x-original-url", "x-original-method", "x-forwarded-uri"] {
            headers.remove(name);
        }
        let kind = if is_nginx {
            ["x-original-method", "x-original-uri"]
        } else {
            ["x-forwarded-method", "x-forwarded-uri"]
        };
        headers.insert(kind[0], HeaderValue::from_str(method.as_str()).unwrap());
        headers.insert(kind[1], HeaderValue::from_bytes(uri.as_bytes()).unwrap());
        headers.append("x-forwarded-for", HeaderValue::try_from(peer.to_string()).unwrap());
        match headers.remove("host") {
            Some(host) => drop(headers.insert("x-forwarded-host", host)),
            None => drop(headers.remove("x-forwarded-host")),
        }
        headers.insert("host", HeaderValue::from_static("127.0.0.1:8080"));
        // One that the proxy cannot describe, because it has several `Host` lines or is no URI.
        let is_clear = sent.get_all("host").iter().count() == 1 && !sent["host"].is_empty();
        let direct = Uri::try_from(uri.as_bytes()).ok().filter(|_| is_clear).map(|uri| {
            let mut request = Request::new(());
            (*request.method_mut(), *request.uri_mut()) = (method.clone(), uri);
            *request.headers_mut() = sent.clone();
            seen(&identities, request, peer)
        });
        let restored = original(&ForwardAuthOptions::default(), headers.clone());
        let named = Uri::try_from(uri.as_bytes()).ok().and_then(|uri| uri.authority().cloned());
        let host = Authority::try_from(headers["x-forwarded-host"].as_bytes()).ok();
        let contradicts = named
            .is_some_and(|named| host.is_none_or(|host| !host.host().eq_ignore_ascii_case(named.host())));
        if direct.is_some() && contradicts {
            assert!(restored.unwrap_err().to_string().contains("contradict"), "{sent:?} {uri}");
            coverage.refused.fetch_add(1, Ordering::Relaxed);
        } else if let Some(direct) = direct {
            let OriginalRequest { request, peer, missing } = restored.unwrap();
            assert_eq!(missing, None);
            let restored = seen(&identities, request, peer);
            assert_eq!(restored, direct, "{sent:?} {uri} as {headers:?}");
            coverage.same.fetch_add(u64::from(direct.is_ok()), Ordering::Relaxed);
            coverage.refused.fetch_add(u64::from(direct.is_err()), Ordering::Relaxed);
        }
        arbitrary(choices, coverage);
    });
    println!("{coverage:?}");
    let counts = [&coverage.same, &coverage.refused, &coverage.arbitrary];
    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) > 100), "{coverage:?}");
}

/// The limiter's request, or the message of the refusal.
fn seen(identities: &IdentityExtractor, mut request: Request<()>, peer: IpAddr) -> Result<String, String> {
    let mut find = || {
        path::canonicalize(&mut request)?;
        host::align_host_header(&mut request);
        let domain = host::of_request(request.uri(), request.headers())?;
        let caller = identities.caller(request.uri(), request.headers(), Some(peer), UnixTime::default())?;
        let domain = domain.as_deref();
        Ok(caller.with_request(request.method(), domain, request.uri().path(), |found| format!("{found:?}")))
    };
    find().map_err(|error: HttpError| error.to_string())
}

/// Headers of any bytes are restored or refused.
fn arbitrary(bytes: &[u8], coverage: &AuthCoverage) {
    const DESCRIBING: [&str; 7] = [
        "x-forwarded-method",
        "x-forwarded-uri",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-original-uri",
        "x-original-url",
        "x-original-method",
    ];
    let mut headers = HeaderMap::new();
    for line in bytes.chunks(12) {
        let (name, value) = (DESCRIBING[usize::from(line[0]) % DESCRIBING.len()], &line[1..]);
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append(name, value);
        }
    }
    let _ = original(&ForwardAuthOptions::default(), headers);
    coverage.arbitrary.fetch_add(1, Ordering::Relaxed);
}
