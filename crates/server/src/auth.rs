//! Forward-auth, `GET /v1/auth`: a proxy asks about each of its requests.
//!
//! The response to an admitted request is 200 without a body, with the rate limit headers and the flags for the upstream. That to a
//! refused one can be passed on to the client as it is. The parameters of the endpoint are written by the operator of the proxy:
//! `deny_status` is the [`DenyStatus`] of this location, and `cost` the cost of its requests.

use http::request::Parts;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tollgate_core::rules::OpenDoor;
use tollgate_http::forward_auth::{DenyStatus, ForwardAuthOptions, OriginalRequest};
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
        Self { limits, options, has_warned: AtomicBool::new(false) }
    }

    /// What forward-auth supports, for the rule compiler: requests have these identities; it neither queues them nor sees
    /// them end.
    pub fn describe(identities: &IdentityExtractor) -> OpenDoor {
        identities.open_door_without_end("forward-auth")
    }

    /// Responds to the request of a proxy at `peer`.
    pub async fn respond(&self, head: Parts, peer: IpAddr) -> FullResponse {
        let parameters = match AuthParameters::parse(head.uri.query().unwrap_or_default()) {
            Ok(parameters) => parameters,
            Err(error) => return error.response(),
        };
        if !self.options.trusts(peer) {
            return self.refuse_peer(peer);
        }
        match self.decide(head, parameters.cost).await {
            Ok(AuthResponse::Admission(response)) => response,
            Ok(AuthResponse::Refusal(response)) => self.with_deny_status(response, &parameters),
            Err(error) => self.with_deny_status(error.response(), &parameters),
        }
    }

    async fn decide(&self, head: Parts, cost: Option<u64>) -> Result<AuthResponse, HttpError> {
        let OriginalRequest { mut request, peer } = self.options.original(head)?;
        let decision = self.limits.check(&mut request, peer, cost)?.decision().await;
        let (headers, options) = (std::mem::take(request.headers_mut()), self.limits.header_options());
        Ok(match response::refusal(&decision, options, &headers) {
            Some(refusal) => AuthResponse::Refusal(refusal),
            None => AuthResponse::Admission(response::admission(&decision, options, headers)),
        })
    }

    fn with_deny_status(&self, mut refusal: FullResponse, parameters: &AuthParameters) -> FullResponse {
        parameters.deny_status.unwrap_or(self.options.deny_status).apply(&mut refusal);
        refusal
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

/// The parameters of the endpoint.
#[derive(Debug, Default, PartialEq, Eq)]
struct AuthParameters {
    deny_status: Option<DenyStatus>,
    cost: Option<u64>,
}

impl AuthParameters {
    fn parse(query: &str) -> Result<Self, HttpError> {
        let mut parameters = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let is_twice = match name {
                "deny_status" => parameters.deny_status.replace(deny_status(value)?).is_some(),
                "cost" => parameters.cost.replace(cost(value)?).is_some(),
                _ => return Err(unknown(name)),
            };
            if is_twice {
                let message = format!("the parameter `{name}` occurs more than once");
                return Err(HttpError::bad_request(message).in_field(name));
            }
        }
        Ok(parameters)
    }
}

fn deny_status(value: &str) -> Result<DenyStatus, HttpError> {
    let status = value.parse::<u16>().map(DenyStatus::try_from);
    let message = match status {
        Ok(Ok(status)) => return Ok(status),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "`deny_status` is a status: 429, 403, 401 or 503".to_owned(),
    };
    Err(HttpError::bad_request(message).in_field("deny_status"))
}

fn cost(value: &str) -> Result<u64, HttpError> {
    let number = value.parse().ok().filter(|_| value.bytes().all(|byte| byte.is_ascii_digit()));
    number.ok_or_else(|| HttpError::bad_request("`cost` is a whole number").in_field("cost"))
}

#[cold]
fn unknown(name: &str) -> HttpError {
    let shown: String = name.chars().take(100).collect();
    HttpError::bad_request(format!("there is no parameter `{shown}`"))
        .with_hint("the parameters are deny_status and cost")
}
