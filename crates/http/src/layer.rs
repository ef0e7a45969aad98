//! The tower layer: a limiter in front of any HTTP service, in the same process.
//!
//! It works with axum, hyper, tonic and everything else that takes tower layers. For each request it
//!
//! 1. replaces the path with its canonical form;
//! 2. extracts the identities ([`crate::identity`]);
//! 3. asks the [`Limiter`];
//! 4. calls the inner service and adds the headers of the decision to its response, or responds itself: 429, 403, 503 or 400, and
//!    to gRPC calls with the corresponding gRPC statuses.
//!
//! With the embedded store all of this happens in [`call`](tower_service::Service::call), without waiting and without an
//! allocation; a request may have to wait only for a shared store, or where a rule queues it (`on_exceed`). The permit of a request
//! in flight is released when the response has ended, or is dropped because the client has gone; work that outlives both holds a
//! [`SharedPermit`].

mod body;
mod decision_summary;
mod future;
mod layer_core;
mod shared_permit;

use crate::error::HttpError;
use crate::headers::HeaderOptions;
use crate::identity::IdentityExtractor;
use crate::reserved_headers::ReservedHeaders;
pub use body::{ResponseBody, ResponseSource};
use bytes::Bytes;
pub use decision_summary::DecisionSummary;
pub use future::ResponseFuture;
use http::{Extensions, Request, Response};
use layer_core::{DecisionSummaries, LayerCore, LayerOutcome};
pub use shared_permit::SharedPermit;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use tollgate_limiter::{Check, Decision, Door, Limiter};
use tower_layer::Layer;
use tower_service::Service;

/// The address of the peer, as an extension of the request. [`RateLimitLayer`] reads it by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

/// Finds the address of the peer in the extensions of a request.
pub type PeerFrom = fn(&Extensions) -> Option<SocketAddr>;

/// Puts a limiter in front of services.
///
/// ```
/// use std::sync::Arc;
/// use tollgate_http::RateLimitLayer;
/// use tollgate_limiter::{Clock, Limiter, MemoryStore};
///
/// let limiter = Arc::new(Limiter::new(MemoryStore::new(64 << 20), Clock::system()));
/// let loaded = tollgate_core::rules::load("rules.yaml", "rules: [{ id: api, limit: 100/min }]").unwrap();
/// limiter.install(loaded.rules, loaded.lists).unwrap();
/// let layer = RateLimitLayer::new(limiter);
/// ```
#[derive(Clone, Debug)]
pub struct RateLimitLayer {
    core: Arc<LayerCore>,
    peer: Option<SocketAddr>,
}

impl RateLimitLayer {
    /// A layer with the default identities (`X-Api-Key`, else the bearer token, else the address) and headers.
    pub fn new(limiter: Arc<Limiter>) -> Self {
        let core = LayerCore {
            limiter,
            identities: Arc::new(IdentityExtractor::default()),
            headers: HeaderOptions::default(),
            peer_from: |extensions| extensions.get::<PeerAddr>().map(|peer| peer.0),
            door: Door::Layer,
            summaries: DecisionSummaries::Omitted,
        };
        Self { core: Arc::new(core), peer: None }
    }

    /// With these identities.
    #[must_use]
    pub fn identities(self, identities: impl Into<Arc<IdentityExtractor>>) -> Self {
        let identities = identities.into();
        self.with(|core| LayerCore { identities, ..core })
    }

    /// With these headers.
    #[must_use]
    pub fn headers(self, headers: HeaderOptions) -> Self {
        self.with(|core| LayerCore { headers, ..core })
    }

    /// Counts its decisions under another door than the tower layer, for programs that are built on it.
    #[must_use]
    pub fn door(self, door: Door) -> Self {
        self.with(|core| LayerCore { door, ..core })
    }

    /// The identities.
    pub fn identity_extractor(&self) -> &Arc<IdentityExtractor> {
        &self.core.identities
    }

    /// With another way to find the peer's address. With axum it is
    /// `|extensions| extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0)`, with tonic
    /// `|extensions| extensions.get::<TcpConnectInfo>()?.remote_addr()`. The default is the extension [`PeerAddr`].
    #[must_use]
    pub fn peer_from(self, peer_from: PeerFrom) -> Self {
        self.with(|core| LayerCore { peer_from, ..core })
    }

    /// The layer for one connection with a known peer, for accept loops of one's own.
    #[must_use]
    pub fn for_peer(&self, peer: SocketAddr) -> Self {
        Self { core: Arc::clone(&self.core), peer: Some(peer) }
    }

    /// The headers of its decisions.
    pub fn header_options(&self) -> &HeaderOptions {
        &self.core.headers
    }

    /// Refuses `request` if it is over a limit now, without charging anything. None says nothing: the request has to be sent through
    /// the service. Its path is replaced with the canonical form.
    pub fn refuse(&self, request: &mut Request<()>) -> Option<Decision> {
        let peer = self.peer.or_else(|| (self.core.peer_from)(request.extensions()));
        self.core.refuse(request, peer)
    }

    /// Decides about `request` from `peer` for a door that neither lets it wait nor sees it end. Its path is replaced with the
    /// canonical form.
    pub fn check(&self, request: &mut Request<()>, peer: IpAddr) -> Result<Check<'_>, HttpError> {
        self.core.check(request, peer)
    }

    /// Adds a [`DecisionSummary`] to the extensions of each response that follows from a decision.
    #[must_use]
    pub fn with_summaries(self) -> Self {
        self.with(|core| LayerCore { summaries: DecisionSummaries::Added, ..core })
    }

    /// The summary of a decision that [`RateLimitLayer::refuse`] has made about `request`.
    pub fn summarize(&self, request: &mut Request<()>, decision: Decision) -> DecisionSummary {
        let peer = self.peer.or_else(|| (self.core.peer_from)(request.extensions()));
        self.core.summarize(request, peer, &decision.into())
    }

    /// The headers that this layer reads, or writes for the service behind it.
    pub fn reserved_names(&self) -> ReservedHeaders {
        ReservedHeaders::new(Arc::clone(&self.core.limiter), &self.core.identities)
    }

    fn with(self, change: impl FnOnce(LayerCore) -> LayerCore) -> Self {
        Self { core: Arc::new(change(LayerCore::clone(&self.core))), ..self }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit { core: Arc::clone(&self.core), peer: self.peer, inner }
    }
}

/// A service behind a limiter. See [`RateLimitLayer`].
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    core: Arc<LayerCore>,
    peer: Option<SocketAddr>,
    inner: S,
}

impl<S> RateLimit<S> {
    fn peer_of<A>(&self, request: &Request<A>) -> Option<SocketAddr> {
        self.peer.or_else(|| (self.core.peer_from)(request.extensions()))
    }
}

impl<S, A, B> Service<Request<A>> for RateLimit<S>
where
    S: Service<Request<A>, Response = Response<B>> + Clone,
    A: Send + 'static,
    B: http_body::Body<Data = Bytes>,
{
    type Response = Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, A>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<A>) -> Self::Future {
        let peer = self.peer_of(&request);
        let may_wait = self.core.limiter.may_wait();
        match if may_wait { None } else { self.core.admit(&mut request, peer) } {
            Some(LayerOutcome::Admitted(admitted)) => {
                ResponseFuture::admitted(self.inner.call(request), admitted, self.core.headers)
            }
            Some(LayerOutcome::Answered(response, cause)) => ResponseFuture::answered(response, cause),
            None => {
                // `poll_ready` was called on this one, so it has to be called, not its clone.
                let next = self.inner.clone();
                let inner = std::mem::replace(&mut self.inner, next);
                let deciding = layer_core::admit_waiting(Arc::clone(&self.core), request, peer);
                ResponseFuture::deciding(Box::pin(deciding), inner, self.core.headers)
            }
        }
    }
}
