//! What a proxy does to headers: those meant for one connection end with it, and the server is told who asked.

use crate::settings::Forwarded;
use http::header::{
    CONNECTION, COOKIE, EXPECT, FORWARDED, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, UPGRADE,
    VIA,
};
use http::{HeaderMap, HeaderValue, Version};
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};
use tollgate_http::headers::{X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO};
use tollgate_http::{HeaderNameKind, ReservedHeaders};

static KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// Programs that get headers as variables take `HTTP_PROXY` for the proxy that they have to use.
static PROXY: HeaderName = HeaderName::from_static("proxy");
static PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

const CONNECTION_UPGRADE: HeaderValue = HeaderValue::from_static("upgrade");
const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");

/// Which headers are there that a proxy has to do something about: most messages have none of them, and one look
/// at all names is cheaper than looking each of these up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Noticed {
    /// Meant for one connection.
    pub(crate) hop_by_hop: bool,
    /// About how the message is sent.
    pub(crate) framing: bool,
}

impl Noticed {
    pub(crate) fn in_(headers: &HeaderMap) -> Self {
        let mut noticed = Self::default();
        headers.keys().for_each(|name| noticed.look_at(name));
        noticed
    }

    #[inline]
    pub(crate) fn look_at(&mut self, name: &HeaderName) {
        match name.as_str() {
            "connection"
            | "upgrade"
            | "keep-alive"
            | "proxy-connection"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy" => self.hop_by_hop = true,
            "transfer-encoding" | "te" | "expect" => self.framing = true,
            _ => {}
        }
    }
}

/// Removes what is meant for one connection only, except how the body is framed. Answers the protocol
/// that the sender wants to change to, if it does. Naming a reserved header in `Connection` does not remove it.
pub(crate) fn remove_hop_by_hop(headers: &mut HeaderMap, reserved: &ReservedHeaders) -> Option<HeaderValue> {
    let mut wants_upgrade = false;
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderValue> = headers.get_all(CONNECTION).iter().cloned().collect();
        headers.remove(CONNECTION);
        for token in named.iter().filter_map(|line| line.to_str().ok()).flat_map(|line| line.split(',')) {
            let token = token.trim();
            if token.eq_ignore_ascii_case("upgrade") {
                wants_upgrade = true;
            } else if ["keep-alive", "close"].iter().all(|usual| !token.eq_ignore_ascii_case(usual))
                && let Ok(name) = HeaderName::from_bytes(token.as_bytes())
                && reserved.kind(&name) != HeaderNameKind::Reserved
            {
                headers.remove(name);
            }
        }
    }
    let upgrade = headers.remove(UPGRADE);
    for name in [&KEEP_ALIVE, &PROXY_CONNECTION, &PROXY_AUTHENTICATE, &PROXY_AUTHORIZATION, &PROXY] {
        headers.remove(name);
    }
    upgrade.filter(|protocol| wants_upgrade && !is_http(protocol))
}

/// A change to another HTTP would take the rest of the connection out of our sight.
fn is_http(protocol: &HeaderValue) -> bool {
    let text = String::from_utf8_lossy(protocol.as_bytes()).to_ascii_lowercase();
    text.split(',').any(|token| {
        let token = token.trim();
        token.starts_with("h2") || token.starts_with("http")
    })
}

/// Asks the next hop for a change of protocol, or grants one.
pub(crate) fn put_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, CONNECTION_UPGRADE);
    headers.insert(UPGRADE, protocol);
}

/// The connection ends after this answer.
pub(crate) fn put_close(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
}

/// The parts of a request's headers that a server must not see as the client wrote them.
pub(crate) fn prepare_request(headers: &mut HeaderMap, version: Version) {
    // The gateway itself asks for the body when the server wants it.
    headers.remove(EXPECT);
    if let Some(te) = headers.get(TE) {
        let trailers = te
            .to_str()
            .is_ok_and(|te| te.split(',').any(|coding| coding.trim().eq_ignore_ascii_case("trailers")));
        headers.remove(TE);
        if trailers {
            headers.insert(TE, TRAILERS);
        }
    }
    // HTTP/2 may send one line for each cookie; HTTP/1.1 has one line.
    if version == Version::HTTP_2 && headers.get_all(COOKIE).iter().nth(1).is_some() {
        let cookies: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..])) {
            headers.insert(COOKIE, joined);
        }
    }
}

/// What servers are told about one client connection; put together once for all its requests.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    address: HeaderValue,
    node: HeaderValue,
    proto: HeaderValue,
    is_trusted: bool,
}

impl Origin {
    /// `secure` if it came over TLS.
    pub(crate) fn new(peer: SocketAddr, secure: bool, trusted: &[IpNet]) -> Self {
        let ip = peer.ip().to_canonical();
        let proto = if secure { "https" } else { "http" };
        let node = match ip {
            IpAddr::V4(ip) => format!("for={ip};proto={proto}"),
            IpAddr::V6(ip) => format!("for=\"[{ip}]\";proto={proto}"),
        };
        let value = |text: String| HeaderValue::try_from(text).expect("addresses are plain ASCII");
        Self {
            address: value(ip.to_string()),
            node: value(node),
            proto: HeaderValue::from_static(proto),
            is_trusted: trusted.iter().any(|net| net.contains(&ip)),
        }
    }

    pub(crate) fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// Writes who asked, where the [scrubber](crate::scrub) has left nothing that a stranger says about others. What a
    /// trusted proxy says is kept and added to.
    pub(crate) fn write(&self, headers: &mut HeaderMap, host: &HeaderValue, settings: Forwarded) {
        if settings.x_forwarded {
            self.list(headers, &X_FORWARDED_FOR, &self.address);
            self.once(headers, &X_FORWARDED_PROTO, &self.proto);
            self.once(headers, &X_FORWARDED_HOST, host);
        }
        if settings.forwarded {
            self.list(headers, &FORWARDED, &self.node);
        }
    }

    fn once(&self, headers: &mut HeaderMap, name: &HeaderName, value: &HeaderValue) {
        if !(self.is_trusted && headers.contains_key(name)) {
            headers.insert(name, value.clone());
        }
    }

    fn list(&self, headers: &mut HeaderMap, name: &HeaderName, value: &HeaderValue) {
        // One line, because many servers read only the first or the last of several.
        let value = if self.is_trusted && headers.contains_key(name) {
            let lines: Vec<&[u8]> =
                headers.get_all(name).iter().chain([value]).map(HeaderValue::as_bytes).collect();
            HeaderValue::from_bytes(&lines.join(&b", "[..])).expect("parts of headers are header text")
        } else {
            value.clone()
        };
        headers.insert(name, value);
    }
}

/// Says that the message came through here.
pub(crate) fn put_via(headers: &mut HeaderMap, version: Version) {
    let via = if version == Version::HTTP_2 { "2 tollgate" } else { "1.1 tollgate" };
    headers.append(VIA, HeaderValue::from_static(via));
}
