//! Access to the admin API: who calls, and what the caller may do.
//!
//! Each request passes [`authenticate`], which verifies host and origin and finds the caller by a bearer token or by the
//! cookie of a session. Endpoints that need a role are behind [`require_read`], [`require_follow`] or [`require_operate`].

mod host_policy;
mod login_limit;
mod operate_token;
mod secret;
mod session_table;
mod token_registry;

use super::ControlPlane;
use super::problem::Problem;
use crate::access_token::TokenRole;
use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
pub(crate) use host_policy::HostPolicy;
use http::header::{AUTHORIZATION, COOKIE, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, Method};
pub(crate) use login_limit::LoginLimit;
pub(crate) use operate_token::OPERATE_TOKEN;
pub use operate_token::OperateTokenFile;
pub(crate) use secret::{SecretDigest, SecretText};
pub(crate) use session_table::{SESSION_SECONDS, SessionTable};
use std::net::SocketAddr;
use std::sync::Arc;
pub(crate) use token_registry::TokenRegistry;
use tollgate_core::time::UnixTime;

/// The cookie of a session.
pub(crate) const SESSION_COOKIE: &str = "tollgate_session";

/// Everything that decides about access.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) hosts: HostPolicy,
    pub(crate) tokens: TokenRegistry,
    pub(crate) sessions: SessionTable,
    pub(crate) logins: LoginLimit,
}

/// The client's end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdminPeer {
    pub(crate) address: SocketAddr,
    /// Whether the listener has a loopback address.
    pub(crate) is_local_listener: bool,
}

/// An authenticated caller.
#[derive(Clone, Debug)]
pub(crate) struct Operator {
    /// The name of the token.
    pub(crate) name: String,
    /// What the token allows.
    pub(crate) role: TokenRole,
    /// When the session or the token ends.
    pub(crate) expires: Option<UnixTime>,
    pub(crate) credential: Credential,
}

/// How a caller is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Credential {
    /// A token in the header `Authorization`.
    Bearer,
    /// The cookie of a session.
    Session,
}

/// The caller of a request, or why there is none.
#[derive(Clone, Debug)]
struct Identified(Result<Operator, Problem>);

impl Access {
    /// The caller with these headers.
    async fn identify(&self, headers: &HeaderMap, now: UnixTime) -> Result<Operator, Problem> {
        let mut lines = headers.get_all(AUTHORIZATION).iter();
        if let Some(line) = lines.next() {
            let token = line.to_str().ok().and_then(bearer_token).filter(|_| lines.next().is_none());
            let Some(token) = token else {
                return Err(Problem::unauthorized("the header `Authorization` is not `Bearer TOKEN`"));
            };
            let found = self.tokens.find(SecretDigest::of(token), now).await;
            return found.map(|token| token.operator(Credential::Bearer)).ok_or_else(|| {
                Problem::unauthorized("the token is not valid: it is unknown, was revoked or has expired")
            });
        }
        let Some(cookie) = session_cookie(headers) else {
            return Err(Problem::unauthorized(
                "a token is needed: `Authorization: Bearer TOKEN`; the first one is in the file `operate.token` in the data folder",
            ));
        };
        let ended = || Problem::unauthorized("the session has ended; log in again");
        let (token, expires) = self.sessions.find(cookie, now).ok_or_else(ended)?;
        let found = self.tokens.find(token, now).await.ok_or_else(ended)?;
        let operator = found.operator(Credential::Session);
        let expires = operator.expires.map_or(expires, |token| token.min(expires));
        Ok(Operator { expires: Some(expires), ..operator })
    }
}

/// The token in the value of an `Authorization` header.
fn bearer_token(line: &str) -> Option<&str> {
    let (scheme, token) = line.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// The cookie of a session in the headers of a request.
pub(crate) fn session_cookie(headers: &HeaderMap) -> Option<&str> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut cookies = lines.flat_map(|line| line.split(';')).filter_map(|cookie| cookie.split_once('='));
    cookies.find(|(name, _)| name.trim() == SESSION_COOKIE).map(|(_, value)| value.trim())
}

/// Verifies host and origin of a request, and finds its caller.
pub(super) async fn authenticate(
    State(plane): State<Arc<ControlPlane>>,
    mut request: Request,
    next: Next,
) -> Response {
    if let Err(problem) = plane.access.hosts.verify(request.uri(), request.headers()) {
        return problem.into_response();
    }
    let identified = plane.access.identify(request.headers(), plane.now()).await;
    request.extensions_mut().insert(Identified(identified));
    next.run(request).await
}

/// Whether the caller of a request that lasts is still authenticated.
pub(super) async fn recheck(plane: &ControlPlane, headers: &HeaderMap) -> bool {
    plane.access.identify(headers, plane.now()).await.is_ok()
}

/// Passes requests of tokens that may read.
pub(super) async fn require_read(request: Request, next: Next) -> Response {
    pass(&[TokenRole::Read], request, next).await
}

/// Passes requests of nodes that follow, and of tokens that may read.
pub(super) async fn require_read_or_follow(request: Request, next: Next) -> Response {
    pass(&[TokenRole::Read, TokenRole::Follow], request, next).await
}

/// Passes requests of nodes that follow.
pub(super) async fn require_follow(request: Request, next: Next) -> Response {
    pass(&[TokenRole::Follow], request, next).await
}

/// Passes requests of operate tokens.
pub(super) async fn require_operate(request: Request, next: Next) -> Response {
    pass(&[TokenRole::Operate], request, next).await
}

/// Passes a request whose token has one of `roles`, or the role `operate`, which allows everything.
async fn pass(roles: &[TokenRole], request: Request, next: Next) -> Response {
    match require(&request, roles) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// Passes requests of any client if only this host can reach the listener, else those of tokens that may read.
pub(super) async fn require_read_from_elsewhere(request: Request, next: Next) -> Response {
    let is_local = request.extensions().get::<AdminPeer>().is_some_and(|peer| peer.is_local_listener);
    if is_local { next.run(request).await } else { require_read(request, next).await }
}

fn require(request: &Request, roles: &[TokenRole]) -> Result<(), Problem> {
    let operator = operator(request.extensions())?;
    let is_change = ![Method::GET, Method::HEAD].contains(request.method());
    if is_change && operator.credential == Credential::Session && !request.headers().contains_key(ORIGIN) {
        return Err(Problem::forbidden("a change by a session must have the `Origin` of the page"));
    }
    if operator.role == TokenRole::Operate || roles.contains(&operator.role) {
        return Ok(());
    }
    let needed: Vec<String> = roles.iter().map(|role| format!("`{role}`")).collect();
    Err(Problem::forbidden(format!(
        "the token `{}` has the role `{}`; this needs {}",
        operator.name,
        operator.role,
        needed.join(" or ")
    )))
}

fn operator(extensions: &http::Extensions) -> Result<Operator, Problem> {
    let missing = || Problem::unauthorized("a token is needed");
    extensions.get::<Identified>().map_or_else(|| Err(missing()), |identified| identified.0.clone())
}

impl<S: Sync> FromRequestParts<S> for Operator {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        operator(&parts.extensions)
    }
}

impl<S: Sync> FromRequestParts<S> for AdminPeer {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let peer = parts.extensions.get::<Self>().copied();
        peer.ok_or_else(|| Problem::unavailable("the address of the client is not known"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_and_tokens_are_found() {
        for (line, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Basic abc", None),
            ("Bearer ", None),
            ("abc", None),
        ] {
            assert_eq!(bearer_token(line), expected, "{line}");
        }
        for (line, expected) in [
            ("tollgate_session=abc", Some("abc")),
            ("a=1; tollgate_session=abc; b=2", Some("abc")),
            ("xtollgate_session=abc", None),
            ("tollgate_session", None),
        ] {
            let headers = HeaderMap::from_iter([(COOKIE, line.parse().unwrap())]);
            assert_eq!(session_cookie(&headers), expected, "{line}");
        }
    }
}
