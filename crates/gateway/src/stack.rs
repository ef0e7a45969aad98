//! The way of a request: from a connection, through what decides about it, to the forwarder.

use crate::body::AnswerBody;
use crate::client::Clients;
use crate::forward::Forwarder;
use crate::headers::Origin;
use crate::log::{AccessLog, Line, Logged};
use crate::scrub::Scrubber;
use crate::settings::Doubles;
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
use tollgate_http::response::{StoreUnavailable, is_limited};
use tollgate_listen::{AddressVerdict, Peer, RepeatedRequest};
use tower::{Layer, Service};

/// What answers requests on one thread: the limits stand before the forwarder here, and nowhere else.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    limits: RateLimitLayer,
    forwarder: Forwarder,
    trusted: Arc<[IpNet]>,
    doubles: Doubles,
    log: Option<AccessLog>,
}

impl Stack {
    pub(crate) fn new(
        limits: RateLimitLayer,
        forwarder: Forwarder,
        trusted: Arc<[IpNet]>,
        doubles: Doubles,
        log: Option<AccessLog>,
    ) -> Self {
        Self { limits, forwarder, trusted, doubles, log }
    }

    /// The service of one connection.
    pub(crate) fn connect(&self, peer: Peer) -> Connected {
        let origin = Origin::new(peer.address, peer.secure, &self.trusted);
        let scrubber = Scrubber::new(self.forwarder.reserved(), self.doubles, &origin);
        let limits = self.limits.for_peer(peer.address);
        let clients = Clients::of_peer(peer.address.ip(), &self.limits);
        let peer = Arc::new(peer);
        let service = limits.layer(self.forwarder.of(Arc::clone(&peer), origin, clients));
        Connected { scrubber, limits, service, peer, log: self.log.clone() }
    }
}

/// The service of one connection.
#[derive(Debug)]
pub(crate) struct Connected {
    scrubber: Scrubber,
    limits: RateLimitLayer,
    service: RateLimit<Forwarder>,
    peer: Arc<Peer>,
    log: Option<AccessLog>,
}

impl hyper::service::Service<Request<Incoming>> for Connected {
    type Response = Response<Logged<ResponseBody<AnswerBody>>>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, mut request: Request<Incoming>) -> Answering {
        // Before the headers of the connection are removed: they decide whether its repeats can be answered.
        let repeated = self.peer.keep_request(&self.limits, &request).map(|repeated| self.logged(repeated));
        // What decides about a request, and writes into it, sees what the server will see.
        self.scrubber.scrub(&mut request);
        let (method, target) = (request.method(), request.uri());
        let line = self.log.as_ref().map(|log| Box::new(log.begin(self.peer.address.ip(), method, target)));
        // The forwarder is always ready.
        let answer = self.service.clone().call(request);
        Answering { answer, peer: Arc::clone(&self.peer), line, repeated }
    }
}

impl Connected {
    /// Writes the refusals of repeats into the access log.
    fn logged(&self, repeated: Box<RepeatedRequest>) -> Box<RepeatedRequest> {
        let Some(log) = self.log.clone() else { return repeated };
        let client = self.peer.address.ip();
        repeated.on_refusal(move |method, target, bytes| log.begin(client, method, target).refused(bytes))
    }
}

pin_project! {
    /// A request that is being answered.
    pub(crate) struct Answering {
        #[pin]
        answer: <RateLimit<Forwarder> as Service<Request<Incoming>>>::Future,
        peer: Arc<Peer>,
        line: Option<Box<Line>>,
        repeated: Option<Box<RepeatedRequest>>,
    }
}

impl Future for Answering {
    type Output = Result<Response<Logged<ResponseBody<AnswerBody>>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.answer.poll(cx))?;
        if answer.extensions().get::<StoreUnavailable>().is_some() {
            // It says nothing about the client, neither for it nor against it.
            return Poll::Ready(Ok(Logged::wrap(this.line.take(), answer)));
        }
        match answer.body().source() {
            ResponseSource::Refusal => {
                // A client on the deny list is refused whatever it asks: there is nothing to remember of its words.
                if is_limited(&answer) {
                    this.peer.record_refusal(this.repeated.take());
                } else {
                    this.peer.record_other_response();
                }
                let verdict = this.peer.counted.as_ref().map(|counted| counted.record_refusal());
                if verdict == Some(AddressVerdict::Refused) {
                    this.peer.close_after_response();
                }
            }
            // What is wrong with a request says nothing about whether it would have been refused.
            ResponseSource::InvalidRequest | ResponseSource::Service(AnswerBody::ClientFault(_)) => {
                this.peer.record_other_response()
            }
            ResponseSource::Service(_) => {
                this.peer.record_other_response();
                this.peer.counted.as_ref().inspect(|counted| counted.record_admission());
            }
        }
        Poll::Ready(Ok(Logged::wrap(this.line.take(), answer)))
    }
}
