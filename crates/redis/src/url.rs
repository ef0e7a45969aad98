//! The URL of a store.
//!
//! | form | what it is |
//! |---|---|
//! | `redis://[user:password@]host[:port][/db]` | one server |
//! | `redis+unix:///path`, `unix:///path` | one server, by its socket |
//! | `redis-sentinel://[user:password@]host[:port],…/name[/db]` | the primary that Sentinels call `name` |
//! | `redis-cluster://[user:password@]host[:port],…` | a Cluster, by some of its nodes |
//!
//! `rediss://`, `rediss-sentinel://` and `rediss-cluster://` use TLS; `?ca=file` names the authorities to
//! trust instead of the system's. A password's special characters are percent-encoded, and no message ever
//! shows it: where an `@` or a `/` is missing, any part of the address may be a part of the password, so errors quote
//! none of it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// The URL of a store: its servers, logins and TLS.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    pub(crate) kind: StoreKind,
    /// Servers, Sentinels or some nodes; at least one.
    pub(crate) addresses: Vec<ServerAddress>,
    pub(crate) login: Login,
    pub(crate) sentinel_login: Login,
    pub(crate) db: u32,
    pub(crate) tls: bool,
    /// A PEM file with the authorities to trust.
    pub(crate) ca: Option<PathBuf>,
}

/// How the servers are arranged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    /// One server.
    Standalone,
    /// A primary with replicas, watched by Sentinels that know it by this name.
    Sentinel(String),
    /// Many primaries, each with its slots.
    Cluster,
}

/// Where one server listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum ServerAddress {
    Tcp(String, u16),
    Unix(PathBuf),
}

/// A name and a password, either of which may be missing.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// Why a text is not the URL of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store's address cannot be used: {problem}\n  hint: {hint}")]
pub struct StoreUrlError {
    problem: String,
    hint: &'static str,
}

const FORMS: &str = "use redis://host:6379, redis+unix:///run/redis.sock, redis-sentinel://host1,host2/name or \
     redis-cluster://host1,host2; rediss… for TLS";
const ENCODE: &str = "write special characters of a password percent-encoded: %40 for @, %2F for /, %3F for ?, \
     %25 for %, as in redis://:p%40ss@host:6379";
const HOSTS: &str = "write it as in redis://host:6379 or redis://[::1]:6379";
const SEVERAL: &str =
    "for several servers use redis-cluster://host1,host2 or redis-sentinel://host1,host2/name";
const DATABASE: &str = "write a number after the slash, as in redis://host:6379/2, or nothing for 0";
const NAME: &str = "name the primary as the Sentinels do, as in redis-sentinel://host1,host2,host3/mymaster";
const OPTIONS: &str =
    "known are ca (a PEM file, with TLS), and for Sentinels sentinel_user and sentinel_password";

fn problem<T>(problem: impl Into<String>, hint: &'static str) -> Result<T, StoreUrlError> {
    Err(StoreUrlError { problem: problem.into(), hint })
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        let Some((scheme, rest)) = text.trim().split_once("://") else {
            return problem("it does not begin with a scheme such as redis://", FORMS);
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // The last @: a password with an @ that is not encoded is accepted.
        let (login, location) = match rest.rsplit_once('@') {
            Some((login, location)) => (Login::parse(login)?, location),
            // Then what stands before the ? may well be the first half of a password.
            None if query.contains('@') => return problem("there is a ? before the @", ENCODE),
            None => (Login::default(), rest),
        };
        let (form, tls) = match scheme {
            "redis" => (UrlForm::Standalone, false),
            "rediss" => (UrlForm::Standalone, true),
            "redis+unix" | "unix" => (UrlForm::Unix, false),
            "redis-sentinel" => (UrlForm::Sentinel, false),
            "rediss-sentinel" => (UrlForm::Sentinel, true),
            "redis-cluster" => (UrlForm::Cluster, false),
            "rediss-cluster" => (UrlForm::Cluster, true),
            _ => return problem("its scheme is not known", FORMS),
        };
        let mut url = form.locate(location)?;
        url.login = login;
        url.tls = tls;
        url.options(query)?;
        Ok(url)
    }
}

#[derive(Clone, Copy)]
enum UrlForm {
    Standalone,
    Unix,
    Sentinel,
    Cluster,
}

impl UrlForm {
    /// Parses what follows the login.
    fn locate(self, location: &str) -> Result<StoreUrl, StoreUrlError> {
        if let Self::Unix = self {
            if !location.starts_with('/') {
                return problem(
                    "a socket is named by its whole path",
                    "write three slashes, as in unix:///run/redis.sock",
                );
            }
            let Some(path) = decode(location) else {
                return problem("the path has a stray %", "write %25 for %");
            };
            return Ok(StoreUrl::new(StoreKind::Standalone, vec![ServerAddress::Unix(path.into())], 0));
        }
        let (hosts, path) = location.split_once('/').unwrap_or((location, ""));
        let port = if let Self::Sentinel = self { SENTINEL_PORT } else { PORT };
        let addresses =
            hosts.split(',').map(|host| ServerAddress::parse(host, port)).collect::<Result<Vec<_>, _>>()?;
        match self {
            Self::Standalone if addresses.len() > 1 => problem("these are several servers", SEVERAL),
            Self::Standalone | Self::Unix => {
                Ok(StoreUrl::new(StoreKind::Standalone, addresses, database(path)?))
            }
            Self::Cluster if !path.is_empty() && path != "0" => {
                problem("a Cluster has no numbered databases", "leave out what follows the hosts")
            }
            Self::Cluster => Ok(StoreUrl::new(StoreKind::Cluster, addresses, 0)),
            Self::Sentinel => {
                let (name, db) = path.split_once('/').unwrap_or((path, ""));
                match decode(name) {
                    Some(name) if !name.is_empty() => {
                        Ok(StoreUrl::new(StoreKind::Sentinel(name), addresses, database(db)?))
                    }
                    _ => problem("the name of the primary is missing", NAME),
                }
            }
        }
    }
}

impl StoreUrl {
    fn new(kind: StoreKind, addresses: Vec<ServerAddress>, db: u32) -> Self {
        let (login, sentinel_login) = (Login::default(), Login::default());
        Self { kind, addresses, login, sentinel_login, db, tls: false, ca: None }
    }

    fn options(&mut self, query: &str) -> Result<(), StoreUrlError> {
        let is_sentinel = matches!(self.kind, StoreKind::Sentinel(_));
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let Some(value) = decode(value) else {
                return problem("the value of an option has a stray %", ENCODE);
            };
            match name {
                "ca" if !self.tls => {
                    return problem("`ca` is given, but no TLS", "write rediss:// instead of redis://");
                }
                "ca" => self.ca = Some(value.into()),
                "sentinel_user" if is_sentinel => self.sentinel_login.user = Some(value),
                "sentinel_password" if is_sentinel => self.sentinel_login.password = Some(value),
                _ => return problem("an option is not known here", OPTIONS),
            }
        }
        Ok(())
    }
}

impl Login {
    fn parse(text: &str) -> Result<Self, StoreUrlError> {
        let (user, password) = text.split_once(':').map_or((text, None), |(user, rest)| (user, Some(rest)));
        let part = |text: &str, what| match decode(text) {
            Some(part) => Ok(Some(part).filter(|part| !part.is_empty())),
            None => problem(format!("the {what} has a stray %"), ENCODE),
        };
        let login =
            Self { user: part(user, "user name")?, password: part(password.unwrap_or(""), "password")? };
        if login.user.is_some() && login.password.is_none() {
            return problem(
                "there is a user name but no password",
                "write redis://user:password@host or redis://:password@host",
            );
        }
        Ok(login)
    }
}

impl ServerAddress {
    /// Reads `host`, `host:port`, `[v6]` or `[v6]:port`.
    pub(crate) fn parse(text: &str, default_port: u16) -> Result<Self, StoreUrlError> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((host, "")) => (host, None),
                Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or("?"))),
                None => return problem("a host lacks its ]", HOSTS),
            },
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        if host.is_empty() {
            return problem("a host is missing", HOSTS);
        }
        match port.map_or(Ok(default_port), str::parse) {
            Ok(port) if port > 0 => Ok(Self::Tcp(host.to_owned(), port)),
            _ => problem("what follows a host is no port from 1 to 65535", HOSTS),
        }
    }
}

fn database(text: &str) -> Result<u32, StoreUrlError> {
    match text.trim_end_matches('/') {
        "" => Ok(0),
        number => number
            .parse()
            .or_else(|_| problem("what follows the host is not the number of a database", DATABASE)),
    }
}

/// Undoes percent-encoding; `None` for a stray % or what is not UTF-8.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        bytes.push(if byte == b'%' { (digit()? * 16 + digit()?) as u8 } else { byte });
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "***");
        f.debug_struct("Login").field("user", &self.user).field("password", &password).finish()
    }
}

impl StoreUrl {
    /// The URL without logins, and with the addresses in order: the same for all nodes.
    pub(crate) fn without_login(&self) -> Self {
        let mut addresses = self.addresses.clone();
        addresses.sort_unstable();
        Self { login: Login::default(), sentinel_login: Login::default(), addresses, ..self.clone() }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = if self.tls { "s" } else { "" };
        match (&self.kind, self.addresses.first()) {
            (StoreKind::Standalone, Some(ServerAddress::Unix(_))) => write!(f, "redis+unix://")?,
            (StoreKind::Standalone, _) => write!(f, "redis{tls}://")?,
            (StoreKind::Sentinel(_), _) => write!(f, "redis{tls}-sentinel://")?,
            (StoreKind::Cluster, _) => write!(f, "redis{tls}-cluster://")?,
        }
        if self.login != Login::default() {
            write!(f, "{}:***@", self.login.user.as_deref().unwrap_or_default())?;
        }
        for (number, address) in self.addresses.iter().enumerate() {
            write!(f, "{}{address}", if number > 0 { "," } else { "" })?;
        }
        if let StoreKind::Sentinel(name) = &self.kind {
            write!(f, "/{name}")?;
        }
        if self.db > 0 { write!(f, "/{}", self.db) } else { Ok(()) }
    }
}

/// As `Display`: a password must not slip into a log.
impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> ServerAddress {
        ServerAddress::Tcp(host.to_owned(), port)
    }

    fn parse(text: &str) -> StoreUrl {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn the_forms_are_read() {
        let cases: &[(&str, StoreKind, &[ServerAddress], u32, bool)] = &[
            ("redis://a", StoreKind::Standalone, &[tcp("a", 6379)], 0, false),
            ("redis://a:7/", StoreKind::Standalone, &[tcp("a", 7)], 0, false),
            ("redis://[::1]:7/3", StoreKind::Standalone, &[tcp("::1", 7)], 3, false),
            ("rediss://[::1]", StoreKind::Standalone, &[tcp("::1", 6379)], 0, true),
            ("unix:///run/a%20b", StoreKind::Standalone, &[ServerAddress::Unix("/run/a b".into())], 0, false),
            ("redis+unix:///run/r", StoreKind::Standalone, &[ServerAddress::Unix("/run/r".into())], 0, false),
            ("redis-cluster://a,b:2", StoreKind::Cluster, &[tcp("a", 6379), tcp("b", 2)], 0, false),
            ("rediss-cluster://a/0", StoreKind::Cluster, &[tcp("a", 6379)], 0, true),
            (
                "redis-sentinel://a,b:2/main/4",
                StoreKind::Sentinel("main".to_owned()),
                &[tcp("a", 26379), tcp("b", 2)],
                4,
                false,
            ),
            ("rediss-sentinel://a/m", StoreKind::Sentinel("m".to_owned()), &[tcp("a", 26379)], 0, true),
        ];
        for (text, kind, addresses, db, tls) in cases {
            let url = parse(text);
            assert_eq!(
                (&url.kind, &*url.addresses, url.db, url.tls),
                (kind, *addresses, *db, *tls),
                "{text}"
            );
            assert_eq!(url.login, Login::default());
        }
    }

    #[test]
    fn logins_are_decoded_and_never_shown() {
        let login = |text: &str| {
            let url = parse(text);
            for shown in [format!("{url}"), format!("{url:?}"), format!("{:?}", url.login)] {
                assert!(!shown.contains("s@c") && !shown.contains("s%40c"), "{shown}");
            }
            (url.login.user.unwrap_or_default(), url.login.password.unwrap_or_default())
        };
        let pair = |user: &str, password: &str| (user.to_owned(), password.to_owned());
        assert_eq!(login("redis://:s%40c@h"), pair("", "s@c"));
        assert_eq!(login("redis://u%3A:s@c:d/e@h:1/2"), pair("u:", "s@c:d/e"));
        assert_eq!(login("unix://u:s@c@/run/r"), pair("u", "s@c"));
        assert_eq!(parse("redis://u:secret@h:1/2").to_string(), "redis://u:***@h:1/2");
        let url = parse("rediss-sentinel://a/m?sentinel_password=s%40c&sentinel_user=x&ca=/etc/ca.pem");
        assert_eq!(url.sentinel_login.password.as_deref(), Some("s@c"));
        assert_eq!(url.ca, Some("/etc/ca.pem".into()));
        assert!(!format!("{url:?}").contains("s@c"));
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        let cases = [
            ("localhost:6379", "does not begin with a scheme"),
            ("http://localhost", "its scheme is not known"),
            ("redis://", "a host is missing"),
            ("redis://h:port", "no port from"),
            ("redis://h:0", "no port from"),
            ("redis://h:1:2", "no port from"),
            ("redis://[::1", "lacks its ]"),
            ("redis://h/x", "not the number of a database"),
            ("redis://a,b", "several servers"),
            ("redis-sentinel://a,b", "the name of the primary is missing"),
            ("redis-cluster://a/3", "no numbered databases"),
            ("unix://run/r", "whole path"),
            ("redis://hunter2%zz@h", "a stray %"),
            ("redis://u@h", "no password"),
            ("redis://:hunter2?x@h", "a ? before the @"),
            ("redis://:hunter2@h:x", "no port from"),
            ("redis://h?ca=/x", "no TLS"),
            ("rediss://h?insecure=1", "an option is not known"),
            ("redis://u:hunter2", "no port from"),
            ("redis://u:1/hunter2", "not the number of a database"),
            ("redis://hunter2,x", "several servers"),
            ("redis-cluster://h/hunter2", "no numbered databases"),
            ("redis://h?hunter2", "an option is not known here"),
            ("redis://h?hunter2=%", "a stray %"),
            ("redis://[hunter2", "lacks its ]"),
            ("hunter2://h", "its scheme is not known"),
            ("redis://h?sentinel_password=hunter2", "an option is not known here"),
        ];
        for (text, expected) in cases {
            let error = text.parse::<StoreUrl>().expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(error.contains("hint: ") && !error.contains("hunter2"), "{text}: {error}");
        }
    }
}
