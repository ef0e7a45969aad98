//! Decides about requests: from a request to the inner service, or to a response in its place.

use super::PeerFrom;
use super::body::AnswerCause;
use super::decision_summary::DecisionSummary;
use super::shared_permit::SharedPermit;
use crate::error::HttpError;
use crate::headers::{self, HeaderOptions};
use crate::identity::IdentityExtractor;
use crate::response::{self, FullResponse};
use crate::{grpc, host, path, reserved_headers};
use http::{HeaderMap, Request};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tollgate_core::time::UnixTime;
use tollgate_limiter::{Admission, Admit, Check, Decision, Door, Limiter};

/// What all requests of a layer share.
#[derive(Clone, Debug)]
pub(super) struct LayerCore {
    pub(super) limiter: Arc<Limiter>,
    pub(super) identities: Arc<IdentityExtractor>,
    pub(super) headers: HeaderOptions,
    pub(super) peer_from: PeerFrom,
    pub(super) door: Door,
    pub(super) summaries: DecisionSummaries,
}

/// Whether responses have a [`DecisionSummary`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecisionSummaries {
    Added,
    Omitted,
}

/// What becomes of a request: it is passed on, or answered by the layer.
pub(super) enum LayerOutcome<P> {
    Admitted(P),
    Answered(FullResponse, AnswerCause),
}

/// The decision and the permit of an admitted request.
pub(super) struct AdmittedRequest {
    pub(super) decision: Decision,
    pub(super) permit: Option<SharedPermit>,
    pub(super) summary: Option<Box<DecisionSummary>>,
}

impl LayerCore {
    /// Decides about the request, unless that has to wait.
    #[inline]
    pub(super) fn admit<A>(
        &self,
        request: &mut Request<A>,
        peer: Option<SocketAddr>,
    ) -> Option<LayerOutcome<AdmittedRequest>> {
        match self.ask(request, peer, |request| self.limiter.admit(request)).and_then(|admit| Ok(admit?)) {
            Ok(Admit::Decided(admission)) => Some(self.conclude(request, peer, admission)),
            // The rules have changed since `may_wait` was called.
            Ok(Admit::Pending(_)) => None,
            Err(error) => Some(invalid(request.headers(), &error)),
        }
    }

    /// The refusal of a request that is over a limit now. Nothing is charged.
    pub(super) fn refuse(&self, request: &mut Request<()>, peer: Option<SocketAddr>) -> Option<Decision> {
        self.ask(request, peer, |request| self.limiter.refuse(request)).ok()?
    }

    /// Decides about a request whose end is not seen.
    pub(super) fn check(&self, request: &mut Request<()>, peer: IpAddr) -> Result<Check<'_>, HttpError> {
        let peer = SocketAddr::new(peer, 0);
        Ok(self.ask(request, Some(peer), |request| self.limiter.check(request))??)
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
            host::align_host_header(request);
        }
        // Only tokens expire.
        let uses_time = self.identities.uses_time();
        let now = if uses_time { self.limiter.clock().now() } else { UnixTime::default() };
        let (uri, headers) = (request.uri(), request.headers());
        let domain = if looks_at_domains { host::of_request(uri, headers)? } else { None };
        let caller = self.identities.caller(uri, headers, peer.map(|peer| peer.ip()), now)?;
        Ok(caller.with_request(request.method(), domain.as_deref(), uri.path(), |request| {
            ask(&tollgate_limiter::Request { door: self.door, ..*request })
        }))
    }

    /// The summary of a decision about `request`.
    #[cold]
    pub(super) fn summarize<A>(
        &self,
        request: &mut Request<A>,
        peer: Option<SocketAddr>,
        admission: &Admission,
    ) -> DecisionSummary {
        let decision = admission.decision;
        let key = self.ask(request, peer, |request| self.limiter.key_of(request, &decision));
        DecisionSummary { decision, outcome: admission.outcome(), key: key.unwrap_or_default() }
    }

    fn conclude<A>(
        &self,
        request: &mut Request<A>,
        peer: Option<SocketAddr>,
        admission: Admission,
    ) -> LayerOutcome<AdmittedRequest> {
        let summary = (self.summaries == DecisionSummaries::Added)
            .then(|| Box::new(self.summarize(request, peer, &admission)));
        let Admission { decision, permit, .. } = admission;
        if decision.allowed() {
            self.write_flags(request.headers_mut(), &decision);
            let permit = permit.map(SharedPermit::new);
            if let Some(permit) = &permit {
                request.extensions_mut().insert(permit.clone());
            }
            return LayerOutcome::Admitted(AdmittedRequest { decision, permit, summary });
        }
        let response = if grpc::is_call(request.headers()) {
            grpc::refusal(&decision, &self.headers)
        } else {
            response::refusal_reusing(&decision, &self.headers, std::mem::take(request.headers_mut()))
        };
        let mut response = response.expect("not allowed, so there is a refusal");
        if let Some(summary) = summary {
            response.extensions_mut().insert(*summary);
        }
        LayerOutcome::Answered(response, AnswerCause::Refusal)
    }

    /// Writes the flags of a decision in place of the client's own headers of that name.
    #[inline]
    fn write_flags(&self, headers: &mut HeaderMap, decision: &Decision) {
        if self.limiter.has_flags() {
            reserved_headers::clear_flags(headers, &self.limiter.flag_headers());
            for flag in decision.flags() {
                headers::write_flag(&flag, headers);
            }
        }
    }
}

/// [`LayerCore::admit`] for a limiter that may have to wait. An admitted request is returned.
pub(super) async fn admit_waiting<A>(
    core: Arc<LayerCore>,
    mut request: Request<A>,
    peer: Option<SocketAddr>,
) -> LayerOutcome<(Request<A>, AdmittedRequest)> {
    let asked = core.ask(&mut request, peer, |request| core.limiter.admit(request));
    let admission = match asked.and_then(|admit| Ok(admit?)) {
        Ok(admit) => admit.admission().await,
        Err(error) => return invalid(request.headers(), &error),
    };
    match core.conclude(&mut request, peer, admission) {
        LayerOutcome::Admitted(admitted) => LayerOutcome::Admitted((request, admitted)),
        LayerOutcome::Answered(response, cause) => LayerOutcome::Answered(response, cause),
    }
}

#[cold]
fn invalid<P>(headers: &HeaderMap, error: &HttpError) -> LayerOutcome<P> {
    let response = if grpc::is_call(headers) { grpc::invalid_argument(error) } else { error.response() };
    LayerOutcome::Answered(response, AnswerCause::InvalidRequest)
}
