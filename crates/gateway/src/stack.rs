//! The way of a request: from a connection, through what decides about it, to the forwarder.

use crate::body::AnswerBody;
use crate::forward::{Forwarder, FromUpstream};
use crate::headers::Origin;
use crate::log::{AccessLog, Line, Logged};
use http::{Request, Response};
use hyper::body::Incoming;
use ipnet::IpNet;
use pin_project_lite::pin_project;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tollgate_http::answer::is_limited;
use tollgate_http::layer::{RateLimit, ResponseBody};
use tollgate_http::{Peer, RateLimitLayer};
use tower::{Layer, Service};

/// What answers requests on one thread: the limits stand before the forwarder here, and nowhere else.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    limits: RateLimitLayer,
    forwarder: Forwarder,
    trusted: Arc<[IpNet]>,
    log: Option<AccessLog>,
}

impl Stack {
    pub(crate) fn new(
        limits: RateLimitLayer,
        forwarder: Forwarder,
        trusted: Arc<[IpNet]>,
        log: Option<AccessLog>,
    ) -> Self {
        Self { limits, forwarder, trusted, log }
    }

    /// The service of one connection.
    pub(crate) fn connect(&self, peer: Peer) -> Connected {
        let origin = Origin::new(peer.address, peer.secure, &self.trusted);
        let limits = self.limits.for_peer(peer.address);
        let service = limits.layer(self.forwarder.of(origin));
        Connected { service, peer: Arc::new(peer), log: self.log.clone() }
    }
}

/// The service of one connection.
#[derive(Debug)]
pub(crate) struct Connected {
    service: RateLimit<Forwarder>,
    peer: Arc<Peer>,
    log: Option<AccessLog>,
}

impl hyper::service::Service<Request<Incoming>> for Connected {
    type Response = Response<Logged<ResponseBody<AnswerBody>>>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Answering {
        let line = self.log.as_ref().map(|log| Box::new(log.begin(self.peer.address.ip(), &request)));
        // The forwarder is always ready.
        let answer = self.service.clone().call(request);
        Answering { answer, peer: Arc::clone(&self.peer), line }
    }
}

pin_project! {
    /// A request that is being answered.
    pub(crate) struct Answering {
        #[pin]
        answer: <RateLimit<Forwarder> as Service<Request<Incoming>>>::Future,
        peer: Arc<Peer>,
        line: Option<Box<Line>>,
    }
}

impl Future for Answering {
    type Output = Result<Response<Logged<ResponseBody<AnswerBody>>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.answer.poll(cx))?;
        if let Some(seat) = &this.peer.seat {
            if !is_limited(&answer) || answer.extensions().get::<FromUpstream>().is_some() {
                seat.passed();
            } else if seat.rejected() {
                this.peer.hang_up();
            }
        }
        Poll::Ready(Ok(Logged::wrap(this.line.take(), answer)))
    }
}
