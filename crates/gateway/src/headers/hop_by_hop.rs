//! Headers that are meant for one connection only.

use http::header::{CONNECTION, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, UPGRADE};
use http::{HeaderMap, HeaderValue};
use tollgate_http::{HeaderNameKind, ReservedHeaders};

static KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// CGI programs read this header as `HTTP_PROXY`, the proxy for their own requests.
static PROXY: HeaderName = HeaderName::from_static("proxy");
static PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

const CONNECTION_UPGRADE: HeaderValue = HeaderValue::from_static("upgrade");

/// The kinds of headers in a message that a proxy must handle. Most messages have none of them, and one pass over all
/// names is cheaper than a lookup of each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeaderKinds {
    /// For one connection only.
    pub(crate) hop_by_hop: bool,
    /// About the framing of the message.
    pub(crate) framing: bool,
}

impl HeaderKinds {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut kinds = Self::default();
        headers.keys().for_each(|name| kinds.add(name));
        kinds
    }

    #[inline]
    pub(crate) fn add(&mut self, name: &HeaderName) {
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

/// Removes hop-by-hop headers other than those of the framing. Returns the protocol that the sender wants to upgrade to.
/// A reserved header is kept even if `Connection` names it.
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

/// After an upgrade to another version of HTTP, later requests of the connection would bypass the limits.
fn is_http(protocol: &HeaderValue) -> bool {
    let text = String::from_utf8_lossy(protocol.as_bytes()).to_ascii_lowercase();
    text.split(',').any(|token| {
        let token = token.trim();
        token.starts_with("h2") || token.starts_with("http")
    })
}

/// Requests or grants an upgrade to `protocol`.
pub(crate) fn put_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, CONNECTION_UPGRADE);
    headers.insert(UPGRADE, protocol);
}
