//! What stands between a request and the inner service.

use super::PeerFrom;
use crate::answer::{self, Answer};
use crate::fault::Fault;
use crate::headers::HeaderOptions;
use crate::identity::Identities;
use crate::{grpc, path};
use http::Request;
use http::request::Parts;
use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use tollgate_limiter::{Check, Decision, Limiter};

/// What every request is held against.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    pub(super) limiter: Arc<Limiter>,
    pub(super) identities: Arc<Identities>,
    pub(super) headers: HeaderOptions,
    pub(super) peer_from: PeerFrom,
}

/// Something that is held until the response has ended, such as a place among the requests in flight.
pub(super) type Permit = Box<dyn Any + Send + Sync>;

/// A request may pass.
pub(super) struct Admission {
    pub(super) decision: Decision,
    pub(super) permit: Option<Permit>,
}

/// What becomes of a request: it passes, or is answered here.
pub(super) enum Judged<P> {
    Passes(P),
    Answered(Answer),
}

impl Gate {
    /// Whether the request may pass. Only for a limiter that decides at once.
    #[inline]
    pub(super) fn admit(&self, parts: &mut Parts, peer: Option<SocketAddr>) -> Judged<Admission> {
        match self.check(parts, peer) {
            Ok(Check::Decided(decision)) => self.conclude(parts, decision),
            Ok(Check::Pending(_)) => unreachable!("a limiter with an embedded store decides at once"),
            Err(fault) => Judged::Answered(refused(parts, &fault)),
        }
    }

    fn check(&self, parts: &mut Parts, peer: Option<SocketAddr>) -> Result<Check<'_>, Fault> {
        path::canonicalize(parts)?;
        let now_us = self.limiter.clock().now_us();
        let caller = self.identities.caller(parts, peer.map(|peer| peer.ip()), now_us)?;
        Ok(caller.ask(&parts.method, parts.uri.path(), |request| self.limiter.check(request))?)
    }

    fn conclude(&self, parts: &Parts, decision: Decision) -> Judged<Admission> {
        if decision.allowed() {
            return Judged::Passes(Admission { decision, permit: None });
        }
        let answer = if grpc::is_call(&parts.headers) {
            grpc::refusal(&decision, &self.headers)
        } else {
            answer::refusal(&decision, &self.headers, &parts.headers)
        };
        Judged::Answered(answer.expect("what is not allowed is refused"))
    }
}

/// The same as [`Gate::admit`] for a limiter that may have to wait, with the request handed through.
pub(super) async fn admit_waiting<A>(
    gate: Arc<Gate>,
    mut parts: Parts,
    body: A,
    peer: Option<SocketAddr>,
) -> Judged<(Request<A>, Admission)> {
    let decision = match gate.check(&mut parts, peer) {
        Ok(check) => check.decision().await,
        Err(fault) => return Judged::Answered(refused(&parts, &fault)),
    };
    match gate.conclude(&parts, decision) {
        Judged::Passes(admission) => Judged::Passes((Request::from_parts(parts, body), admission)),
        Judged::Answered(answer) => Judged::Answered(answer),
    }
}

#[cold]
fn refused(parts: &Parts, fault: &Fault) -> Answer {
    if grpc::is_call(&parts.headers) { grpc::fault(fault) } else { fault.answer() }
}
