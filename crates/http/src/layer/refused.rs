//! A request that was refused, and may come again.
//!
//! Clients that are refused mostly repeat themselves: the same words again, or the same but for the target. An accept
//! loop that recognises them need not put such a request together anew to say no again.

use super::gate::LayerCore;
use crate::body;
use crate::response::wire::{self, WrittenRefusal};
use http::header::{CONNECTION, EXPECT, UPGRADE};
use http::uri::PathAndQuery;
use http::{Method, Request, Uri, Version};
use std::net::SocketAddr;
use std::sync::Arc;
use tollgate_limiter::Decision;

/// All that decides about a request of HTTP/1.1, but its target.
#[derive(Debug)]
pub struct RepeatableRequest {
    gate: Arc<LayerCore>,
    peer: Option<SocketAddr>,
    /// The target as it was written.
    target: Uri,
    /// With the path in its canonical form.
    request: Request<()>,
    prefers_problem: bool,
    said: Option<WrittenRefusal>,
}

impl RepeatableRequest {
    /// None if there is more to the answer of such a request than what this one says of it.
    pub(super) fn new<A>(
        gate: &Arc<LayerCore>,
        peer: Option<SocketAddr>,
        request: &Request<A>,
    ) -> Option<Self> {
        let (method, uri, headers) = (request.method(), request.uri(), request.headers());
        let is_usual = request.version() == Version::HTTP_11
            && !matches!(*method, Method::HEAD | Method::CONNECT)
            && uri.authority().is_none()
            && headers
                .get_all(CONNECTION)
                .iter()
                .all(|said| said.as_bytes().eq_ignore_ascii_case(b"keep-alive"))
            && ![EXPECT, UPGRADE].iter().any(|name| headers.contains_key(name))
            && !crate::grpc::is_call(headers);
        if !is_usual {
            return None;
        }
        let mut kept = Request::new(());
        kept.method_mut().clone_from(method);
        kept.uri_mut().clone_from(uri);
        kept.headers_mut().clone_from(headers);
        Some(Self {
            gate: Arc::clone(gate),
            peer,
            target: uri.clone(),
            request: kept,
            prefers_problem: body::prefers_problem(headers),
            said: None,
        })
    }

    /// How it was asked for.
    pub fn method(&self) -> &Method {
        self.request.method()
    }

    /// What was asked for last, as it was written.
    pub fn target(&self) -> &Uri {
        &self.target
    }

    /// Refuses the same request for `target`, if it is over a limit. Otherwise it has to take the usual way: nothing
    /// was decided about it.
    pub fn again(&mut self, target: &[u8]) -> Option<Decision> {
        if self.target.path_and_query().map(PathAndQuery::as_str).map(str::as_bytes) != Some(target) {
            if target.first() != Some(&b'/') {
                return None;
            }
            self.target = Uri::from(PathAndQuery::try_from(target).ok()?);
            self.request.uri_mut().clone_from(&self.target);
        }
        // What is written here says that a limit is exceeded, and nothing else.
        self.gate.refuse(&mut self.request, self.peer).filter(|decision| !decision.store_unavailable)
    }

    /// Writes what the client is told, as HTTP/1.1 sends it, and answers the length of the body. `is_last` says that
    /// the connection ends with it.
    pub fn write(&mut self, decision: &Decision, is_last: bool, text: &mut Vec<u8>) -> usize {
        wire::write(decision, &self.gate.headers, self.prefers_problem, is_last, &mut self.said, text)
    }
}
