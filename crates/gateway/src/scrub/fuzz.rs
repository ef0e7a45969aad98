//! Scrubbing, against clients that write whatever they like.
//!
//! Each input is a list of choices from which the headers of a request are put together: names that Tollgate writes or
//! reads, the same with other punctuation, others, and `Connection` lines that name any of them. They go the way of a
//! request: through the scrubber, the limits (which write a flag) and what is written about the client. The laws, by
//! lists of their own:
//! - What a stranger wrote stands under no name that says where a request came from, counts from trusted peers only, or
//!   is a flag's, in whatever punctuation. What Tollgate wrote is there, whatever `Connection` names.
//! - No header differs from a reserved one in punctuation only, also if a trusted peer sent it.
//! - What is read of a client reaches the server: naming it in `Connection` does not remove it.
//!
//! `BOLERO_RANDOM_ITERATIONS=1000000 cargo test -p tollgate-gateway scrub::fuzz` runs longer.

use super::*;
use crate::settings::Forwarded;
use bytes::Bytes;
use http::Response;
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
const STRANGER: &str = "203.0.113.9";
const TRUSTED: &str = "10.0.0.1";
/// What clients write everywhere.
const SAID: &str = "said";

/// Not a stranger's to write, in any punctuation.
const OURS: [&str; 8] = [
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "forwarded",
    "x-captcha",
    "x-user",
    "x-tier",
    "x-cost",
];
/// For everybody to write, in this punctuation only.
const READ: [&str; 6] =
    ["x-api-key", "x_tenant", "content-length", "transfer-encoding", "keep-alive", "host"];
const OTHERS: [&str; 8] =
    ["x-public", "x_public", "accept", "user_id", "x-forwarded-port", "x-forwarded", "te", "via"];

/// How often what was met, so that the target cannot pass by meeting nothing.
#[derive(Debug, Default)]
struct Met {
    passed: AtomicU64,
    refused: AtomicU64,
    doubles: AtomicU64,
    named: AtomicU64,
}

#[test]
fn nothing_that_a_client_writes_passes_for_ours() {
    let (way, met) = (Way::new(), Met::default());
    let input = bolero::check!().with_iterations(3_000).with_max_len(128).with_type::<Vec<u8>>();
    input.for_each(|choices| {
        let asked = headers(choices);
        for peer in [STRANGER, TRUSTED] {
            let Some(seen) = way.passed_on(asked.clone(), peer) else {
                met.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            met.passed.fetch_add(1, Ordering::Relaxed);
            check(&asked, &seen, peer);
        }
        let is_double = |name: &HeaderName| !reserved().any(|own| own == name.as_str()) && is_reserved(name);
        met.doubles.fetch_add(u64::from(asked.keys().any(is_double)), Ordering::Relaxed);
        met.named.fetch_add(u64::from(asked.contains_key("connection")), Ordering::Relaxed);
    });
    println!("{met:?}");
    let counts = [&met.passed, &met.refused, &met.doubles, &met.named];
    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) > 100), "{met:?}");
}

fn check(asked: &HeaderMap, seen: &HeaderMap, peer: &str) {
    for (name, value) in seen {
        if is_reserved(name) {
            assert!(
                reserved().any(|own| own == name.as_str()) || name == "x-forwarded-port",
                "{name} of {asked:?}"
            );
        }
        if peer == STRANGER && (OURS.contains(&name.as_str()) || name.as_str().starts_with("x-forwarded-")) {
            assert_ne!(value, SAID, "{name} of {asked:?}");
        }
    }
    assert_eq!(seen["x-captcha"], "told", "{asked:?}");
    assert_eq!(seen.get_all("x-captcha").iter().count(), 1, "{asked:?}");
    let addresses: Vec<_> = seen.get_all("x-forwarded-for").iter().collect();
    let [addresses] = &addresses[..] else { panic!("{addresses:?} of {asked:?}") };
    let addresses: Vec<_> = addresses.to_str().unwrap().split(", ").collect();
    assert_eq!(addresses.last(), Some(&peer), "{asked:?}");
    assert!(peer != STRANGER || addresses.len() == 1, "{asked:?}");
    for name in ["x-forwarded-proto", "x-forwarded-host", "forwarded"] {
        assert!(seen.contains_key(name), "{name} of {asked:?}");
    }
    let kept: &[&str] = if peer == STRANGER { &[] } else { &["x-user", "x-tier"] };
    for name in ["x-api-key", "x_tenant"].iter().chain(kept) {
        assert_eq!(seen.get(*name), asked.get(*name), "{name} of {asked:?}");
    }
    assert!(!seen.contains_key("connection") && !seen.contains_key("keep-alive"), "{asked:?}");
}

fn reserved() -> impl Iterator<Item = &'static str> {
    OURS.into_iter().chain(READ)
}

/// Whether a name is a reserved one when all punctuation is read as the same.
fn is_reserved(name: &HeaderName) -> bool {
    let folded = |text: &str| text.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-");
    let name = folded(name.as_str());
    name.starts_with("x-forwarded-") || reserved().any(|own| folded(own) == name)
}

/// The headers that `choices` stand for.
fn headers(choices: &[u8]) -> HeaderMap {
    let mut choices = choices.iter().copied();
    let mut headers = HeaderMap::new();
    while let Some(choice) = choices.next() {
        let mut pick = |most: usize| usize::from(choices.next().unwrap_or(0)) % most;
        if choice % 4 > 0 {
            let name = HeaderName::try_from(name(&mut pick)).unwrap();
            // A second line of what is read is refused; that would be all that is met.
            if !headers.contains_key(&name) || pick(16) == 0 {
                headers.append(name, HeaderValue::from_static(SAID));
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

/// A name of any kind, some with other punctuation.
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

/// The way of a request, from the connection to where it is sent.
struct Way {
    limits: RateLimitLayer,
    reserved: Arc<ReservedHeaders>,
    runtime: Runtime,
}

/// A panic ends the test: nothing is looked at after it.
impl RefUnwindSafe for Way {}

impl Way {
    fn new() -> Self {
        let limiter = Limiter::new(MemoryStore::new(1 << 20), Clock::Manual(ManualClock::new(1_000_000)));
        let loaded = load("rules.yaml", RULES).unwrap();
        limiter.install(loaded.rules, loaded.lists);
        let options: IdentityOptions = Document::parse("identity.yaml", IDENTITY).unwrap().decode().unwrap();
        let identities = IdentityExtractor::open(&options, Path::new("")).unwrap();
        let limits = RateLimitLayer::new(Arc::new(limiter)).identities(identities);
        let reserved = Arc::new(limits.reserved_names());
        let way = Self { limits, reserved, runtime: Builder::new_current_thread().build().unwrap() };
        // From the second request on both are over the limit.
        for peer in [STRANGER, TRUSTED] {
            assert!(way.passed_on(HeaderMap::new(), peer).is_some());
        }
        way
    }

    /// What a server sees of a request with these headers; none if it is refused.
    fn passed_on(&self, headers: HeaderMap, peer: &str) -> Option<HeaderMap> {
        let address = SocketAddr::new(peer.parse().unwrap(), 1);
        let origin = Origin::new(address, false, &["10.0.0.0/8".parse().unwrap()]);
        let mut request = Request::new(());
        *request.headers_mut() = headers;
        Scrubber::new(&self.reserved, Doubles::Drop, &origin).scrub(&mut request);
        let seen = Arc::new(Mutex::new(None));
        let server = Server { origin, seen: Arc::clone(&seen) };
        let mut service = self.limits.for_peer(address).layer(server);
        let Ok(_) = self.runtime.block_on(service.call(request));
        seen.lock().take()
    }
}

/// Keeps what a request has become.
#[derive(Clone)]
struct Server {
    origin: Origin,
    seen: Arc<Mutex<Option<HeaderMap>>>,
}

impl Service<Request<()>> for Server {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<()>) -> Self::Future {
        let settings = Forwarded { forwarded: true, ..Forwarded::default() };
        self.origin.write(request.headers_mut(), &HeaderValue::from_static("test"), settings);
        *self.seen.lock() = Some(std::mem::take(request.headers_mut()));
        ready(Ok(Response::new(Full::new(Bytes::new()))))
    }
}
