//! What stands between a request and the inner service.

use super::PeerFrom;
use crate::answer::{self, Answer};
use crate::fault::Fault;
use crate::headers::{self, HeaderOptions};
use crate::identity::Identities;
use crate::{grpc, path};
use http::Request;
use http::request::Parts;
use std::net::SocketAddr;
use std::sync::Arc;
use tollgate_limiter::{Admission, Admit, Decision, Limiter};

/// What every request is held against.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    pub(super) limiter: Arc<Limiter>,
    pub(super) identities: Arc<Identities>,
    pub(super) headers: HeaderOptions,
    pub(super) peer_from: PeerFrom,
}

/// What becomes of a request: it passes, or is answered here.
pub(super) enum Judged<P> {
    Passes(P),
    Answered(Answer),
}

impl Gate {
    /// Whether the request may pass, if that is known at once.
    #[inline]
    pub(super) fn admit(&self, parts: &mut Parts, peer: Option<SocketAddr>) -> Option<Judged<Admission>> {
        match self.ask(parts, peer) {
            Ok(Admit::Decided(admission)) => Some(self.conclude(parts, admission)),
            // The rules have changed since it was asked whether there is anything to wait for.
            Ok(Admit::Pending(_)) => None,
            Err(fault) => Some(Judged::Answered(refused(parts, &fault))),
        }
    }

    fn ask(&self, parts: &mut Parts, peer: Option<SocketAddr>) -> Result<Admit<'_>, Fault> {
        path::canonicalize(parts)?;
        let now_us = self.limiter.clock().now_us();
        let caller = self.identities.caller(parts, peer.map(|peer| peer.ip()), now_us)?;
        Ok(caller.ask(&parts.method, parts.uri.path(), |request| self.limiter.admit(request))?)
    }

    fn conclude(&self, parts: &mut Parts, admission: Admission) -> Judged<Admission> {
        let decision = &admission.decision;
        if decision.allowed() {
            self.tell_upstream(parts, decision);
            return Judged::Passes(admission);
        }
        let answer = if grpc::is_call(&parts.headers) {
            grpc::refusal(decision, &self.headers)
        } else {
            answer::refusal(decision, &self.headers, &parts.headers)
        };
        Judged::Answered(answer.expect("what is not allowed is refused"))
    }

    /// Writes the flags of a decision, where the client may have written its own.
    #[inline]
    fn tell_upstream(&self, parts: &mut Parts, decision: &Decision) {
        if self.limiter.has_flags() {
            for header in self.limiter.flag_headers() {
                parts.headers.remove(header);
            }
            for flag in decision.flags() {
                headers::write_flag(&flag, &mut parts.headers);
            }
        }
    }
}

/// The same as [`Gate::admit`] for a limiter that may have to wait, with the request handed through.
pub(super) async fn admit_waiting<A>(
    gate: Arc<Gate>,
    mut parts: Parts,
    body: A,
    peer: Option<SocketAddr>,
) -> Judged<(Request<A>, Admission)> {
    let admission = match gate.ask(&mut parts, peer) {
        Ok(admit) => admit.admission().await,
        Err(fault) => return Judged::Answered(refused(&parts, &fault)),
    };
    match gate.conclude(&mut parts, admission) {
        Judged::Passes(admission) => Judged::Passes((Request::from_parts(parts, body), admission)),
        Judged::Answered(answer) => Judged::Answered(answer),
    }
}

#[cold]
fn refused(parts: &Parts, fault: &Fault) -> Answer {
    if grpc::is_call(&parts.headers) { grpc::fault(fault) } else { fault.answer() }
}
