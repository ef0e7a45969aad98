//! The host of a request in one canonical form: lower case, without a port, without a trailing dot.

use crate::error::HttpError;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Request, Uri};
use std::borrow::Cow;
use std::net::Ipv6Addr;

/// The canonical form of a host as it is written in a target or in `Host`; borrowed if `text` has that form already. None if `text` is
/// invalid: servers may interpret it differently.
#[inline]
pub fn canonical(text: &str) -> Option<Cow<'_, str>> {
    if text.starts_with('[') {
        return bracketed(text);
    }
    let (name, port) = text.split_once(':').unwrap_or((text, ""));
    let name = name.strip_suffix('.').unwrap_or(name);
    let mut is_lower = true;
    let mut before = b'.';
    for byte in name.bytes() {
        match byte {
            b'.' if before == b'.' => return None,
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' | b'.' => {}
            b'A'..=b'Z' => is_lower = false,
            _ => return None,
        }
        before = byte;
    }
    // An empty text is no host at all, which is valid; a port without a host is not.
    if !is_port(port) || before == b'.' && !text.is_empty() {
        return None;
    }
    Some(if is_lower { Cow::Borrowed(name) } else { Cow::Owned(name.to_ascii_lowercase()) })
}

/// The one form of an IPv6 address.
fn bracketed(text: &str) -> Option<Cow<'_, str>> {
    let (address, port) = text[1..].split_once(']')?;
    let address: Ipv6Addr = address.parse().ok()?;
    let has_port = port.strip_prefix(':').map_or(port.is_empty(), is_port);
    has_port.then(|| Cow::Owned(format!("[{address}]")))
}

/// Digits, or nothing at all.
fn is_port(text: &str) -> bool {
    text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The canonical host of a request with this target and these headers, if it names one.
pub fn of_request<'r>(uri: &'r Uri, headers: &'r HeaderMap) -> Result<Option<Cow<'r, str>>, HttpError> {
    let mut lines = headers.get_all(HOST).iter();
    let text = match (uri.authority(), lines.next(), lines.next()) {
        (_, _, Some(_)) => return Err(not_one_host()),
        (Some(authority), _, _) => authority.as_str(),
        (None, Some(line), _) => line.to_str().map_err(|_| not_one_host())?,
        (None, None, _) => return Ok(None),
    };
    let host = canonical(text).ok_or_else(not_one_host)?;
    Ok(Some(host).filter(|host| !host.is_empty()))
}

/// Sets `Host` to the host of the target, if both name one: the target counts, and the service behind the limiter may read the
/// other.
pub fn align_host_header<B>(request: &mut Request<B>) {
    let Some(authority) = request.uri().authority() else { return };
    let mut lines = request.headers().get_all(HOST).iter();
    let differs = lines.next().is_some_and(|line| line.as_bytes() != authority.as_str().as_bytes());
    // A request with several `Host` lines is refused elsewhere.
    if differs
        && lines.next().is_none()
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        request.headers_mut().insert(HOST, host);
    }
}

fn not_one_host() -> HttpError {
    HttpError::bad_request("a request names exactly one host")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_forms() {
        for (text, expected) in [
            ("", Some("")),
            ("a", Some("a")),
            ("Shop.Example", Some("shop.example")),
            ("shop.example:80", Some("shop.example")),
            ("shop.example:", Some("shop.example")),
            ("shop.example.", Some("shop.example")),
            ("SHOP.example.:8080", Some("shop.example")),
            ("10.0.0.1:80", Some("10.0.0.1")),
            ("my_host-1~x", Some("my_host-1~x")),
            ("[::1]", Some("[::1]")),
            ("[0:0::1]:80", Some("[::1]")),
            ("[2001:DB8::1]", Some("[2001:db8::1]")),
            ("evil.com:x.int.example", None),
            ("evil.com:80.int.example", None),
            ("a:80:80", None),
            ("a:123456", None),
            ("a,b", None),
            ("a b", None),
            ("user@a", None),
            ("a/b", None),
            ("a#b", None),
            ("a%2eb", None),
            ("a*", None),
            (".", None),
            (":80", None),
            (".a", None),
            ("a..", None),
            ("a..b", None),
            ("[::1", None),
            ("[::1]x", None),
            ("[::1].int.example", None),
            ("[x]", None),
            ("a[::1]", None),
            ("b\u{fc}cher.example", None),
        ] {
            assert_eq!(canonical(text).as_deref(), expected, "{text:?}");
            assert!(expected.is_none_or(|form| canonical(form).as_deref() == expected), "{text:?}");
        }
        assert!(matches!(canonical("shop.example:80"), Some(Cow::Borrowed(_))));
    }
}
