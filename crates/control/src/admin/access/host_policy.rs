//! Which `Host` and `Origin` headers are accepted.
//!
//! A page of another site that resolves its own name to this listener (DNS rebinding) sends its own name as the host. A
//! page that sends requests here from a browser sends its origin. Neither may pass.

use crate::admin::problem::Problem;
use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Uri};
use std::net::{IpAddr, Ipv6Addr};
use tollgate_http::host;

/// The hosts by which the listener may be addressed.
#[derive(Clone, Debug)]
pub(crate) struct HostPolicy {
    /// The address that it listens on.
    pub(crate) address: IpAddr,
    /// Further names, in their canonical form.
    pub(crate) hosts: Vec<String>,
    /// Whether the listener has TLS: then an origin must have it too.
    pub(crate) is_secure: bool,
}

impl HostPolicy {
    /// Refuses a request whose host is not one of this listener, or that a page of another origin sent.
    pub(crate) fn verify(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let named = host::of_request(uri, headers).map_err(|error| Problem::malformed(error.to_string()))?;
        let Some(named) = named else {
            return Err(Problem::malformed("the request has no `Host` header"));
        };
        if !self.accepts(&named) {
            return Err(Problem::forbidden(
                "the `Host` of the request is not a name of this listener; add it to `admin: { hosts: […] }` if it is",
            ));
        }
        self.verify_origin(uri, headers)
    }

    fn accepts(&self, named: &str) -> bool {
        if named == "localhost" || self.hosts.iter().any(|known| known == named) {
            return true;
        }
        let literal = named.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let literal = match literal {
            Some(v6) => v6.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
            None => named.parse::<IpAddr>().ok(),
        };
        // A page cannot have an address as its name by DNS, so any address is good where all are listened on.
        literal.is_some_and(|ip| {
            let ip = ip.to_canonical();
            ip.is_loopback() || self.address.is_unspecified() || ip == self.address.to_canonical()
        })
    }

    fn verify_origin(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let refused = || Problem::forbidden("pages of other origins may not use this API");
        let mut origins = headers.get_all(ORIGIN).iter();
        let Some(origin) = origins.next() else {
            // Browsers say this also where they send no origin.
            let site = headers.get("sec-fetch-site").map(|site| site.as_bytes());
            let is_foreign = matches!(site, Some(site) if site != b"same-origin" && site != b"none");
            return if is_foreign && is_part_of_a_page(headers) { Err(refused()) } else { Ok(()) };
        };
        let origin = origin.to_str().map_err(|_| refused())?;
        let (scheme, authority) = origin.split_once("://").ok_or_else(refused)?;
        let expected = match uri.authority() {
            Some(authority) => authority.as_str(),
            None => headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default(),
        };
        let scheme_matches = scheme == "https" || scheme == "http" && !self.is_secure;
        let is_same = scheme_matches && authority.eq_ignore_ascii_case(expected);
        if is_same && origins.next().is_none() { Ok(()) } else { Err(refused()) }
    }
}

/// Whether a browser asks for something other than a whole page. A link from another site may lead to the login page.
fn is_part_of_a_page(headers: &HeaderMap) -> bool {
    headers.get("sec-fetch-dest").is_none_or(|target| target.as_bytes() != b"document")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(address: &str, hosts: &[&str], is_secure: bool) -> HostPolicy {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        HostPolicy { address: address.parse().unwrap(), hosts, is_secure }
    }

    fn is_accepted(policy: &HostPolicy, headers: &[(&'static str, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        policy.verify(&Uri::from_static("/v1/rules"), &map).is_ok()
    }

    #[test]
    fn hosts() {
        let local = policy("127.0.0.1", &[], false);
        for (host, expected) in [
            ("127.0.0.1:9090", true),
            ("127.0.0.1", true),
            ("127.1.2.3", true),
            ("localhost:1234", true),
            ("LOCALHOST", true),
            ("[::1]:9090", true),
            ("[::ffff:127.0.0.1]", true),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("10.0.0.1", false),
            ("", false),
            ("a b", false),
        ] {
            assert_eq!(is_accepted(&local, &[("host", host)]), expected, "{host}");
        }
        assert!(!is_accepted(&local, &[]), "no host");
        assert!(!is_accepted(&local, &[("host", "localhost"), ("host", "localhost")]), "two hosts");
        let open = policy("0.0.0.0", &["admin.example"], false);
        for (host, expected) in [("10.0.0.1:9090", true), ("admin.example", true), ("evil.example", false)] {
            assert_eq!(is_accepted(&open, &[("host", host)]), expected, "{host}");
        }
        let one = policy("10.0.0.1", &[], false);
        assert!(is_accepted(&one, &[("host", "10.0.0.1")]) && !is_accepted(&one, &[("host", "10.0.0.2")]));
    }

    #[test]
    fn origins() {
        let (plain, secure) = (policy("127.0.0.1", &[], false), policy("127.0.0.1", &[], true));
        for (origin, on_plain, on_secure) in [
            ("http://127.0.0.1:9090", true, false),
            ("https://127.0.0.1:9090", true, true),
            ("http://127.0.0.1", false, false),
            ("http://127.0.0.1:9091", false, false),
            ("http://evil.example", false, false),
            ("null", false, false),
            ("ftp://127.0.0.1:9090", false, false),
            ("", false, false),
        ] {
            let headers = [("host", "127.0.0.1:9090"), ("origin", origin)];
            assert_eq!(is_accepted(&plain, &headers), on_plain, "{origin}");
            assert_eq!(is_accepted(&secure, &headers), on_secure, "{origin} with TLS");
        }
        for (site, target, expected) in [
            ("same-origin", "empty", true),
            ("none", "document", true),
            ("cross-site", "document", true),
            ("cross-site", "empty", false),
            ("same-site", "script", false),
        ] {
            let headers = [("host", "localhost"), ("sec-fetch-site", site), ("sec-fetch-dest", target)];
            assert_eq!(is_accepted(&plain, &headers), expected, "{site} {target}");
        }
    }
}
