//! What a gateway is told: plain data, checked where it is read.

use ipnet::IpNet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use tollgate_listen::MinRate;

/// Everything a gateway forwards by.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where requests go. A host that is named beats a pattern beats any; then the longest path wins.
    pub routes: Vec<Route>,
    /// Those that answer.
    pub upstreams: Vec<Upstream>,
    /// Whose forwarding headers are believed, and whose connections are never capped.
    pub trusted: Vec<IpNet>,
    /// What upstreams are told about the client.
    pub forwarded: Forwarded,
    /// What becomes of headers that an upstream may take for reserved ones.
    pub doubles: Doubles,
    /// How slow bodies may be, unless a route says otherwise.
    pub bodies: BodyLimits,
}

impl Settings {
    /// Everything goes to one upstream.
    pub fn to(upstream: Upstream) -> Self {
        Self {
            routes: vec![Route { upstream: upstream.name.clone(), ..Route::default() }],
            upstreams: vec![upstream],
            trusted: Vec::new(),
            forwarded: Forwarded::default(),
            doubles: Doubles::default(),
            bodies: BodyLimits::default(),
        }
    }
}

/// Which requests go to an upstream.
#[derive(Clone, Debug, Default)]
pub struct Route {
    /// Names without a port, such as `api.example.com` or `*.example.com`; empty for any.
    pub hosts: Vec<String>,
    /// Prefixes that end with a segment: `/v1` is `/v1` and `/v1/users`, not `/v10`; empty for any.
    pub paths: Vec<String>,
    /// The upstream's name.
    pub upstream: String,
    /// How slow bodies may be; none for what the [`Settings`] say.
    pub bodies: Option<BodyLimits>,
}

/// How slow bodies may be, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimits {
    /// What a client has to send while its body is waited for, and to take of what is ready for it. None for clients
    /// that may be as slow as they like.
    pub min_rate: Option<MinRate>,
    /// How long a request may take from its head to the end of its answer.
    pub total_time: Option<Duration>,
}

impl Default for BodyLimits {
    fn default() -> Self {
        Self { min_rate: Some(MinRate::default()), total_time: None }
    }
}

/// Servers that are as good as each other.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// What routes call it.
    pub name: String,
    /// Where they are.
    pub addresses: Vec<Address>,
    /// Which of them is next.
    pub balance: Balance,
    /// How long a connection may take.
    pub connect_time: Duration,
    /// How long the head of an answer may take, from the request's sending.
    pub response_time: Duration,
    /// How long a connection is kept without use.
    pub idle_time: Duration,
    /// Idle connections that a thread keeps to each address.
    pub most_idle: usize,
    /// How often a request that may be sent again is sent again.
    pub retries: u32,
    /// Failures in a row after which an address is ejected for a while.
    pub most_failures: u32,
    /// How long it is ejected the first time; each further time doubles it, up to a minute.
    pub first_ejection: Duration,
    /// Asks by itself whether they are healthy.
    pub health: Option<HealthCheck>,
    /// What becomes of a request that counts as in flight when its client hangs up.
    pub on_client_gone: OnClientGone,
}

impl Upstream {
    /// An upstream with the defaults.
    pub fn new(name: impl Into<String>, addresses: Vec<Address>) -> Self {
        Self {
            name: name.into(),
            addresses,
            balance: Balance::default(),
            connect_time: Duration::from_secs(2),
            response_time: Duration::from_secs(60),
            idle_time: Duration::from_secs(60),
            most_idle: 256,
            retries: 1,
            most_failures: 5,
            first_ejection: Duration::from_secs(1),
            health: None,
            on_client_gone: OnClientGone::default(),
        }
    }
}

/// What becomes of a request that counts as in flight (`algorithm: concurrency`) when its client hangs up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnClientGone {
    /// The answer is waited for without the client, and the request counts until then.
    #[default]
    Finish,
    /// The connection to the upstream is closed, and the request counts no more: for upstreams that stop then.
    Cancel,
}

/// Which server is next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// The one with the fewest requests in flight.
    #[default]
    LeastLoaded,
    /// One after the other.
    RoundRobin,
}

/// Asks an upstream's servers whether they are well: any status below 400 says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// What is asked for.
    pub path: String,
    /// How often.
    pub interval: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
}

/// What upstreams are told about the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// `X-Forwarded-For`, `-Proto` and `-Host`.
    pub x_forwarded: bool,
    /// `Forwarded` (RFC 7239).
    pub forwarded: bool,
    /// `Via`, in both directions.
    pub via: bool,
}

impl Default for Forwarded {
    fn default() -> Self {
        Self { x_forwarded: true, forwarded: false, via: false }
    }
}

/// What becomes of headers whose names differ from reserved ones in punctuation only, such as `X_Forwarded_For`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doubles {
    /// They are removed.
    #[default]
    Drop,
    /// They reach the upstream, which must tell them apart.
    Pass,
}

/// How an upstream is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// In clear.
    Http,
    /// Over TLS.
    Https,
}

/// Where a server is: `http://10.0.0.5:3000`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// How it is spoken to.
    pub scheme: Scheme,
    /// A name, or an IP address without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// A text that is no address of an upstream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an upstream's address: {reason}; write it like http://127.0.0.1:3000")]
pub struct AddressError {
    text: String,
    reason: &'static str,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        // A password that should not stand there must not be shown either.
        let shown = || text.rsplit_once('@').map_or(text.to_owned(), |(_, host)| format!("***@{host}"));
        let bad = |reason| AddressError { text: shown(), reason };
        let (scheme, rest) = match text.split_once("://") {
            Some(("http", rest)) => (Scheme::Http, rest),
            Some(("https", rest)) => (Scheme::Https, rest),
            Some(_) => return Err(bad("only http and https are spoken")),
            None => (Scheme::Http, text),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#']) {
            return Err(bad("it has a path, but requests keep their own"));
        }
        if rest.contains('@') {
            return Err(bad("it has a user, but requests keep their own credentials"));
        }
        let authority: http::uri::Authority = rest.parse().map_err(|_| bad("its host cannot be read"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = match (authority.port(), scheme) {
            (Some(port), _) => port.as_u16(),
            (None, _) if rest.len() > authority.host().len() => return Err(bad("its port cannot be read")),
            (None, Scheme::Http) => 80,
            (None, Scheme::Https) => 443,
        };
        if host.is_empty() { Err(bad("it has no host")) } else { Ok(Self { scheme, host, port }) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        let brackets = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{scheme}://{}{}{}:{}", brackets.0, self.host, brackets.1, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, expected) in [
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("http://127.0.0.1:3000/", "http://127.0.0.1:3000"),
            ("127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("https://api.internal", "https://api.internal:443"),
            ("http://[::1]:80", "http://[::1]:80"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), expected, "{text}");
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
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
