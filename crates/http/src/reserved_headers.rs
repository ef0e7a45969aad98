//! Reserved header names: those that Tollgate writes into requests, or reads from them.
//!
//! A client must not remove one by naming it in `Connection`, nor add one in a trailer, nor send a *double*: a name that differs from
//! a reserved one in its punctuation only. Many servers pass headers on as variables, in which `X-Forwarded-For` and
//! `X_Forwarded_For` are the same.

use crate::headers::{CONNECTION, FORWARDED};
use crate::identity::IdentityExtractor;
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;
use std::sync::Arc;
use tollgate_limiter::Limiter;

/// Headers about the target and the end of a message, and about the connection.
const MESSAGE: [&str; 13] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// More headers that are not allowed in trailers (RFC 9110, 6.5.1): receivers act on them before they read the body.
const NOT_IN_TRAILERS: [&str; 17] = [
    "age",
    "authorization",
    "cache-control",
    "content-encoding",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "expires",
    "location",
    "max-forwards",
    "pragma",
    "range",
    "retry-after",
    "set-cookie",
    "vary",
    "www-authenticate",
];

/// The prefix of forwarding headers.
const X_FORWARDED: &str = "x-forwarded-";

/// What a header name is to Tollgate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderNameKind {
    /// Reserved.
    Reserved,
    /// Not reserved, but some servers take it for a reserved name.
    Double,
    /// Any other.
    Other,
}

/// The header names that Tollgate writes into requests or reads from them: those of messages and of forwarding, of
/// identities, and of the flags of the rules in force.
#[derive(Clone, Debug)]
pub struct ReservedHeaders {
    limiter: Arc<Limiter>,
    /// The headers of identities.
    identities: Vec<HeaderName>,
    /// Other headers that are written.
    written: Vec<HeaderName>,
    /// Those of identities that are read from trusted peers only.
    trusted: Vec<HeaderName>,
    /// One of them has other punctuation than hyphens: then plain names may be doubles of it.
    has_odd_identity: bool,
}

impl ReservedHeaders {
    /// The headers of `identities`, and the flags of the rules of `limiter`.
    pub fn new(limiter: Arc<Limiter>, identities: &IdentityExtractor) -> Self {
        let trusted = identities.trusted_headers();
        let identities: Vec<HeaderName> = identities.headers().into_iter().chain(trusted.clone()).collect();
        let has_odd_identity = identities.iter().any(|name| is_odd(name.as_str()));
        Self { limiter, identities, written: Vec::new(), trusted, has_odd_identity }
    }

    /// With another header that Tollgate writes into requests.
    #[must_use]
    pub fn with_written(mut self, name: HeaderName) -> Self {
        self.written.push(name);
        self
    }

    /// The headers that are read from trusted peers only.
    pub fn trusted(&self) -> &[HeaderName] {
        &self.trusted
    }

    /// Whether `name` can be a double at all: a cheap check before [`ReservedHeaders::kind`], false for nearly all names.
    #[inline]
    pub fn may_be_double(&self, name: &HeaderName) -> bool {
        self.has_odd_identity || is_odd(name.as_str())
    }

    /// The kind of `name`.
    pub fn kind(&self, name: &HeaderName) -> HeaderNameKind {
        let text = name.as_str();
        if is_forwarding(name) || MESSAGE.contains(&text) || self.own().any(|own| own == name) {
            return HeaderNameKind::Reserved;
        }
        let flags = if self.limiter.has_flags() { self.limiter.flag_headers() } else { Vec::new() };
        if flags.contains(&text) {
            return HeaderNameKind::Reserved;
        }
        let is_double = |reserved: &str| is_same(reserved, text);
        let begins = text.get(..X_FORWARDED.len()).is_some_and(|begin| is_same(X_FORWARDED, begin));
        let own = self.own().map(HeaderName::as_str);
        let mut names = MESSAGE.into_iter().chain(own).chain(flags);
        if begins || names.any(is_double) { HeaderNameKind::Double } else { HeaderNameKind::Other }
    }

    /// The headers that are reserved because of settings.
    fn own(&self) -> impl Iterator<Item = &HeaderName> {
        self.identities.iter().chain(&self.written)
    }

    /// Removes what is not allowed in trailers: reserved names and their doubles, and what receivers act on before the body.
    pub fn clean_trailers(&self, trailers: &mut HeaderMap) {
        let is_late = |name: &HeaderName| {
            let text = name.as_str();
            NOT_IN_TRAILERS.iter().any(|other| is_same(other, text))
                || ["x-ratelimit-", "ratelimit", "if-"].iter().any(|begin| text.starts_with(begin))
                || self.kind(name) != HeaderNameKind::Other
        };
        remove_all(trailers, is_late);
    }
}

/// Whether `name` is `Forwarded` or begins with `X-Forwarded-`.
#[inline]
pub fn is_forwarding(name: &HeaderName) -> bool {
    name == FORWARDED || name.as_str().starts_with(X_FORWARDED)
}

/// Removes all headers whose name `is_removed`.
pub fn remove_all(headers: &mut HeaderMap, is_removed: impl Fn(&HeaderName) -> bool) {
    let removed: SmallVec<[HeaderName; 4]> =
        headers.keys().filter(|name| is_removed(name)).cloned().collect();
    for name in removed {
        headers.remove(name);
    }
}

/// Removes the client's own headers under the names of flags or their doubles, and these names from `Connection`, so that no proxy
/// removes the flags.
pub(crate) fn clear_flags(headers: &mut HeaderMap, flags: &[&str]) {
    let is_flag = |text: &str| flags.iter().any(|flag| is_same(flag, text));
    remove_all(headers, |name| is_flag(name.as_str()));
    let tokens =
        |line: &HeaderValue| line.to_str().map(|line| line.split(',').any(|name| is_flag(name.trim())));
    // A line that is not text might name anything.
    if headers.get_all(&CONNECTION).iter().any(|line| tokens(line).unwrap_or(true)) {
        let lines = headers.get_all(&CONNECTION).iter().filter_map(|line| line.to_str().ok());
        let names = lines.flat_map(|line| line.split(',')).map(str::trim);
        let kept: Vec<&str> = names.filter(|name| !name.is_empty() && !is_flag(name)).collect();
        let kept = HeaderValue::try_from(kept.join(", "));
        headers.remove(&CONNECTION);
        if let Ok(kept) = kept
            && !kept.is_empty()
        {
            headers.insert(&CONNECTION, kept);
        }
    }
}

/// Whether a name has punctuation other than hyphens.
#[inline]
fn is_odd(name: &str) -> bool {
    // The characters of header names: letters, digits, and ! # $ % & ' * + - . ^ _ ` | ~
    let is_odd = |byte: &u8| *byte < b'-' || *byte == b'.' || (b'^'..=b'`').contains(byte) || *byte > b'z';
    name.as_bytes().iter().fold(false, |odd, byte| odd | is_odd(byte))
}

/// Whether two names differ in case and punctuation only.
fn is_same(one: &str, other: &str) -> bool {
    let fold = |byte: u8| if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' };
    one.len() == other.len() && one.bytes().map(fold).eq(other.bytes().map(fold))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::IdentityOptions;
    use std::path::Path;
    use tollgate_core::document::Document;
    use tollgate_core::rules::load;
    use tollgate_limiter::{Clock, ManualClock, MemoryStore};

    fn names() -> ReservedHeaders {
        let limiter = Limiter::new(MemoryStore::new(1 << 20), Clock::Manual(ManualClock::new(0)));
        let rules = "rules: [{ id: odd, limit: 1/h, on_exceed: { flag: { header: X-Captcha } } }]";
        let loaded = load("rules.yaml", rules).unwrap();
        limiter.install(loaded.rules, loaded.lists).unwrap();
        let identity = "{ api_key: [{ header: X-Api-Key }, bearer], user: { trusted_header: X_User },
            tenant: { cookie: t }, cost: { header: X-Cost }, client_ip: { trusted: [10.0.0.0/8] } }";
        let mut document = Document::parse("identity.yaml", identity).unwrap();
        let options: IdentityOptions = document.decode().unwrap();
        ReservedHeaders::new(Arc::new(limiter), &IdentityExtractor::open(&options, Path::new("")).unwrap())
    }

    #[test]
    fn kinds_of_names() {
        let names = names();
        for (name, kind) in [
            ("X-Forwarded-For", HeaderNameKind::Reserved),
            ("x-forwarded-anything", HeaderNameKind::Reserved),
            ("Forwarded", HeaderNameKind::Reserved),
            ("Host", HeaderNameKind::Reserved),
            ("Content-Length", HeaderNameKind::Reserved),
            ("X-Api-Key", HeaderNameKind::Reserved),
            ("Authorization", HeaderNameKind::Reserved),
            ("Cookie", HeaderNameKind::Reserved),
            ("X-Cost", HeaderNameKind::Reserved),
            ("X-Captcha", HeaderNameKind::Reserved),
            ("X_User", HeaderNameKind::Reserved),
            ("X_Forwarded_For", HeaderNameKind::Double),
            ("X-Forwarded_For", HeaderNameKind::Double),
            ("x.forwarded.proto", HeaderNameKind::Double),
            ("X_Forwarded_Anything", HeaderNameKind::Double),
            ("Content_Length", HeaderNameKind::Double),
            ("Transfer_Encoding", HeaderNameKind::Double),
            ("x_api_key", HeaderNameKind::Double),
            ("X~Api|Key", HeaderNameKind::Double),
            ("X_Captcha", HeaderNameKind::Double),
            ("X-User", HeaderNameKind::Double),
            ("X-Forwarded", HeaderNameKind::Other),
            ("X_Public", HeaderNameKind::Other),
            ("X-Api-Keys", HeaderNameKind::Other),
            ("Accept", HeaderNameKind::Other),
        ] {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            assert_eq!(names.kind(&name), kind, "{name}");
            assert!(kind != HeaderNameKind::Double || names.may_be_double(&name), "{name}");
        }
        assert_eq!(names.trusted(), ["x_user", "x-cost"]);
    }

    #[test]
    fn names_with_other_punctuation_than_hyphens_are_odd() {
        for byte in 0..=u8::MAX {
            let Ok(name) = HeaderName::from_bytes(&[b'a', byte]) else { continue };
            assert_eq!(is_odd(name.as_str()), !byte.is_ascii_alphanumeric() && byte != b'-', "{name}");
        }
    }

    #[test]
    fn flags_cannot_be_removed_by_connection() {
        for (lines, kept) in [
            (&["X-Captcha"][..], None),
            (&["keep-alive, x-captcha , X_CAPTCHA", "close"], Some("keep-alive, close")),
            (&["keep-alive"], Some("keep-alive")),
            (&["upgrade, \u{e9}"], None),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(&CONNECTION, HeaderValue::from_bytes(line.as_bytes()).unwrap());
            }
            for name in ["x-captcha", "x_captcha", "x-public"] {
                headers.insert(name, HeaderValue::from_static("forged"));
            }
            clear_flags(&mut headers, &["x-captcha"]);
            assert_eq!(headers.get(&CONNECTION).map(|line| line.to_str().unwrap()), kept, "{lines:?}");
            let left: Vec<&str> =
                headers.keys().map(HeaderName::as_str).filter(|name| *name != "connection").collect();
            assert_eq!(left, ["x-public"], "{lines:?}");
        }
    }
}
