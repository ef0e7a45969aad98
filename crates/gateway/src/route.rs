//! Which upstream a request goes to: by its host, then by its path.

use crate::settings::{self, BodyLimits};
use std::borrow::Cow;
use tollgate_core::path::PathReadings;
use tollgate_http::host;

/// A place in the list of upstreams.
pub(crate) type UpstreamIndex = usize;

/// The routes, the most particular first: the first that matches is the one.
#[derive(Debug)]
pub(crate) struct Routes(Vec<Entry>);

#[derive(Debug)]
pub(crate) struct Entry {
    host: HostPattern,
    /// As paths are read, and without a slash at its end, so empty for all paths.
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
                    let prefix = PathReadings::of(path).plain().trim_end_matches('/').to_owned();
                    let host = HostPattern::of(host);
                    entries.push(Entry { host, prefix, upstream, bodies: route.bodies });
                }
            }
        }
        // A stable sort: of two that are alike the first one stays first.
        entries.sort_by_key(|entry| std::cmp::Reverse((entry.host.rank(), entry.prefix.len())));
        Ok(Self(entries))
    }

    /// Where a request for `path` at `host` goes, both in their canonical form. Paths are read decoded and without
    /// parameters, as rules read them.
    pub(crate) fn find(&self, host: &str, path: &str) -> Option<&Entry> {
        let readings = path.bytes().any(|byte| matches!(byte, b'%' | b';')).then(|| PathReadings::of(path));
        let path = readings.as_ref().map_or(path, PathReadings::plain);
        self.0.iter().find(|entry| entry.host.matches(host) && under(path, &entry.prefix))
    }
}

impl HostPattern {
    fn of(text: &str) -> Self {
        // What is no host is known to no request.
        let canonical = |text| host::canonical(text).map_or_else(|| text.to_owned(), Cow::into_owned);
        match text.strip_prefix("*.") {
            Some(rest) => Self::Under(format!(".{}", canonical(rest))),
            None if text.is_empty() || text == "*" => Self::Any,
            None => Self::Exactly(canonical(text)),
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
            Self::Exactly(known) => name == known,
            Self::Under(suffix) => name.len() > suffix.len() && name.ends_with(suffix.as_str()),
        }
    }
}

fn under(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || prefix.is_empty() || rest.starts_with('/'))
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
                route(&[], &["/v1/orders/", "/orders", "/items:batch"], "orders"),
                route(&["*.example.com"], &[], "sub"),
                route(&["Deep.example.com."], &["/v1"], "deep"),
            ],
            &upstreams,
        )
        .unwrap();
        for (host, path, expected) in [
            ("a", "/", "rest"),
            ("", "*", "rest"),
            ("a", "/v1", "api"),
            ("a", "/v10", "rest"),
            ("a", "/v1/users", "api"),
            ("a", "/v1;x/users", "api"),
            ("a", "/v1;x", "api"),
            ("a", "/items%3Abatch/1", "orders"),
            ("a", "/v1/orders", "orders"),
            ("a", "/v1/orders/7", "orders"),
            ("a", "/orders", "orders"),
            ("a", "/ordersx", "rest"),
            ("x.example.com", "/v1/orders", "sub"),
            ("xexample.com", "/", "rest"),
            ("example.com", "/", "rest"),
            ("deep.example.com", "/v1/x", "deep"),
            ("deep.example.com", "/", "sub"),
            ("[::1]", "/", "rest"),
        ] {
            let found = routes.find(host, path).map(|entry| upstreams[entry.upstream].name.as_str());
            assert_eq!(found, Some(expected), "{host} {path}");
        }
        assert_eq!(Routes::new(&[route(&[], &[], "nobody")], &upstreams).unwrap_err(), "nobody");
    }
}
