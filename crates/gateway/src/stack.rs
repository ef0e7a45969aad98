//! The way of a request: from a connection, through what decides about it, to the forwarder.

use crate::body::AnswerBody;
use crate::forward::{Forwarder, FromUpstream};
use crate::headers::Origin;
use crate::log::{AccessLog, Line, Logged};
use http::{Request, Response};
use hyper::body::Incoming;
use ipnet::IpNet;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tollgate_http::Peer;
use tollgate_http::answer::is_limited;
use tower::Service;

/// What answers requests on one thread: whatever limits them stands before the forwarder here, and
/// nowhere else.
#[derive(Clone, Debug)]
pub(crate) struct Stack {
    forwarder: Forwarder,
    trusted: Arc<[IpNet]>,
    log: Option<AccessLog>,
}

impl Stack {
    pub(crate) fn new(forwarder: Forwarder, trusted: Arc<[IpNet]>, log: Option<AccessLog>) -> Self {
        Self { forwarder, trusted, log }
    }

    /// The service of one connection.
    pub(crate) fn connect(&self, peer: Peer) -> Connected {
        let origin = Origin::new(peer.address, peer.secure, &self.trusted);
        Connected { service: self.forwarder.of(origin), peer: Arc::new(peer), log: self.log.clone() }
    }
}

/// The service of one connection.
#[derive(Debug)]
pub(crate) struct Connected {
    service: Forwarder,
    peer: Arc<Peer>,
    log: Option<AccessLog>,
}

impl hyper::service::Service<Request<Incoming>> for Connected {
    type Response = Response<Logged<AnswerBody>>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, mut request: Request<Incoming>) -> Answering {
        let line = self.log.as_ref().map(|log| Box::new(log.begin(self.peer.address.ip(), &request)));
        // Who asks, for the layers.
        request.extensions_mut().insert(self.peer.address);
        // The forwarder is always ready.
        let answer = self.service.clone().call(request);
        Answering { answer, peer: Arc::clone(&self.peer), line }
    }
}

/// A request that is being answered.
pub(crate) struct Answering {
    answer: <Forwarder as Service<Request<Incoming>>>::Future,
    peer: Arc<Peer>,
    line: Option<Box<Line>>,
}

impl Future for Answering {
    type Output = Result<Response<Logged<AnswerBody>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(self.answer.as_mut().poll(cx))?;
        if let Some(seat) = &self.peer.seat {
            if !is_limited(&answer) || answer.extensions().get::<FromUpstream>().is_some() {
                seat.passed();
            } else if seat.rejected() {
                self.peer.hang_up();
            }
        }
        Poll::Ready(Ok(Logged::wrap(self.line.take(), answer)))
    }
}
