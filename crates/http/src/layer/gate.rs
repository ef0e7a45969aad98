//! What stands between a request and the inner service.

use super::PeerFrom;
use super::body::AnswerCause;
use super::shared_permit::SharedPermit;
use crate::error::HttpError;
use crate::headers::{self, HeaderOptions};
use crate::identity::IdentityExtractor;
use crate::response::{self, FullResponse};
use crate::{grpc, host, path, reserved_headers};
use http::{HeaderMap, Request};
use std::net::SocketAddr;
use std::sync::Arc;
use tollgate_limiter::{Admission, Admit, Decision, Limiter};

/// What every request is held against.
#[derive(Clone, Debug)]
pub(super) struct LayerCore {
    pub(super) limiter: Arc<Limiter>,
    pub(super) identities: Arc<IdentityExtractor>,
    pub(super) headers: HeaderOptions,
    pub(super) peer_from: PeerFrom,
}

/// What becomes of a request: it passes, or is answered here.
pub(super) enum LayerOutcome<P> {
    Admitted(P),
    Answered(FullResponse, AnswerCause),
}

/// What is known of a request that passes.
pub(super) struct AdmittedRequest {
    pub(super) decision: Decision,
    pub(super) place: Option<SharedPermit>,
}

impl LayerCore {
    /// Whether the request may pass, if that is known at once.
    #[inline]
    pub(super) fn admit<A>(
        &self,
        request: &mut Request<A>,
        peer: Option<SocketAddr>,
    ) -> Option<LayerOutcome<AdmittedRequest>> {
        match self.ask(request, peer, |request| self.limiter.admit(request)).and_then(|admit| Ok(admit?)) {
            Ok(Admit::Decided(admission)) => Some(self.conclude(request, admission)),
            // The rules have changed since it was asked whether there is anything to wait for.
            Ok(Admit::Pending(_)) => None,
            Err(fault) => Some(refused(request.headers(), &fault)),
        }
    }

    /// Refuses the request if it is over its limit, and decides nothing else.
    pub(super) fn refuse(&self, request: &mut Request<()>, peer: Option<SocketAddr>) -> Option<Decision> {
        self.ask(request, peer, |request| self.limiter.refuse(request)).ok()?
    }

    fn ask<A, R>(
        &self,
        request: &mut Request<A>,
        peer: Option<SocketAddr>,
        ask: impl FnOnce(&tollgate_limiter::Request<'_>) -> R,
    ) -> Result<R, HttpError> {
        path::canonicalize(request)?;
        let looks_at_domains = self.limiter.looks_at_domains();
        if looks_at_domains {
            host::settle(request);
        }
        // Only tokens are about time.
        let now_us = if self.identities.asks_for_time() { self.limiter.clock().now_us() } else { 0 };
        let (uri, headers) = (request.uri(), request.headers());
        let domain = if looks_at_domains { host::of(uri, headers)? } else { None };
        let caller = self.identities.caller(uri, headers, peer.map(|peer| peer.ip()), now_us)?;
        Ok(caller.ask(request.method(), domain.as_deref(), uri.path(), ask))
    }

    fn conclude<A>(&self, request: &mut Request<A>, admission: Admission) -> LayerOutcome<AdmittedRequest> {
        let Admission { decision, permit } = admission;
        if decision.allowed() {
            self.tell_upstream(request.headers_mut(), &decision);
            let place = permit.map(SharedPermit::new);
            if let Some(place) = &place {
                request.extensions_mut().insert(place.clone());
            }
            return LayerOutcome::Admitted(AdmittedRequest { decision, place });
        }
        let answer = if grpc::is_call(request.headers()) {
            grpc::refusal(&decision, &self.headers)
        } else {
            response::refusal_over(&decision, &self.headers, std::mem::take(request.headers_mut()))
        };
        LayerOutcome::Answered(answer.expect("what is not allowed is refused"), AnswerCause::Refusal)
    }

    /// Writes the flags of a decision, where the client may have written its own.
    #[inline]
    fn tell_upstream(&self, headers: &mut HeaderMap, decision: &Decision) {
        if self.limiter.has_flags() {
            reserved_headers::clear_flags(headers, &self.limiter.flag_headers());
            for flag in decision.flags() {
                headers::write_flag(&flag, headers);
            }
        }
    }
}

/// The same as [`LayerCore::admit`] for a limiter that may have to wait, with the request handed through.
pub(super) async fn admit_waiting<A>(
    gate: Arc<LayerCore>,
    mut request: Request<A>,
    peer: Option<SocketAddr>,
) -> LayerOutcome<(Request<A>, AdmittedRequest)> {
    let asked = gate.ask(&mut request, peer, |request| gate.limiter.admit(request));
    let admission = match asked.and_then(|admit| Ok(admit?)) {
        Ok(admit) => admit.admission().await,
        Err(fault) => return refused(request.headers(), &fault),
    };
    match gate.conclude(&mut request, admission) {
        LayerOutcome::Admitted(passage) => LayerOutcome::Admitted((request, passage)),
        LayerOutcome::Answered(answer, cause) => LayerOutcome::Answered(answer, cause),
    }
}

#[cold]
fn refused<P>(asked: &HeaderMap, fault: &HttpError) -> LayerOutcome<P> {
    let answer = if grpc::is_call(asked) { grpc::fault(fault) } else { fault.response() };
    LayerOutcome::Answered(answer, AnswerCause::InvalidRequest)
}
