//! The headers that tell a server about the client: `X-Forwarded-*` and `Forwarded`.

use crate::settings::ForwardedHeaders;
use http::header::{FORWARDED, HeaderName};
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue};
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};
use tollgate_http::headers::{X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO};

/// What servers are told about a client connection; built once for all its requests.
#[derive(Clone, Debug)]
pub(crate) struct ClientOrigin {
    address: HeaderValue,
    node: HeaderValue,
    proto: HeaderValue,
    is_trusted: bool,
}

impl ClientOrigin {
    /// The peer is connected with `scheme`.
    pub(crate) fn new(peer: SocketAddr, scheme: &Scheme, trusted: &[IpNet]) -> Self {
        let ip = peer.ip().to_canonical();
        let node = match ip {
            IpAddr::V4(ip) => format!("for={ip};proto={scheme}"),
            IpAddr::V6(ip) => format!("for=\"[{ip}]\";proto={scheme}"),
        };
        let value = |text: &str| HeaderValue::try_from(text).expect("addresses and schemes are plain ASCII");
        Self {
            address: value(&ip.to_string()),
            node: value(&node),
            proto: value(scheme.as_str()),
            is_trusted: trusted.iter().any(|net| net.contains(&ip)),
        }
    }

    /// Whether the peer is a trusted proxy.
    pub(crate) fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// Writes the headers. The [scrubber](crate::scrub) has already removed those of an untrusted peer; those of a trusted
    /// proxy are kept, and lists are appended to.
    pub(crate) fn write(&self, headers: &mut HeaderMap, host: &HeaderValue, settings: ForwardedHeaders) {
        if settings.x_forwarded {
            self.append(headers, &X_FORWARDED_FOR, &self.address);
            self.put_unless_trusted(headers, &X_FORWARDED_PROTO, &self.proto);
            self.put_unless_trusted(headers, &X_FORWARDED_HOST, host);
        }
        if settings.forwarded {
            self.append(headers, &FORWARDED, &self.node);
        }
    }

    fn put_unless_trusted(&self, headers: &mut HeaderMap, name: &HeaderName, value: &HeaderValue) {
        if !(self.is_trusted && headers.contains_key(name)) {
            headers.insert(name, value.clone());
        }
    }

    fn append(&self, headers: &mut HeaderMap, name: &HeaderName, value: &HeaderValue) {
        // One line, because many servers read only the first or the last of several.
        let value = if self.is_trusted && headers.contains_key(name) {
            let lines: Vec<&[u8]> =
                headers.get_all(name).iter().chain([value]).map(HeaderValue::as_bytes).collect();
            HeaderValue::from_bytes(&lines.join(&b", "[..])).expect("parts of header values are header text")
        } else {
            value.clone()
        };
        headers.insert(name, value);
    }
}
