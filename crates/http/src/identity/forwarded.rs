//! The syntax of `X-Forwarded-For` and `Forwarded`.
//!
//! Lines are split from the right, also where strings are quoted: the right end was written by a trusted proxy, and nothing to the
//! left of it can change how it is parsed.

use super::client_ip::ForwardedHeader;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses of one line of `header`, from right to left; none for an element without one.
pub(super) fn hops(header: ForwardedHeader, line: &str) -> impl Iterator<Item = Option<IpAddr>> {
    let elements = RightToLeftParts { rest: Some(line), separator: b',' };
    // Empty elements of a list are ignored.
    elements.map(trim).filter(|element| !element.is_empty()).map(move |element| match header {
        ForwardedHeader::XForwardedFor => address(element),
        ForwardedHeader::Forwarded => forwarded_for(element),
    })
}

/// The address in one element such as `for="[2001:db8::1]:4711";proto=https`.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let mut found = None;
    for pair in (RightToLeftParts { rest: Some(element), separator: b';' }) {
        let Some((name, value)) = pair.split_once('=') else { continue };
        if !trim(name).eq_ignore_ascii_case("for") {
            continue;
        }
        if found.replace(trim(value)).is_some() {
            return None;
        }
    }
    let value = found?;
    match value.strip_prefix('"') {
        Some(rest) => address(rest.strip_suffix('"')?),
        None => address(value),
    }
}

/// An address, with or without a port. Identifiers such as `unknown` and `_hidden` are not.
pub(crate) fn address(text: &str) -> Option<IpAddr> {
    if let Some(rest) = text.strip_prefix('[') {
        let (inner, port) = rest.split_once(']')?;
        let address = inner.parse::<Ipv6Addr>().ok()?;
        return (port.is_empty() || is_port(port)).then_some(address.into());
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address);
    }
    let colon = text.find(':')?;
    is_port(&text[colon..]).then_some(())?;
    text[..colon].parse::<Ipv4Addr>().ok().map(IpAddr::from)
}

/// `:4711`, or an obfuscated one such as `:_p`.
fn is_port(text: &str) -> bool {
    let Some(port) = text.strip_prefix(':') else { return false };
    let is_number = (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_obscured = port.len() > 1
        && port.starts_with('_')
        && port.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    is_number || is_obscured
}

fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

/// The parts of a text from right to left, split at separators outside of quotes.
struct RightToLeftParts<'a> {
    rest: Option<&'a str>,
    separator: u8,
}

impl<'a> Iterator for RightToLeftParts<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let rest = self.rest?;
        let mut in_quotes = false;
        for (at, byte) in rest.bytes().enumerate().rev() {
            if byte == b'"' {
                in_quotes = !in_quotes;
            } else if byte == self.separator && !in_quotes {
                self.rest = Some(&rest[..at]);
                return Some(&rest[at + 1..]);
            }
        }
        self.rest = None;
        Some(rest)
    }
}
