//! The address of an upstream server.

use std::fmt;
use std::str::FromStr;

/// How connections to an upstream server are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamScheme {
    /// In clear.
    Http,
    /// Over TLS.
    Https,
}

/// The address of an upstream server, such as `http://10.0.0.5:3000`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamAddress {
    /// In clear or over TLS.
    pub scheme: UpstreamScheme,
    /// A name, or an IP address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// A text that is not the address of an upstream server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an upstream address: {reason}; write it like http://127.0.0.1:3000")]
pub struct UpstreamAddressError {
    text: String,
    reason: &'static str,
}

impl FromStr for UpstreamAddress {
    type Err = UpstreamAddressError;

    fn from_str(text: &str) -> Result<Self, UpstreamAddressError> {
        // A password that does not belong there must not be shown either.
        let shown = || text.rsplit_once('@').map_or(text.to_owned(), |(_, host)| format!("***@{host}"));
        let invalid = |reason| UpstreamAddressError { text: shown(), reason };
        let (scheme, rest) = match text.split_once("://") {
            Some(("http", rest)) => (UpstreamScheme::Http, rest),
            Some(("https", rest)) => (UpstreamScheme::Https, rest),
            Some(_) => return Err(invalid("only http and https are supported")),
            None => (UpstreamScheme::Http, text),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#']) {
            return Err(invalid("it has a path, but requests keep their own"));
        }
        if rest.contains('@') {
            return Err(invalid("it has a user, but requests keep their own credentials"));
        }
        let authority: http::uri::Authority = rest.parse().map_err(|_| invalid("the host is invalid"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = match (authority.port(), scheme) {
            (Some(port), _) => port.as_u16(),
            (None, _) if rest.len() > authority.host().len() => return Err(invalid("the port is invalid")),
            (None, UpstreamScheme::Http) => 80,
            (None, UpstreamScheme::Https) => 443,
        };
        if host.is_empty() { Err(invalid("the host is missing")) } else { Ok(Self { scheme, host, port }) }
    }
}

impl fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            UpstreamScheme::Http => "http",
            UpstreamScheme::Https => "https",
        };
        let brackets = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{scheme}://{}{}{}:{}", brackets.0, self.host, brackets.1, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_displayed() {
        for (text, expected) in [
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("http://127.0.0.1:3000/", "http://127.0.0.1:3000"),
            ("127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("https://api.internal", "https://api.internal:443"),
            ("http://[::1]:80", "http://[::1]:80"),
        ] {
            assert_eq!(text.parse::<UpstreamAddress>().unwrap().to_string(), expected, "{text}");
        }
        for text in [
            "",
            "http://",
            "ftp://a",
            "http://a/b",
            "http://u@a",
            "http://a:99999",
            "http://a b",
            "http://a:",
        ] {
            assert!(text.parse::<UpstreamAddress>().is_err(), "{text}");
        }
    }
}
