//! A service behind the layer, in the same process.

use crate::decisions::START_US;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt, Full};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use tollgate_core::document::Document;
use tollgate_core::rules::load;
use tollgate_http::layer::RateLimit;
use tollgate_http::{IdentityExtractor, IdentityOptions, RateLimitLayer};
use tollgate_limiter::{Clock, Limiter, ManualClock, MemoryStore};
use tower::{Layer, ServiceExt, service_fn};

/// A limiter, a layer, and a service that responds with the target and the host of its request.
pub struct LimitedService {
    pub clock: ManualClock,
    pub layer: RateLimitLayer,
}

/// A request to send.
#[derive(Clone, Debug)]
pub struct TestRequest {
    pub peer: IpAddr,
    pub method: &'static str,
    pub uri: String,
    pub headers: Vec<(&'static str, String)>,
}

pub struct TestResponse {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

pub fn limiter(rules: &str, clock: Clock) -> Arc<Limiter> {
    let limiter = Limiter::new(MemoryStore::new(1 << 24), clock);
    let loaded = load("test.yaml", rules).unwrap_or_else(|report| panic!("{report}"));
    limiter.install(loaded.rules, loaded.lists).unwrap();
    Arc::new(limiter)
}

/// The options in `yaml`, decoded as the settings are.
pub fn options(yaml: &str) -> IdentityOptions {
    let mut document = Document::parse("identity.yaml", yaml).unwrap_or_else(|report| panic!("{report}"));
    let options = document.decode();
    let report = document.into_report();
    assert_eq!(report.errors(), 0, "{report}");
    options.unwrap()
}

pub fn get(peer: &str, uri: &str) -> TestRequest {
    TestRequest { peer: peer.parse().unwrap(), method: "GET", uri: uri.to_owned(), headers: Vec::new() }
}

impl TestRequest {
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub fn by(self, method: &'static str) -> Self {
        Self { method, ..self }
    }

    pub fn request(&self) -> Request<Full<Bytes>> {
        let mut request = Request::builder().method(self.method).uri(&self.uri);
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        request.body(Full::default()).unwrap()
    }
}

impl LimitedService {
    pub fn new(rules: &str, identity: &str) -> Self {
        Self::in_folder(rules, identity, Path::new(""))
    }

    /// Files that `identity` names are in `folder`.
    pub fn in_folder(rules: &str, identity: &str, folder: &Path) -> Self {
        let clock = ManualClock::new(START_US);
        let limiter = limiter(rules, Clock::Manual(clock.clone()));
        let options = if identity.is_empty() { IdentityOptions::default() } else { options(identity) };
        let identities = IdentityExtractor::open(&options, folder).unwrap_or_else(|error| panic!("{error}"));
        Self { clock, layer: RateLimitLayer::new(limiter).identities(identities) }
    }

    pub async fn send(&self, ask: TestRequest) -> TestResponse {
        let service = self.service(ask.peer);
        let response = service.oneshot(ask.request()).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        TestResponse {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    /// A new service for each request: the counts are in the limiter.
    fn service(
        &self,
        peer: IpAddr,
    ) -> RateLimit<
        impl tower::Service<
            Request<Full<Bytes>>,
            Response = Response<Full<Bytes>>,
            Error = Infallible,
            Future: Send,
        > + Clone,
    > {
        let echo = service_fn(|request: Request<Full<Bytes>>| async move {
            // As a forwarder sends it: without the host.
            let target =
                request.uri().path_and_query().cloned().map_or_else(Uri::default, Uri::from).to_string();
            let host = request.headers().get("host").cloned().unwrap_or(HeaderValue::from_static(""));
            let mut response = Response::new(Full::from(target));
            response.headers_mut().insert("x-host", host);
            Ok(response)
        });
        self.layer.for_peer(SocketAddr::new(peer, 1234)).layer(echo)
    }
}
