//! The gateway: its flags, and the `gateway:` section of `tollgate.yaml`.

mod access_log;
mod bodies;

use super::setting_value::{PlacedSettingError, SettingError, TextOrNumber, parse_address, parse_duration};
use super::store::parse_secret;
use access_log::WrittenAccessLog;
use bodies::WrittenBodyLimits;
use ipnet::IpNet;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tollgate_core::document::{Document, DocumentPath};
use tollgate_core::path::{PathError, canonical};
use tollgate_gateway::settings::{
    AccessLogSettings, Balance, BodyLimits, ForwardedHeaders, GatewaySettings, HealthCheckSettings,
    LookalikeHeaders, OnClientGone, RequestIds, RouteSettings, UpstreamAddress, UpstreamSettings,
};
use tollgate_http::host;
use tollgate_http::identity::IpNetwork;
use tollgate_limiter::KeySecret;
use tollgate_listen::{ConnectionLimitOptions, Framing, Protocols, RefusalFastPath, ServeOptions};

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8000);
/// Every duration of a gateway is between 1 ms and a day.
const DURATIONS_US: RangeInclusive<u64> = 1_000..=86_400_000_000;

/// The settings of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// The address that it listens on.
    pub listen: SocketAddr,
    /// Routes, upstreams and headers.
    pub settings: GatewaySettings,
    /// The number of threads; none for one per core.
    pub threads: Option<usize>,
    /// The limits of each thread.
    pub options: ServeOptions,
    /// The limits of each client address.
    pub connection_limits: ConnectionLimitOptions,
    /// The files of the certificate and its key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The access log.
    pub access_log: Option<AccessLogSettings>,
}

/// The `gateway:` section of `tollgate.yaml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WrittenGateway {
    routes: Vec<WrittenRoute>,
    upstreams: BTreeMap<String, WrittenUpstream>,
    tls: Option<WrittenTls>,
    forwarded: WrittenForwardedHeaders,
    header_doubles: WrittenHeaderDoubles,
    threads: Option<usize>,
    most_connections: Option<u32>,
    most_connections_per_ip: Option<u32>,
    most_rejections: Option<u32>,
    refuse_for: Option<TextOrNumber>,
    refusal_fast_path: Option<bool>,
    bodies: Option<WrittenBodyLimits>,
    idle_timeout: Option<TextOrNumber>,
    grace: Option<TextOrNumber>,
    access_log: Option<WrittenAccessLog>,
    log_key_secret: Option<String>,
    request_id: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRoute {
    #[serde(default)]
    hosts: Vec<String>,
    #[serde(default)]
    paths: Vec<String>,
    upstream: String,
    bodies: Option<WrittenBodyLimits>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WrittenUpstream {
    addresses: Vec<String>,
    balance: WrittenBalance,
    connect_timeout: Option<TextOrNumber>,
    response_timeout: Option<TextOrNumber>,
    idle_timeout: Option<TextOrNumber>,
    retries: Option<u32>,
    most_failures: Option<u32>,
    health: Option<WrittenHealthCheck>,
    on_client_gone: WrittenClientGone,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WrittenClientGone {
    #[default]
    Finish,
    Cancel,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WrittenBalance {
    #[default]
    LeastLoaded,
    RoundRobin,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WrittenHeaderDoubles {
    #[default]
    Drop,
    Pass,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenHealthCheck {
    path: String,
    interval: Option<TextOrNumber>,
    timeout: Option<TextOrNumber>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenTls {
    certificate: PathBuf,
    key: PathBuf,
}

impl WrittenTls {
    /// Makes relative paths start from `folder`.
    pub fn resolve_paths(&mut self, folder: &Path) {
        *self = Self { certificate: folder.join(&self.certificate), key: folder.join(&self.key) };
    }

    /// The files of the certificate and its key.
    pub fn into_files(self) -> (PathBuf, PathBuf) {
        (self.certificate, self.key)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WrittenForwardedHeaders {
    x_forwarded: Option<bool>,
    forwarded: Option<bool>,
    via: Option<bool>,
}

impl WrittenGateway {
    /// Makes relative paths start from `folder`.
    pub fn resolve_paths(&mut self, folder: &Path) {
        if let Some(tls) = &mut self.tls {
            tls.resolve_paths(folder);
        }
        if let Some(log) = &mut self.access_log {
            log.resolve_path(folder);
        }
    }
}

/// The gateway that flags and file describe, behind the proxies in `trusted`, if they describe one.
pub fn read(
    listen: Option<&TextOrNumber>,
    upstream: Option<&str>,
    file: Option<&WrittenGateway>,
    trusted: &[IpNetwork],
) -> Result<Option<GatewayConfig>, PlacedSettingError> {
    if listen.is_none() && upstream.is_none() && file.is_none() {
        return Ok(None);
    }
    let root = DocumentPath::root();
    let empty = WrittenGateway::default();
    let file = file.unwrap_or(&empty);
    let listen = listen.map_or(Ok(DEFAULT_LISTEN), parse_address);
    let listen = listen.map_err(|error| error.at(root.field("gateway_listen")))?;
    let section = root.field("gateway");
    let trusted: Vec<IpNet> = trusted.iter().map(|IpNetwork(network)| *network).collect();
    let settings = GatewaySettings { trusted: trusted.clone(), ..settings(upstream, file, &root, &section)? };
    let key_secret = file.log_key_secret.as_deref().map(parse_secret).transpose();
    let key_secret = key_secret.map_err(|error| error.at(section.field("log_key_secret")))?.map(KeySecret);
    let access_log = file.access_log.as_ref();
    let access_log = access_log.map(|log| log.read(key_secret, &section.field("access_log"))).transpose()?;
    let defaults = (ServeOptions::default(), ConnectionLimitOptions::default());
    Ok(Some(GatewayConfig {
        listen,
        threads: file.threads.filter(|threads| *threads > 0),
        options: ServeOptions {
            protocols: Protocols::Http1And2,
            framing: Framing::Strict,
            refusal_fast_path: match file.refusal_fast_path {
                Some(false) => RefusalFastPath::Disabled,
                Some(true) | None => RefusalFastPath::Enabled,
            },
            most_connections: file.most_connections.unwrap_or(defaults.0.most_connections).max(1),
            idle_time: duration(file.idle_timeout.as_ref(), defaults.0.idle_time, &section, "idle_timeout")?,
            grace: duration(file.grace.as_ref(), defaults.0.grace, &section, "grace")?,
            ..defaults.0
        },
        connection_limits: ConnectionLimitOptions {
            most_connections: file.most_connections_per_ip.unwrap_or(defaults.1.most_connections).max(1),
            most_rejections: file.most_rejections.unwrap_or(defaults.1.most_rejections).max(1),
            refuse_time: duration(file.refuse_for.as_ref(), defaults.1.refuse_time, &section, "refuse_for")?,
            trusted,
        },
        tls: file.tls.clone().map(WrittenTls::into_files),
        access_log,
        settings,
    }))
}

/// Reports an error of the section or of the two settings beside it.
pub fn check(
    document: &mut Document,
    listen: Option<&TextOrNumber>,
    upstream: Option<&str>,
    file: Option<&WrittenGateway>,
) {
    match read(listen, upstream, file, &[]) {
        // The upstream may still come from a flag.
        Err(PlacedSettingError { error: SettingError::NoUpstream, .. }) if upstream.is_none() => {}
        Err(placed) => document.error(&placed.path, placed.error.to_string(), None),
        Ok(_) => {}
    }
}

fn settings(
    upstream: Option<&str>,
    file: &WrittenGateway,
    root: &DocumentPath,
    section: &DocumentPath,
) -> Result<GatewaySettings, PlacedSettingError> {
    let mut upstreams = Vec::new();
    for (name, upstream) in &file.upstreams {
        upstreams.push(read_upstream(name, upstream, &section.field("upstreams").field(name))?);
    }
    let bodies = match &file.bodies {
        Some(bodies) => bodies.read(BodyLimits::default(), &section.field("bodies"))?,
        None => BodyLimits::default(),
    };
    let mut routes = Vec::new();
    for (index, route) in file.routes.iter().enumerate() {
        let path = section.field("routes").index(index);
        if !file.upstreams.contains_key(&route.upstream) {
            let known = file.upstreams.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let error = SettingError::UnknownUpstream { name: route.upstream.clone(), known };
            return Err(error.at(path.field("upstream")));
        }
        let own = route.bodies.as_ref().map(|own| own.read(bodies, &path.field("bodies"))).transpose()?;
        routes.push(RouteSettings { bodies: own, ..read_route(route, &path)? });
    }
    if let Some(text) = upstream {
        let addresses = text.split(',').map(|text| text.trim().parse::<UpstreamAddress>());
        let addresses = addresses.collect::<Result<Vec<_>, _>>();
        let addresses = addresses.map_err(|error| SettingError::from(error).at(root.field("upstream")))?;
        // Its name in metrics and logs; the file may have an upstream of that name.
        let name = if file.upstreams.contains_key("default") { "--upstream" } else { "default" };
        routes.push(RouteSettings { upstream: name.to_owned(), ..RouteSettings::default() });
        upstreams.push(UpstreamSettings::new(name, addresses));
    } else if let ([only], []) = (upstreams.as_slice(), routes.as_slice()) {
        routes.push(RouteSettings { upstream: only.name.clone(), ..RouteSettings::default() });
    }
    if routes.is_empty() {
        return Err(SettingError::NoUpstream.at(section.clone()));
    }
    let defaults = ForwardedHeaders::default();
    Ok(GatewaySettings {
        routes,
        upstreams,
        trusted: Vec::new(),
        bodies,
        forwarded: ForwardedHeaders {
            x_forwarded: file.forwarded.x_forwarded.unwrap_or(defaults.x_forwarded),
            forwarded: file.forwarded.forwarded.unwrap_or(defaults.forwarded),
            via: file.forwarded.via.unwrap_or(defaults.via),
        },
        lookalikes: match file.header_doubles {
            WrittenHeaderDoubles::Drop => LookalikeHeaders::Drop,
            WrittenHeaderDoubles::Pass => LookalikeHeaders::Pass,
        },
        request_ids: match file.request_id.unwrap_or(file.access_log.is_some()) {
            true => RequestIds::Assigned,
            false => RequestIds::Forwarded,
        },
    })
}

fn read_route(route: &WrittenRoute, path: &DocumentPath) -> Result<RouteSettings, PlacedSettingError> {
    for (index, text) in route.paths.iter().enumerate() {
        let error = match canonical(text) {
            Ok(_) => continue,
            Err(PathError::NoSlash) => SettingError::NotAPath(text.clone()),
            Err(error) => SettingError::UnmatchablePath { path: text.clone(), error },
        };
        return Err(error.at(path.field("paths").index(index)));
    }
    if let Some(index) = route.hosts.iter().position(|text| !is_host_pattern(text)) {
        let error = SettingError::Host(route.hosts[index].clone());
        return Err(error.at(path.field("hosts").index(index)));
    }
    let (hosts, paths) = (route.hosts.clone(), route.paths.clone());
    Ok(RouteSettings { hosts, paths, upstream: route.upstream.clone(), bodies: None })
}

/// A host, `*.` and a host, or nothing or `*` for any.
fn is_host_pattern(text: &str) -> bool {
    let name = text.strip_prefix("*.").unwrap_or(text);
    matches!(text, "" | "*") || host::canonical(name).is_some_and(|name| !name.is_empty())
}

fn read_upstream(
    name: &str,
    file: &WrittenUpstream,
    path: &DocumentPath,
) -> Result<UpstreamSettings, PlacedSettingError> {
    if file.addresses.is_empty() {
        return Err(SettingError::NoAddresses.at(path.clone()));
    }
    let addresses = file.addresses.iter().enumerate().map(|(index, text)| {
        text.parse::<UpstreamAddress>()
            .map_err(|error| SettingError::from(error).at(path.field("addresses").index(index)))
    });
    let mut upstream = UpstreamSettings::new(name, addresses.collect::<Result<_, _>>()?);
    upstream.balance = match file.balance {
        WrittenBalance::LeastLoaded => Balance::LeastLoaded,
        WrittenBalance::RoundRobin => Balance::RoundRobin,
    };
    for (setting, time, field) in [
        (&file.connect_timeout, &mut upstream.connect_time, "connect_timeout"),
        (&file.response_timeout, &mut upstream.response_time, "response_timeout"),
        (&file.idle_timeout, &mut upstream.idle_time, "idle_timeout"),
    ] {
        *time = duration(setting.as_ref(), *time, path, field)?;
    }
    upstream.retries = file.retries.unwrap_or(upstream.retries);
    upstream.most_failures = file.most_failures.unwrap_or(upstream.most_failures);
    if !(1..=1_000).contains(&upstream.most_failures) {
        let (value, least, most) = (upstream.most_failures.to_string(), "1".to_owned(), "1000".to_owned());
        let error = SettingError::OutOfRange { value, field: "most_failures", least, most };
        return Err(error.at(path.field("most_failures")));
    }
    upstream.on_client_gone = match file.on_client_gone {
        WrittenClientGone::Finish => OnClientGone::Finish,
        WrittenClientGone::Cancel => OnClientGone::Cancel,
    };
    if let Some(health) = &file.health {
        let path = path.field("health");
        if !health.path.starts_with('/') {
            return Err(SettingError::NotAPath(health.path.clone()).at(path.field("path")));
        }
        upstream.health = Some(HealthCheckSettings {
            path: health.path.clone(),
            interval: duration(health.interval.as_ref(), Duration::from_secs(5), &path, "interval")?,
            timeout: duration(health.timeout.as_ref(), Duration::from_secs(1), &path, "timeout")?,
        });
    }
    Ok(upstream)
}

fn duration(
    setting: Option<&TextOrNumber>,
    default: Duration,
    path: &DocumentPath,
    field: &'static str,
) -> Result<Duration, PlacedSettingError> {
    let Some(setting) = setting else { return Ok(default) };
    parse_duration(setting, field, DURATIONS_US).map_err(|error| error.at(path.field(field)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_fast_path_can_be_switched_off() {
        for (yaml, expected) in [
            ("{}", RefusalFastPath::Enabled),
            ("{ refusal_fast_path: true }", RefusalFastPath::Enabled),
            ("{ refusal_fast_path: false }", RefusalFastPath::Disabled),
        ] {
            let file: WrittenGateway = Document::parse("gateway.yaml", yaml).unwrap().decode().unwrap();
            let gateway = read(None, Some("http://127.0.0.1:1"), Some(&file), &[]).unwrap().unwrap();
            assert_eq!(gateway.options.refusal_fast_path, expected, "{yaml}");
        }
    }
}
