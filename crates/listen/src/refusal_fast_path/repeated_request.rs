//! A refused request, kept to decide about its repeats without parsing them.

use super::refusal_text::RefusalText;
use super::{RefusalAction, RepeatRefuser};
use crate::connection_limits::{AddressVerdict, CountedConnection};
use http::header::{CONNECTION, EXPECT, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Method, Request, Uri, Version};
use std::fmt;
use std::sync::Arc;
use tollgate_http::layer::DecisionSummary;
use tollgate_http::{RateLimitLayer, grpc};
use tollgate_limiter::Decision;

/// Called with each refused repeat.
type OnRefusal = Box<dyn FnMut(RefusedRepeat<'_>) + Send>;

/// A repeat that was refused.
#[derive(Debug)]
pub struct RefusedRepeat<'r> {
    /// The target, as it was sent.
    pub target: &'r Uri,
    /// The length of the response body.
    pub body_bytes: usize,
    request: &'r mut Request<()>,
    limits: &'r RateLimitLayer,
    decision: Decision,
}

impl RefusedRepeat<'_> {
    /// The request, with the canonical form of its target.
    pub fn request(&self) -> &Request<()> {
        self.request
    }

    /// The decision and its key, which has to be found for this.
    pub fn summarize(&mut self) -> DecisionSummary {
        self.limits.summarize(self.request, self.decision)
    }
}

/// A refused request that may be repeated. [`Peer::keep_request`](crate::Peer::keep_request) makes it.
pub struct RepeatedRequest {
    limits: RateLimitLayer,
    /// The target of the last repeat, as it was sent.
    target: Uri,
    /// The request with the canonical form of that target.
    request: Request<()>,
    text: RefusalText,
    counted: Option<Arc<CountedConnection>>,
    on_refusal: Option<OnRefusal>,
}

impl RepeatedRequest {
    /// None if there is more to the response than what a refusal says.
    pub(super) fn new<B>(
        limits: &RateLimitLayer,
        request: &Request<B>,
        counted: Option<Arc<CountedConnection>>,
    ) -> Option<Self> {
        let (method, uri, headers) = (request.method(), request.uri(), request.headers());
        let keeps_alive = headers
            .get_all(CONNECTION)
            .iter()
            .all(|line| line.as_bytes().eq_ignore_ascii_case(b"keep-alive"));
        let is_plain = request.version() == Version::HTTP_11
            && !matches!(*method, Method::HEAD | Method::CONNECT)
            && uri.authority().is_none()
            && keeps_alive
            && ![EXPECT, UPGRADE].iter().any(|name| headers.contains_key(name))
            && !grpc::is_call(headers);
        if !is_plain {
            return None;
        }
        let mut kept = Request::new(());
        kept.method_mut().clone_from(method);
        kept.uri_mut().clone_from(uri);
        kept.headers_mut().clone_from(headers);
        Some(Self {
            limits: limits.clone(),
            target: uri.clone(),
            request: kept,
            text: RefusalText::default(),
            counted,
            on_refusal: None,
        })
    }

    /// Calls `on_refusal` with each refused repeat.
    #[must_use]
    pub fn on_refusal(
        mut self: Box<Self>,
        on_refusal: impl FnMut(RefusedRepeat<'_>) + Send + 'static,
    ) -> Box<Self> {
        self.on_refusal = Some(Box::new(on_refusal));
        self
    }

    /// Adds a header to the responses.
    #[must_use]
    pub fn with_header(mut self: Box<Self>, name: HeaderName, value: HeaderValue) -> Box<Self> {
        self.text.add_header(name, value);
        self
    }

    /// The refusal of the request with this target. None says nothing: the request has to take the usual path.
    fn decide(&mut self, target: &[u8]) -> Option<Decision> {
        if self.target.path_and_query().map(PathAndQuery::as_str).map(str::as_bytes) != Some(target) {
            if target.first() != Some(&b'/') {
                return None;
            }
            self.target = Uri::from(PathAndQuery::try_from(target).ok()?);
            self.request.uri_mut().clone_from(&self.target);
        }
        // The text that is written here says that a limit is exceeded, and nothing else.
        self.limits.refuse(&mut self.request).filter(|decision| !decision.store_unavailable)
    }
}

impl RepeatRefuser for RepeatedRequest {
    fn refuse_repeat(&mut self, target: &[u8], response: &mut Vec<u8>) -> RefusalAction {
        let Some(decision) = self.decide(target) else { return RefusalAction::Pass };
        let verdict = self.counted.as_ref().map(|counted| counted.record_refusal());
        let action = match verdict {
            Some(AddressVerdict::Refused) => RefusalAction::RefuseAndClose,
            Some(AddressVerdict::Accepted) | None => RefusalAction::Refuse,
        };
        let options = self.limits.header_options();
        let body_bytes = self.text.write(&decision, options, self.request.headers(), action, response);
        let Self { limits, request, target, on_refusal, .. } = self;
        if let Some(on_refusal) = on_refusal {
            on_refusal(RefusedRepeat { target, body_bytes, request, limits, decision });
        }
        action
    }
}

impl fmt::Debug for RepeatedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepeatedRequest").finish_non_exhaustive()
    }
}
