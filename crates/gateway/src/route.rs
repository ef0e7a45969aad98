//! Which upstream a request goes to: by its host, then by its path.

use crate::settings::{self, BodyLimits};

/// A place in the list of upstreams.
pub(crate) type UpstreamIndex = usize;

/// The routes, the most particular first: the first that matches is the one.
#[derive(Debug)]
pub(crate) struct Routes(Vec<Entry>);

#[derive(Debug)]
pub(crate) struct Entry {
    host: HostPattern,
    /// Without a slash at its end, so empty for all paths.
    prefix: String,
    pub(crate) upstream: UpstreamIndex,
    /// None for those of the gateway.
    pub(crate) bodies: Option<BodyLimits>,
}

#[derive(Debug)]
enum HostPattern {
    Any,
    /// Ends with this, which begins with a dot.
    Under(String),
    Exactly(String),
}

impl Routes {
    /// Routes to upstreams by name. The error is the name of one that is not there.
    pub(crate) fn new(routes: &[settings::Route], upstreams: &[settings::Upstream]) -> Result<Self, String> {
        let mut entries = Vec::new();
        for route in routes {
            let named = |upstream: &settings::Upstream| upstream.name == route.upstream;
            let upstream = upstreams.iter().position(named).ok_or_else(|| route.upstream.clone())?;
            let any = [String::new()];
            let hosts = if route.hosts.is_empty() { &any } else { route.hosts.as_slice() };
            let paths = if route.paths.is_empty() { &any } else { route.paths.as_slice() };
            for host in hosts {
                for path in paths {
                    let prefix = path.trim_end_matches('/').to_owned();
                    let host = HostPattern::of(host);
                    entries.push(Entry { host, prefix, upstream, bodies: route.bodies });
                }
            }
        }
        // A stable sort: of two that are alike the first one stays first.
        entries.sort_by_key(|entry| std::cmp::Reverse((entry.host.rank(), entry.prefix.len())));
        Ok(Self(entries))
    }

    /// Where a request for `path` at `host` goes. The host may carry a port, which does not matter.
    pub(crate) fn find(&self, host: &str, path: &str) -> Option<&Entry> {
        let name = without_port(host);
        self.0.iter().find(|entry| entry.host.matches(name) && under(path, &entry.prefix))
    }
}

impl HostPattern {
    fn of(text: &str) -> Self {
        let text = text.to_ascii_lowercase();
        match text.strip_prefix('*') {
            Some(rest) if rest.starts_with('.') => Self::Under(rest.to_owned()),
            Some(_) => Self::Any,
            None if text.is_empty() => Self::Any,
            None => Self::Exactly(text),
        }
    }

    /// A host that is named counts more than any path.
    fn rank(&self) -> (u8, usize) {
        match self {
            Self::Any => (0, 0),
            Self::Under(suffix) => (1, suffix.len()),
            Self::Exactly(_) => (2, 0),
        }
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exactly(known) => name.eq_ignore_ascii_case(known),
            Self::Under(suffix) => {
                name.len() > suffix.len()
                    && name.as_bytes()[name.len() - suffix.len()..].eq_ignore_ascii_case(suffix.as_bytes())
            }
        }
    }
}

fn under(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || prefix.is_empty() || rest.starts_with('/'))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // An IPv6 address without a port ends in its bracket.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Route, Upstream};

    #[test]
    fn the_most_particular_route_wins() {
        let route = |hosts: &[&str], paths: &[&str], upstream: &str| Route {
            hosts: hosts.iter().map(ToString::to_string).collect(),
            paths: paths.iter().map(ToString::to_string).collect(),
            upstream: upstream.into(),
            bodies: None,
        };
        let upstreams = ["rest", "api", "orders", "sub", "deep"].map(|name| Upstream::new(name, Vec::new()));
        let routes = Routes::new(
            &[
                route(&[], &[], "rest"),
                route(&[], &["/v1"], "api"),
                route(&[], &["/v1/orders/", "/orders"], "orders"),
                route(&["*.example.com"], &[], "sub"),
                route(&["Deep.example.com"], &["/v1"], "deep"),
            ],
            &upstreams,
        )
        .unwrap();
        for (host, path, expected) in [
            ("a", "/", "rest"),
            ("", "*", "rest"),
            ("a", "/v1", "api"),
            ("a", "/v10", "rest"),
            ("a:80", "/v1/users", "api"),
            ("a", "/v1/orders", "orders"),
            ("a", "/v1/orders/7", "orders"),
            ("a", "/orders", "orders"),
            ("a", "/ordersx", "rest"),
            ("x.example.com:8080", "/v1/orders", "sub"),
            ("X.EXAMPLE.com", "/", "sub"),
            ("example.com", "/", "rest"),
            ("deep.example.com", "/v1/x", "deep"),
            ("deep.example.com", "/", "sub"),
            ("[::1]", "/", "rest"),
            ("[::1]:80", "/v1", "api"),
        ] {
            let found = routes.find(host, path).map(|entry| upstreams[entry.upstream].name.as_str());
            assert_eq!(found, Some(expected), "{host} {path}");
        }
        assert_eq!(Routes::new(&[route(&[], &[], "nobody")], &upstreams).unwrap_err(), "nobody");
    }
}
