//! The tower layer: the limiter in front of any HTTP service, in the same process.
//!
//! It works wherever tower layers do: axum, hyper, tonic. For each request it
//!
//! 1. brings the path into its canonical form, and passes it on in that form;
//! 2. finds out who asks ([`crate::identity`]);
//! 3. asks the [`Limiter`];
//! 4. calls the inner service and adds the headers of the decision to its response, or answers itself: 429, 403
//!    or 400, and to gRPC callers the statuses that mean the same.
//!
//! With the embedded store all of this happens in [`call`](tower_service::Service::call), without waiting and
//! without an allocation of its own; only a shared store may have to be waited for, or a turn, where a rule says so
//! (`on_exceed`). Places among the requests in flight are given back when the response has ended, or is dropped because
//! its client has gone; work that outlives both keeps its [`SharedPermit`].

mod body;
mod future;
mod gate;
mod shared_permit;

use crate::headers::HeaderOptions;
use crate::identity::IdentityExtractor;
use crate::reserved_headers::ReservedHeaders;
pub use body::{ResponseBody, ResponseSource};
use bytes::Bytes;
pub use future::ResponseFuture;
use gate::{LayerCore, LayerOutcome};
use http::{Extensions, Request, Response};
pub use shared_permit::SharedPermit;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use tollgate_limiter::{Decision, Limiter};
use tower_layer::Layer;
use tower_service::Service;

/// The address that a request came from, as a request extension: one way to tell the layer of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

/// Finds the peer of a request among its extensions.
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
/// limiter.install(loaded.rules, loaded.lists);
/// let layer = RateLimitLayer::new(limiter);
/// ```
#[derive(Clone, Debug)]
pub struct RateLimitLayer {
    gate: Arc<LayerCore>,
    peer: Option<SocketAddr>,
}

impl RateLimitLayer {
    /// A layer with the default identities (`X-Api-Key`, else the bearer token, else the address) and headers.
    pub fn new(limiter: Arc<Limiter>) -> Self {
        let gate = LayerCore {
            limiter,
            identities: Arc::new(IdentityExtractor::default()),
            headers: HeaderOptions::default(),
            peer_from: |extensions| extensions.get::<PeerAddr>().map(|peer| peer.0),
        };
        Self { gate: Arc::new(gate), peer: None }
    }

    /// Takes identities from elsewhere.
    #[must_use]
    pub fn identities(self, identities: impl Into<Arc<IdentityExtractor>>) -> Self {
        let identities = identities.into();
        self.with(|gate| LayerCore { identities, ..gate })
    }

    /// Writes other headers.
    #[must_use]
    pub fn headers(self, headers: HeaderOptions) -> Self {
        self.with(|gate| LayerCore { headers, ..gate })
    }

    /// Where identities are taken from.
    pub fn known_identities(&self) -> &Arc<IdentityExtractor> {
        &self.gate.identities
    }

    /// Says where a request's peer address stands. With axum that is
    /// `|extensions| extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0)`, with tonic
    /// `|extensions| extensions.get::<TcpConnectInfo>()?.remote_addr()`. Without it, a [`PeerAddr`] is looked for.
    #[must_use]
    pub fn peer_from(self, peer_from: PeerFrom) -> Self {
        self.with(|gate| LayerCore { peer_from, ..gate })
    }

    /// The layer for one connection, of which the peer is known. This is what a hyper accept loop uses.
    #[must_use]
    pub fn for_peer(&self, peer: SocketAddr) -> Self {
        Self { gate: Arc::clone(&self.gate), peer: Some(peer) }
    }

    /// The headers of its decisions.
    pub fn header_options(&self) -> &HeaderOptions {
        &self.gate.headers
    }

    /// Refuses `request` if it is over a limit as things stand, without spending anything. None says nothing: the request has to
    /// be sent through the service. Its path is brought into its canonical form.
    pub fn refuse(&self, request: &mut Request<()>) -> Option<Decision> {
        let peer = self.peer.or_else(|| (self.gate.peer_from)(request.extensions()));
        self.gate.refuse(request, peer)
    }

    /// The headers that this layer reads, or writes for the service behind it.
    pub fn reserved_names(&self) -> ReservedHeaders {
        ReservedHeaders::new(Arc::clone(&self.gate.limiter), &self.gate.identities)
    }

    fn with(self, change: impl FnOnce(LayerCore) -> LayerCore) -> Self {
        Self { gate: Arc::new(change(LayerCore::clone(&self.gate))), ..self }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit { gate: Arc::clone(&self.gate), peer: self.peer, inner }
    }
}

/// A service behind a limiter. See [`RateLimitLayer`].
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    gate: Arc<LayerCore>,
    peer: Option<SocketAddr>,
    inner: S,
}

impl<S> RateLimit<S> {
    fn peer_of<A>(&self, request: &Request<A>) -> Option<SocketAddr> {
        self.peer.or_else(|| (self.gate.peer_from)(request.extensions()))
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
        let may_wait = self.gate.limiter.may_wait();
        match if may_wait { None } else { self.gate.admit(&mut request, peer) } {
            Some(LayerOutcome::Admitted(passage)) => {
                ResponseFuture::passing(self.inner.call(request), passage, self.gate.headers)
            }
            Some(LayerOutcome::Answered(answer, cause)) => ResponseFuture::answered(answer, cause),
            None => {
                // The one that was asked whether it is ready is the one to call.
                let next = self.inner.clone();
                let inner = std::mem::replace(&mut self.inner, next);
                let deciding = gate::admit_waiting(Arc::clone(&self.gate), request, peer);
                ResponseFuture::deciding(Box::pin(deciding), inner, self.gate.headers)
            }
        }
    }
}
