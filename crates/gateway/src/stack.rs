//! The path of a request: from a connection, through scrubber and limits, to the forwarder.

use crate::access_log::{AccessLog, LoggedBody, PendingLogEntry};
use crate::body::GatewayBody;
use crate::client_address::ClientAddresses;
use crate::forward::{Forwarder, ThreadForwarder};
use crate::headers::ClientOrigin;
use crate::scrub::Scrubber;
use crate::settings::LookalikeHeaders;
use http::uri::Scheme;
use http::{Request, Response};
use hyper::body::Incoming;
use ipnet::IpNet;
use pin_project_lite::pin_project;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tollgate_http::RateLimitLayer;
use tollgate_http::layer::{RateLimit, ResponseBody, ResponseSource};
use tollgate_http::response::{StoreUnavailableRefusal, is_limited};
use tollgate_listen::{AddressVerdict, Peer, RepeatedRequest};
use tower::{Layer, Service};

/// Builds the services of one thread. Layers are put in front of the forwarder here and nowhere else.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    limits: RateLimitLayer,
    forwarder: ThreadForwarder,
    trusted: Arc<[IpNet]>,
    lookalikes: LookalikeHeaders,
    log: Option<AccessLog>,
}

impl Stack {
    pub(crate) fn new(
        limits: RateLimitLayer,
        forwarder: ThreadForwarder,
        trusted: Arc<[IpNet]>,
        lookalikes: LookalikeHeaders,
        log: Option<AccessLog>,
    ) -> Self {
        Self { limits, forwarder, trusted, lookalikes, log }
    }

    /// The service of one connection.
    pub(crate) fn service(&self, peer: Peer) -> GatewayService {
        let scheme = if peer.secure { Scheme::HTTPS } else { Scheme::HTTP };
        let origin = ClientOrigin::new(peer.address, &scheme, &self.trusted);
        let scrubber = Scrubber::new(self.forwarder.reserved(), self.lookalikes, &origin);
        let limits = self.limits.for_peer(peer.address);
        let clients = ClientAddresses::of_peer(peer.address.ip(), &self.limits);
        let peer = Arc::new(peer);
        let service = limits.layer(self.forwarder.for_connection(Arc::clone(&peer), origin, clients));
        GatewayService { scrubber, limits, service, peer, log: self.log.clone() }
    }
}

/// The service of one connection.
#[derive(Debug)]
pub(crate) struct GatewayService {
    scrubber: Scrubber,
    limits: RateLimitLayer,
    service: RateLimit<Forwarder>,
    peer: Arc<Peer>,
    log: Option<AccessLog>,
}

impl hyper::service::Service<Request<Incoming>> for GatewayService {
    type Response = Response<LoggedBody<ResponseBody<GatewayBody>>>;
    type Error = Infallible;
    type Future = GatewayFuture;

    fn call(&self, mut request: Request<Incoming>) -> GatewayFuture {
        // Before hop-by-hop headers are removed: they decide whether the fast path can refuse repeats.
        let repeated = self.peer.keep_request(&self.limits, &request).map(|repeated| self.logged(repeated));
        // What decides about a request, and writes into it, sees what the server will see.
        self.scrubber.scrub(&mut request);
        let (method, target) = (request.method(), request.uri());
        let client = self.peer.address.ip();
        let entry = self.log.as_ref().map(|log| Box::new(log.start_entry(client, method, target)));
        // The forwarder is always ready.
        let response = self.service.clone().call(request);
        GatewayFuture { response, peer: Arc::clone(&self.peer), entry, repeated }
    }
}

impl GatewayService {
    /// Writes the refusals of repeats into the access log.
    fn logged(&self, repeated: Box<RepeatedRequest>) -> Box<RepeatedRequest> {
        let Some(log) = self.log.clone() else { return repeated };
        let client = self.peer.address.ip();
        repeated.on_refusal(move |method, target, bytes| {
            log.start_entry(client, method, target).end_as_refused(bytes);
        })
    }
}

pin_project! {
    /// A request in progress.
    pub(crate) struct GatewayFuture {
        #[pin]
        response: <RateLimit<Forwarder> as Service<Request<Incoming>>>::Future,
        peer: Arc<Peer>,
        entry: Option<Box<PendingLogEntry>>,
        repeated: Option<Box<RepeatedRequest>>,
    }
}

impl Future for GatewayFuture {
    type Output = Result<Response<LoggedBody<ResponseBody<GatewayBody>>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.response.poll(cx))?;
        if response.extensions().get::<StoreUnavailableRefusal>().is_some() {
            // An unavailable store counts neither for nor against the client.
            return Poll::Ready(Ok(LoggedBody::wrap(this.entry.take(), response)));
        }
        match response.body().source() {
            ResponseSource::Refusal => {
                // A denied client is refused whatever it requests, so nothing of the request is remembered.
                if is_limited(&response) {
                    this.peer.record_refusal(this.repeated.take());
                } else {
                    this.peer.record_other_response();
                }
                let verdict = this.peer.counted.as_ref().map(|counted| counted.record_refusal());
                if verdict == Some(AddressVerdict::Refused) {
                    this.peer.close_after_response();
                }
            }
            // An invalid request says nothing about whether a valid one would have been refused.
            ResponseSource::InvalidRequest | ResponseSource::Service(GatewayBody::InvalidRequest(_)) => {
                this.peer.record_other_response()
            }
            ResponseSource::Service(_) => {
                this.peer.record_other_response();
                this.peer.counted.as_ref().inspect(|counted| counted.record_admission());
            }
        }
        Poll::Ready(Ok(LoggedBody::wrap(this.entry.take(), response)))
    }
}
