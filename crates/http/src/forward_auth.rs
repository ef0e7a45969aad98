//! Forward-auth: a proxy such as nginx, Traefik or Caddy asks about each of its requests before it forwards it.
//!
//! The proxy describes the request that it has received in headers of its own, and passes the client's headers along.
//! [`ForwardAuthOptions::original`] restores the request and the address that it came from, as a server in the place of the proxy would
//! have seen them. From there on it is a request like any other: the same code finds its identities, path and host.
//!
//! | part | header |
//! |---|---|
//! | method | `X-Forwarded-Method` or `X-Original-Method` |
//! | URI | `X-Forwarded-Uri`, `X-Original-URI` or `X-Original-URL` |
//! | address | the last one in `X-Forwarded-For`, or `X-Real-IP` ([`ProxyAddressHeader`]) |
//! | host | that of the URI, else `X-Forwarded-Host`, else `Host` |
//!
//! A peer that is not trusted is refused, and so is a description that lacks the URI: a request that is taken for another one might be one
//! that no rule limits. Without a method or an address, those of the proxy's own request count ([`MissingPart`]). A proxy that writes
//! one of two headers passes the other on as its client sent it, so headers for the same part that differ are refused as well. A host in
//! a URI must be that of `X-Forwarded-Host`, or that of `Host` if another URI has none.
//!
//! This also keeps web pages out: a browser sends none of these headers to another origin without asking first, and is not allowed to.
//! `Origin` says nothing here, because it is one of the client's headers that the proxy passes along.

use crate::body::ErrorCode;
use crate::error::HttpError;
use crate::headers::{
    X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_METHOD, X_FORWARDED_URI, X_ORIGINAL_METHOD,
    X_ORIGINAL_URI, X_ORIGINAL_URL, X_REAL_IP, X_TOLLGATE_STATUS,
};
use crate::identity::{IpNetwork, contains, last_hop, written_address};
use crate::response::FullResponse;
use http::header::HOST;
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Which proxies may ask, and how they are answered: the `forward_auth:` section of the settings.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ForwardAuthOptions {
    /// The networks of the proxies whose descriptions are believed. All other peers are refused. Loopback by default.
    pub trusted: Vec<IpNetwork>,
    /// The header in which these proxies write the address of their client.
    pub client_address: ProxyAddressHeader,
    /// The status of refusals.
    pub deny_status: DenyStatus,
}

impl Default for ForwardAuthOptions {
    fn default() -> Self {
        let loopback = ipnet::Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8);
        let loopback_v6 = ipnet::Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128);
        Self {
            trusted: vec![IpNetwork(loopback.into()), IpNetwork(loopback_v6.into())],
            client_address: ProxyAddressHeader::default(),
            deny_status: DenyStatus::default(),
        }
    }
}

/// The header in which a proxy writes the address of its client. Only one is read: a proxy that writes one passes the other on as its
/// client sent it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyAddressHeader {
    /// The last address in `X-Forwarded-For`.
    #[default]
    XForwardedFor,
    /// `X-Real-IP`, which is one address.
    XRealIp,
}

impl ProxyAddressHeader {
    /// Its name.
    pub fn header(self) -> &'static HeaderName {
        match self {
            Self::XForwardedFor => &X_FORWARDED_FOR,
            Self::XRealIp => &X_REAL_IP,
        }
    }
}

/// A request as the proxy has received it.
#[derive(Debug)]
pub struct OriginalRequest {
    /// The request, with all headers that the proxy sent.
    pub request: Request<()>,
    /// The address that it came from. With [`ClientIpOptions`](crate::identity::ClientIpOptions) it may be that of another proxy.
    pub peer: IpAddr,
    /// What the proxy does not describe.
    pub missing: Option<MissingPart>,
}

/// A part of a request that a proxy does not describe. The request that it sent itself has one, which counts instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingPart {
    /// The method. nginx always asks with `GET`.
    Method,
    /// The address: all clients have that of the proxy.
    Address,
}

impl ForwardAuthOptions {
    /// Whether the descriptions of this peer are believed.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        contains(&self.trusted, peer)
    }

    /// The original request that the trusted proxy at `proxy`, which sent `head`, describes.
    pub fn original(&self, head: Parts, proxy: IpAddr) -> Result<OriginalRequest, HttpError> {
        let Parts { method: own_method, mut headers, version, .. } = head;
        let description = Description::read(&headers)?;
        let method = description.method()?;
        let uri = description.uri(headers.get(HOST))?;
        let host = description.host.cloned();
        let peer = self.described_address(&headers)?;
        let missing = match (&method, peer) {
            (_, None) => Some(MissingPart::Address),
            (None, Some(_)) => Some(MissingPart::Method),
            (Some(_), Some(_)) => None,
        };
        let (method, peer) = (method.unwrap_or(own_method), peer.unwrap_or(proxy));
        if let Some(host) = host {
            headers.insert(HOST, host);
        }
        let mut request = Request::new(());
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.version_mut() = version;
        *request.headers_mut() = headers;
        Ok(OriginalRequest { request, peer, missing })
    }

    fn described_address(&self, headers: &HeaderMap) -> Result<Option<IpAddr>, HttpError> {
        let address = match self.client_address {
            ProxyAddressHeader::XForwardedFor => last_hop(headers),
            ProxyAddressHeader::XRealIp => {
                let line = one_line(headers, &X_REAL_IP)?;
                line.and_then(|line| written_address(line.to_str().ok()?))
            }
        };
        if address.is_none() && !headers.contains_key(self.client_address.header()) {
            return Ok(None);
        }
        let malformed = || match self.client_address {
            ProxyAddressHeader::XForwardedFor => {
                missing("the header `x-forwarded-for` does not end with the client's address")
            }
            ProxyAddressHeader::XRealIp => missing("the header `x-real-ip` has no address"),
        };
        address.map(Some).ok_or_else(malformed)
    }
}

/// The headers in which a proxy describes a request. Each has at most one line; an empty one is none.
#[derive(Default)]
struct Description<'h> {
    methods: [Option<&'h HeaderValue>; METHOD_HEADERS.len()],
    uris: [Option<&'h HeaderValue>; URI_HEADERS.len()],
    host: Option<&'h HeaderValue>,
}

static METHOD_HEADERS: [&HeaderName; 2] = [&X_FORWARDED_METHOD, &X_ORIGINAL_METHOD];
static URI_HEADERS: [&HeaderName; 3] = [&X_FORWARDED_URI, &X_ORIGINAL_URI, &X_ORIGINAL_URL];

impl<'h> Description<'h> {
    /// One pass over the headers takes half the time of a lookup for each of the names.
    fn read(headers: &'h HeaderMap) -> Result<Self, HttpError> {
        let mut description = Self::default();
        for (name, line) in headers {
            let Self { methods, uris, host } = &mut description;
            let place = if let Some(at) = METHOD_HEADERS.iter().position(|header| *header == name) {
                &mut methods[at]
            } else if let Some(at) = URI_HEADERS.iter().position(|header| *header == name) {
                &mut uris[at]
            } else if *name == X_FORWARDED_HOST {
                host
            } else {
                continue;
            };
            if place.replace(line).is_some() {
                return Err(several_lines(name));
            }
        }
        let Self { methods, uris, host } = &mut description;
        for place in methods.iter_mut().chain(uris).chain([host]) {
            *place = place.filter(|line| !line.is_empty());
        }
        Ok(description)
    }

    fn method(&self) -> Result<Option<Method>, HttpError> {
        let [forwarded, original] = self.methods;
        if forwarded.is_some() && original.is_some() && forwarded != original {
            return Err(contradiction(METHOD_HEADERS[0], METHOD_HEADERS[1]));
        }
        let method = forwarded.or(original).map(|method| Method::from_bytes(method.as_bytes()));
        method.transpose().map_err(|_| HttpError::bad_request("the original method is not a method"))
    }

    /// `own_host` is that of the proxy's request.
    fn uri(&self, own_host: Option<&HeaderValue>) -> Result<Uri, HttpError> {
        let mut found: Option<(&HeaderName, Uri)> = None;
        let mut without_host: Option<&HeaderName> = None;
        for (name, line) in URI_HEADERS.into_iter().zip(self.uris) {
            let Some(line) = line else { continue };
            let uri = Uri::try_from(line.as_bytes())
                .map_err(|_| HttpError::bad_request(format!("the header `{name}` is not a URI")))?;
            let Some((other, known)) = &found else {
                found = Some((name, uri));
                continue;
            };
            let is_other_host = match (known.authority(), uri.authority()) {
                (Some(known), Some(host)) => !is_same_host(known, host),
                (Some(_), None) => {
                    without_host = Some(name);
                    false
                }
                // The host of this one is not used.
                (None, _) => false,
            };
            if is_other_host || known.path_and_query() != uri.path_and_query() {
                return Err(contradiction(other, name));
            }
        }
        let missing = || {
            missing("no URI is named in the header `x-forwarded-uri`, `x-original-uri` or `x-original-url`")
        };
        let (name, uri) = found.ok_or_else(missing)?;
        if let Some(host) = uri.authority() {
            // The header may be the client's.
            let agrees = |line: &HeaderValue| {
                Authority::try_from(line.as_bytes()).is_ok_and(|known| is_same_host(host, &known))
            };
            match (self.host, without_host) {
                (Some(line), _) if !agrees(line) => return Err(contradiction(name, &X_FORWARDED_HOST)),
                (None, Some(other)) if !own_host.is_some_and(agrees) => {
                    return Err(contradiction(name, other));
                }
                _ => {}
            }
        }
        Ok(uri)
    }
}

/// The ports aside: a proxy may write that of the scheme or leave it out.
fn is_same_host(one: &Authority, other: &Authority) -> bool {
    one.host().eq_ignore_ascii_case(other.host())
}

/// The only line of a header; none if it is absent or empty.
fn one_line<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h HeaderValue>, HttpError> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next().filter(|line| !line.is_empty());
    match lines.next() {
        Some(_) => Err(several_lines(name)),
        None => Ok(line),
    }
}

#[cold]
fn several_lines(name: &HeaderName) -> HttpError {
    HttpError::bad_request(format!("the header `{name}` occurs more than once"))
}

#[cold]
fn missing(message: &'static str) -> HttpError {
    HttpError::bad_request(message).with_hint("the proxy has to describe the request that it asks about")
}

#[cold]
fn contradiction(one: &HeaderName, other: &HeaderName) -> HttpError {
    HttpError::bad_request(format!("the headers `{one}` and `{other}` contradict each other"))
        .with_hint("the proxy has to remove the one that it does not write")
}

/// The status of refusals. A proxy may understand some statuses only: nginx passes on 401 and 403, and takes any other refusal for an
/// error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u16")]
pub enum DenyStatus {
    /// Each refusal has its own status: 429 over a limit, 403 by the deny list, 503 without the store, 400 if the request is malformed.
    #[default]
    Own,
    /// 503 instead of 429.
    ServiceUnavailable,
    /// 401 for all refusals but that of the deny list.
    Unauthorized,
    /// 403 for all refusals.
    Forbidden,
}

impl TryFrom<u16> for DenyStatus {
    type Error = UnsupportedDenyStatus;

    fn try_from(status: u16) -> Result<Self, UnsupportedDenyStatus> {
        match status {
            429 => Ok(Self::Own),
            503 => Ok(Self::ServiceUnavailable),
            401 => Ok(Self::Unauthorized),
            403 => Ok(Self::Forbidden),
            other => Err(UnsupportedDenyStatus(other)),
        }
    }
}

/// A status that is no [`DenyStatus`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not supported here; write 429, 403, 401 or 503")]
pub struct UnsupportedDenyStatus(u16);

impl DenyStatus {
    /// Gives a refusal this status. Its own, which is that for the client, is then in `X-Tollgate-Status`.
    #[must_use]
    pub fn of_refusal(self, mut refusal: FullResponse) -> FullResponse {
        let own = refusal.status();
        let denied = ErrorCode::Denied.status();
        let status = match self {
            Self::Own => return refusal,
            Self::ServiceUnavailable if own == ErrorCode::RateLimitExceeded.status() => {
                ErrorCode::Unavailable.status()
            }
            Self::ServiceUnavailable => own,
            Self::Unauthorized if own == denied => own,
            Self::Unauthorized => ErrorCode::Unauthorized.status(),
            Self::Forbidden => denied,
        };
        *refusal.status_mut() = status;
        refusal.headers_mut().insert(&X_TOLLGATE_STATUS, status_text(own));
        refusal
    }
}

fn status_text(status: StatusCode) -> HeaderValue {
    HeaderValue::from_str(status.as_str()).expect("digits are valid in headers")
}
