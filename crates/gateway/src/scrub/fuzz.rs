//! Fuzz target of the scrubber, with arbitrary headers.
//!
//! Each input is a list of choices from which the headers of a request are built: names that Tollgate writes or reads,
//! the same with other punctuation, others, and `Connection` lines that name any of them. They pass the scrubber, the
//! limits (which write a flag) and the writer of forwarding headers. The laws:
//! - No value of an untrusted peer arrives under a name for forwarding, for trusted peers only, or of a flag, in any
//!   punctuation. The headers that Tollgate writes arrive, whatever `Connection` names.
//! - No header differs from a reserved one in punctuation only, even if a trusted peer sent it.
//! - Headers from which identities are read reach the server, even if `Connection` names them.
//!
//! `BOLERO_RANDOM_ITERATIONS=1000000 cargo test -p tollgate-gateway scrub::fuzz` runs longer.

use super::*;
use crate::settings::ForwardedHeaders;
use bytes::Bytes;
use http::Response;
use http::uri::Scheme;
use http_body_util::Full;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::panic::RefUnwindSafe;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use tokio::runtime::{Builder, Runtime};
use tollgate_core::document::Document;
use tollgate_core::rules::load;
use tollgate_http::{IdentityExtractor, IdentityOptions, RateLimitLayer};
use tollgate_limiter::{Clock, Limiter, ManualClock, MemoryStore};
use tower::{Layer, Service};

const RULES: &str =
    "rules: [{ id: told, key: ip, limit: 1/hour, on_exceed: { flag: { header: X-Captcha } } }]";
const IDENTITY: &str =
    "{ api_key: { header: X-Api-Key }, user: { trusted_header: X-User }, tenant: { header: X_Tenant },
    tier: { header: X-Tier }, cost: { header: X-Cost }, client_ip: { trusted: [10.0.0.0/8] } }";
const UNTRUSTED: &str = "203.0.113.9";
const TRUSTED: &str = "10.0.0.1";
/// The value of every header that a client sends.
const SENT_VALUE: &str = "said";

/// An untrusted peer must not set these, in any punctuation.
const PROTECTED: [&str; 8] = [
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "forwarded",
    "x-captcha",
    "x-user",
    "x-tier",
    "x-cost",
];
/// Any client may set these, in this punctuation only.
const READABLE: [&str; 6] =
    ["x-api-key", "x_tenant", "content-length", "transfer-encoding", "keep-alive", "host"];
const OTHERS: [&str; 8] =
    ["x-public", "x_public", "accept", "user_id", "x-forwarded-port", "x-forwarded", "te", "via"];

/// How often each case occurred, so that the target cannot pass without covering them.
#[derive(Debug, Default)]
struct ScrubCoverage {
    passed: AtomicU64,
    refused: AtomicU64,
    lookalikes: AtomicU64,
    named: AtomicU64,
}

#[test]
fn no_client_header_passes_as_a_reserved_one() {
    let (path, coverage) = (ScrubbedPath::new(), ScrubCoverage::default());
    let input = bolero::check!().with_iterations(3_000).with_max_len(128).with_type::<Vec<u8>>();
    input.for_each(|choices| {
        let sent = headers(choices);
        for peer in [UNTRUSTED, TRUSTED] {
            let Some(seen) = path.forwarded(sent.clone(), peer) else {
                coverage.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            coverage.passed.fetch_add(1, Ordering::Relaxed);
            check(&sent, &seen, peer);
        }
        let is_lookalike =
            |name: &HeaderName| !reserved().any(|own| own == name.as_str()) && is_reserved(name);
        coverage.lookalikes.fetch_add(u64::from(sent.keys().any(is_lookalike)), Ordering::Relaxed);
        coverage.named.fetch_add(u64::from(sent.contains_key("connection")), Ordering::Relaxed);
    });
    println!("{coverage:?}");
    let counts = [&coverage.passed, &coverage.refused, &coverage.lookalikes, &coverage.named];
    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) > 100), "{coverage:?}");
}

fn check(sent: &HeaderMap, seen: &HeaderMap, peer: &str) {
    for (name, value) in seen {
        if is_reserved(name) {
            assert!(
                reserved().any(|own| own == name.as_str()) || name == "x-forwarded-port",
                "{name} of {sent:?}"
            );
        }
        if peer == UNTRUSTED
            && (PROTECTED.contains(&name.as_str()) || name.as_str().starts_with("x-forwarded-"))
        {
            assert_ne!(value, SENT_VALUE, "{name} of {sent:?}");
        }
    }
    assert_eq!(seen["x-captcha"], "told", "{sent:?}");
    assert_eq!(seen.get_all("x-captcha").iter().count(), 1, "{sent:?}");
    let addresses: Vec<_> = seen.get_all("x-forwarded-for").iter().collect();
    let [addresses] = &addresses[..] else { panic!("{addresses:?} of {sent:?}") };
    let addresses: Vec<_> = addresses.to_str().unwrap().split(", ").collect();
    assert_eq!(addresses.last(), Some(&peer), "{sent:?}");
    assert!(peer != UNTRUSTED || addresses.len() == 1, "{sent:?}");
    for name in ["x-forwarded-proto", "x-forwarded-host", "forwarded"] {
        assert!(seen.contains_key(name), "{name} of {sent:?}");
    }
    let kept: &[&str] = if peer == UNTRUSTED { &[] } else { &["x-user", "x-tier"] };
    for name in ["x-api-key", "x_tenant"].iter().chain(kept) {
        assert_eq!(seen.get(*name), sent.get(*name), "{name} of {sent:?}");
    }
    assert!(!seen.contains_key("connection") && !seen.contains_key("keep-alive"), "{sent:?}");
}

fn reserved() -> impl Iterator<Item = &'static str> {
    PROTECTED.into_iter().chain(READABLE)
}

/// Whether a name equals a reserved one if all punctuation is the same.
fn is_reserved(name: &HeaderName) -> bool {
    let folded = |text: &str| text.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    let name = folded(name.as_str());
    name.starts_with("x-forwarded-") || reserved().any(|own| folded(own) == name)
}

/// The headers that `choices` encode.
fn headers(choices: &[u8]) -> HeaderMap {
    let mut choices = choices.iter().copied();
    let mut headers = HeaderMap::new();
    while let Some(choice) = choices.next() {
        let mut pick = |most: usize| usize::from(choices.next().unwrap_or(0)) % most;
        if choice % 4 > 0 {
            let name = HeaderName::try_from(name(&mut pick)).unwrap();
            // A second line of a header for identities is refused. It must be rare, or all requests would be refused.
            if !headers.contains_key(&name) || pick(16) == 0 {
                headers.append(name, HeaderValue::from_static(SENT_VALUE));
            }
            continue;
        }
        let names: Vec<String> = (0..1 + pick(4))
            .map(|_| match pick(6) {
                0 => ["", "close", "keep-alive", "upgrade", "\t", "\""][pick(6)].to_owned(),
                1 => format!(" {}\t", name(&mut pick).to_ascii_uppercase()),
                _ => name(&mut pick),
            })
            .collect();
        headers.append("connection", HeaderValue::try_from(names.join(",")).unwrap());
    }
    headers
}

/// A header name, sometimes with other punctuation.
fn name(pick: &mut impl FnMut(usize) -> usize) -> String {
    let names: Vec<&str> = reserved().chain(OTHERS).collect();
    let name = names[pick(names.len())];
    if pick(2) == 0 {
        return name.to_owned();
    }
    let mark = |letter: char| match letter {
        '-' | '_' => char::from(b"-_.~|^'"[pick(7)]),
        other => other,
    };
    name.chars().map(mark).collect()
}

/// The path of a request from the connection to the server.
struct ScrubbedPath {
    limits: RateLimitLayer,
    reserved: Arc<ReservedHeaders>,
    runtime: Runtime,
}

/// A panic ends the test, so nothing is observed after it.
impl RefUnwindSafe for ScrubbedPath {}

impl ScrubbedPath {
    fn new() -> Self {
        let limiter = Limiter::new(MemoryStore::new(1 << 20), Clock::Manual(ManualClock::new(1_000_000)));
        let loaded = load("rules.yaml", RULES).unwrap();
        limiter.install(loaded.rules, loaded.lists).unwrap();
        let options: IdentityOptions = Document::parse("identity.yaml", IDENTITY).unwrap().decode().unwrap();
        let identities = IdentityExtractor::open(&options, Path::new("")).unwrap();
        let limits = RateLimitLayer::new(Arc::new(limiter)).identities(identities);
        let reserved = Arc::new(limits.reserved_names());
        let path = Self { limits, reserved, runtime: Builder::new_current_thread().build().unwrap() };
        // From the second request on both are over the limit.
        for peer in [UNTRUSTED, TRUSTED] {
            assert!(path.forwarded(HeaderMap::new(), peer).is_some());
        }
        path
    }

    /// The headers that a server gets of a request with `headers`; none if it is refused.
    fn forwarded(&self, headers: HeaderMap, peer: &str) -> Option<HeaderMap> {
        let address = SocketAddr::new(peer.parse().unwrap(), 1);
        let origin = ClientOrigin::new(address, &Scheme::HTTP, &["10.0.0.0/8".parse().unwrap()]);
        let mut request = Request::new(());
        *request.headers_mut() = headers;
        Scrubber::new(&self.reserved, LookalikeHeaders::Drop, &origin).scrub(&mut request);
        let seen = Arc::new(Mutex::new(None));
        let server = RecordingServer { origin, seen: Arc::clone(&seen) };
        let mut service = self.limits.for_peer(address).layer(server);
        let Ok(_) = self.runtime.block_on(service.call(request));
        seen.lock().take()
    }
}

/// Keeps the headers of the request it gets.
#[derive(Clone)]
struct RecordingServer {
    origin: ClientOrigin,
    seen: Arc<Mutex<Option<HeaderMap>>>,
}

impl Service<Request<()>> for RecordingServer {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<()>) -> Self::Future {
        let settings = ForwardedHeaders { forwarded: true, ..ForwardedHeaders::default() };
        self.origin.write(request.headers_mut(), &HeaderValue::from_static("test"), settings);
        *self.seen.lock() = Some(std::mem::take(request.headers_mut()));
        ready(Ok(Response::new(Full::new(Bytes::new()))))
    }
}
