//! The way of a request: from a connection, through what decides about it, to the forwarder.

use crate::body::AnswerBody;
use crate::forward::{Forwarder, FromUpstream};
use crate::headers::Origin;
use crate::log::{AccessLog, Logged};
use http::{Request, Response};
use hyper::body::Incoming;
use ipnet::IpNet;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
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
        let origin = Arc::new(Origin::new(peer.address, peer.secure, &self.trusted));
        Connected { service: self.forwarder.clone(), peer, origin, log: self.log.clone() }
    }
}

/// The service of one connection.
#[derive(Debug)]
pub(crate) struct Connected {
    service: Forwarder,
    peer: Peer,
    origin: Arc<Origin>,
    log: Option<AccessLog>,
}

impl hyper::service::Service<Request<Incoming>> for Connected {
    type Response = Response<Logged<AnswerBody>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let line = self.log.as_ref().map(|log| Box::new(log.begin(self.peer.address.ip(), &request)));
        // Who asks, for the layers.
        request.extensions_mut().insert(self.peer.address);
        request.extensions_mut().insert(Arc::clone(&self.origin));
        // The forwarder is always ready.
        let answering = self.service.clone().call(request);
        let peer = self.peer.clone();
        Box::pin(async move {
            let answer = answering.await?;
            if let Some(seat) = &peer.seat {
                if !is_limited(&answer) || answer.extensions().get::<FromUpstream>().is_some() {
                    seat.passed();
                } else if seat.rejected() {
                    peer.hang_up();
                }
            }
            Ok(Logged::wrap(line, answer))
        })
    }
}
