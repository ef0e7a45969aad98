//! Route lookup: which upstream a request goes to, by its host and then by its path.

use crate::settings::{BodyLimits, RouteSettings, UpstreamSettings};
use std::borrow::Cow;
use tollgate_core::path::PathReadings;
use tollgate_http::host;

/// An index into the list of upstreams.
pub(crate) type UpstreamIndex = usize;

/// An index into the labels of routes.
pub(crate) type RouteIndex = usize;

/// The index of requests whose route is unknown. Their label is empty.
pub(crate) const NO_ROUTE: RouteIndex = 0;

/// The routes, and their labels in metrics.
#[derive(Debug)]
pub(crate) struct RouteTable {
    /// Most specific first. The first match wins.
    entries: Vec<RouteEntry>,
    labels: Vec<String>,
}

/// One host pattern and path prefix.
#[derive(Debug)]
pub(crate) struct RouteEntry {
    host: HostPattern,
    /// A decoded path without a trailing slash, so empty for all paths.
    prefix: String,
    /// Its label in metrics: host pattern and path prefix.
    pub(crate) index: RouteIndex,
    pub(crate) upstream: UpstreamIndex,
    /// `None` for the gateway's limits.
    pub(crate) bodies: Option<BodyLimits>,
}

#[derive(Debug)]
enum HostPattern {
    Any,
    /// A suffix that begins with a dot.
    Under(String),
    Exactly(String),
}

/// A route names an upstream that does not exist.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a route names the unknown upstream `{0}`")]
pub struct UnknownUpstream(pub String);

impl RouteTable {
    /// Resolves the upstream names of `routes`.
    pub(crate) fn new(
        routes: &[RouteSettings],
        upstreams: &[UpstreamSettings],
    ) -> Result<Self, UnknownUpstream> {
        let (mut entries, mut labels) = (Vec::new(), vec![String::new()]);
        for route in routes {
            let upstream = upstreams.iter().position(|upstream| upstream.name == route.upstream);
            let upstream = upstream.ok_or_else(|| UnknownUpstream(route.upstream.clone()))?;
            let any = [String::new()];
            let hosts = if route.hosts.is_empty() { &any } else { route.hosts.as_slice() };
            let paths = if route.paths.is_empty() { &any } else { route.paths.as_slice() };
            for host in hosts {
                for path in paths {
                    let prefix = PathReadings::of(path).plain().trim_end_matches('/').to_owned();
                    let host = HostPattern::parse(host);
                    // Equal labels share an index.
                    let label = label(&host, &prefix);
                    let index = labels.iter().position(|known| *known == label).unwrap_or_else(|| {
                        labels.push(label);
                        labels.len() - 1
                    });
                    entries.push(RouteEntry { host, prefix, index, upstream, bodies: route.bodies });
                }
            }
        }
        // The sort is stable: of two equal entries, the one listed first stays first.
        entries.sort_by_key(|entry| std::cmp::Reverse((entry.host.rank(), entry.prefix.len())));
        Ok(Self { entries, labels })
    }

    /// The labels of routes in metrics, by index.
    pub(crate) fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The route of a request for `path` at `host`, both in canonical form. Paths are compared decoded and without
    /// parameters, as in rules.
    pub(crate) fn find(&self, host: &str, path: &str) -> Option<&RouteEntry> {
        let readings = path.bytes().any(|byte| matches!(byte, b'%' | b';')).then(|| PathReadings::of(path));
        let path = readings.as_ref().map_or(path, PathReadings::plain);
        self.entries.iter().find(|entry| entry.host.matches(host) && has_prefix(path, &entry.prefix))
    }
}

/// How a route is named in metrics: `/v1`, `api.example.com/v1` or `*.example.com/`.
fn label(host: &HostPattern, prefix: &str) -> String {
    let prefix = if prefix.is_empty() { "/" } else { prefix };
    match host {
        HostPattern::Any => prefix.to_owned(),
        HostPattern::Under(suffix) => format!("*{suffix}{prefix}"),
        HostPattern::Exactly(host) => format!("{host}{prefix}"),
    }
}

impl HostPattern {
    fn parse(text: &str) -> Self {
        // An invalid host is kept as it is; no request has it.
        let canonical = |text| host::canonical(text).map_or_else(|| text.to_owned(), Cow::into_owned);
        match text.strip_prefix("*.") {
            Some(rest) => Self::Under(format!(".{}", canonical(rest))),
            None if text.is_empty() || text == "*" => Self::Any,
            None => Self::Exactly(canonical(text)),
        }
    }

    /// The host takes precedence over the path.
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

/// Whether `prefix` is the beginning of `path`, in whole segments.
fn has_prefix(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || prefix.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_route_wins() {
        let route = |hosts: &[&str], paths: &[&str], upstream: &str| RouteSettings {
            hosts: hosts.iter().map(ToString::to_string).collect(),
            paths: paths.iter().map(ToString::to_string).collect(),
            upstream: upstream.into(),
            bodies: None,
        };
        let upstreams =
            ["rest", "api", "orders", "sub", "deep"].map(|name| UpstreamSettings::new(name, Vec::new()));
        let routes = RouteTable::new(
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
        let labels = [
            "",
            "/",
            "/v1",
            "/v1/orders",
            "/orders",
            "/items:batch",
            "*.example.com/",
            "deep.example.com/v1",
        ];
        assert_eq!(routes.labels(), labels);
        let found = routes.find("x.example.com", "/").map(|entry| entry.index);
        assert_eq!(found, Some(6));
        let error = RouteTable::new(&[route(&[], &[], "absent")], &upstreams).unwrap_err();
        assert_eq!(error, UnknownUpstream("absent".to_owned()));
    }
}
