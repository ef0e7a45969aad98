//! Forward-auth, `GET /v1/auth`: a proxy asks about each of its requests.
//!
//! The response to an admitted request is 200 without a body, with the rate limit headers and the flags for the upstream. That to a
//! refused one can be passed on to the client as it is. `?deny_status=403` is the [`DenyStatus`] of one location of a proxy.

use http::request::Parts;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tollgate_core::rules::OpenDoor;
use tollgate_http::forward_auth::{DenyStatus, ForwardAuthOptions, MissingPart, OriginalRequest};
use tollgate_http::{FullResponse, HeaderOptions, HttpError, IdentityExtractor, RateLimitLayer, response};
use tollgate_limiter::{Door, Limiter};

/// The size limit of a request body, which is not used. After a longer one the connection is closed.
pub const MOST_BYTES: usize = 64 * 1024;

/// Answers proxies that ask about their requests.
#[derive(Debug)]
pub struct ForwardAuth {
    limits: RateLimitLayer,
    options: ForwardAuthOptions,
    has_warned: AtomicBool,
    has_warned_of_missing: AtomicBool,
}

impl ForwardAuth {
    /// With the limits of `limiter`, for the clients that `identities` finds in the original requests.
    pub fn new(
        limiter: Arc<Limiter>,
        headers: HeaderOptions,
        identities: Arc<IdentityExtractor>,
        options: ForwardAuthOptions,
    ) -> Self {
        let limits = RateLimitLayer::new(limiter).headers(headers).identities(identities).door(Door::Auth);
        Self {
            limits,
            options,
            has_warned: AtomicBool::new(false),
            has_warned_of_missing: AtomicBool::new(false),
        }
    }

    /// What forward-auth supports, for the rule compiler: requests have these identities; it neither queues them nor sees
    /// them end.
    pub fn describe(identities: &IdentityExtractor) -> OpenDoor {
        identities.open_door_without_end("forward-auth")
    }

    /// Responds to the request of a proxy at `peer`.
    pub async fn respond(&self, mut head: Parts, peer: IpAddr) -> FullResponse {
        if !self.options.trusts(peer) {
            return self.refuse_peer(peer);
        }
        let endpoint = std::mem::take(&mut head.uri);
        let original = self.options.original(head, peer);
        let query = original.as_ref().ok().and_then(|original| original.request.uri().query());
        let status = match written_status(endpoint.query(), query) {
            Ok(status) => status.unwrap_or(self.options.deny_status),
            Err(error) => return error.response(),
        };
        let decided = match original {
            Ok(original) => self.decide(original).await,
            Err(error) => Err(error),
        };
        match decided {
            Ok(AuthResponse::Admission(response)) => response,
            Ok(AuthResponse::Refusal(response)) => status.of_refusal(response),
            Err(error) => status.of_refusal(error.response()),
        }
    }

    async fn decide(&self, original: OriginalRequest) -> Result<AuthResponse, HttpError> {
        let OriginalRequest { mut request, peer, missing } = original;
        if let Some(part) = missing {
            self.warn_of_missing(part);
        }
        let decision = self.limits.check(&mut request, peer)?.decision().await;
        let (headers, options) = (std::mem::take(request.headers_mut()), self.limits.header_options());
        Ok(match response::refusal(&decision, options, &headers) {
            Some(refusal) => AuthResponse::Refusal(refusal),
            None => AuthResponse::Admission(response::admission(&decision, options, headers)),
        })
    }

    #[cold]
    fn warn_of_missing(&self, part: MissingPart) {
        if self.has_warned_of_missing.swap(true, Ordering::Relaxed) {
            return;
        }
        match part {
            MissingPart::Method => tracing::warn!(
                "forward-auth: the proxy names no method; all requests count as the method it asks with; set `X-Forwarded-Method`"
            ),
            MissingPart::Address => tracing::warn!(
                header = self.options.client_address.header().as_str(),
                "forward-auth: the proxy names no client address; all clients count as one address; set this header"
            ),
        }
    }

    /// What this peer says of a request is not believed, and the request itself is not the one to decide about.
    #[cold]
    fn refuse_peer(&self, peer: IpAddr) -> FullResponse {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(%peer, "forward-auth refuses a peer that is not in `forward_auth: trusted`");
        }
        HttpError::forbidden("this peer may not ask about the requests of others")
            .with_hint("add its address to `forward_auth: { trusted: … }` in the settings")
            .response()
    }
}

/// The answer to a proxy.
enum AuthResponse {
    Admission(FullResponse),
    Refusal(FullResponse),
}

/// The status that the operator of the proxy wrote into `query`, that of the endpoint. If the original request has the same query, the
/// proxy may have kept it (as Caddy does), and the client wrote it: a valid status then decides how this client's own refusal looks, an
/// invalid one is not the operator's mistake.
fn written_status(query: Option<&str>, original: Option<&str>) -> Result<Option<DenyStatus>, HttpError> {
    let mut values = query.into_iter().flat_map(|query| query.split('&'));
    let Some(value) = values.find_map(|pair| pair.strip_prefix("deny_status=")) else { return Ok(None) };
    let message = match value.parse::<u16>().map(DenyStatus::try_from) {
        Ok(Ok(status)) => return Ok(Some(status)),
        _ if query == original => return Ok(None),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "`deny_status` is a status: 429, 403, 401 or 503".to_owned(),
    };
    Err(HttpError::bad_request(message).in_field("deny_status"))
}
