//! The gateway's settings: where it listens, and what is behind it.

mod bodies;

use super::{Setting, address};
use bodies::BodiesFile;
use ipnet::IpNet;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tollgate_core::document::{Document, DocumentPath};
use tollgate_core::path::{PathError, canonical};
use tollgate_core::rate::parse_duration_us;
use tollgate_gateway::settings::{
    Balance, BodyLimits, ForwardedHeaders, GatewaySettings, HealthCheckSettings, LookalikeHeaders,
    OnClientGone, RouteSettings, UpstreamAddress, UpstreamSettings,
};
use tollgate_http::host;
use tollgate_http::identity::IpNetwork;
use tollgate_listen::{ConnectionLimitOptions, Framing, Protocols, RefusalFastPath, ServeOptions};

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8000);
const NO_UPSTREAM: &str = "a gateway needs an upstream: --upstream http://127.0.0.1:3000";

/// A gateway to run.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// Where it listens.
    pub listen: SocketAddr,
    /// What is behind it.
    pub settings: GatewaySettings,
    /// Its threads; none for one on each core.
    pub threads: Option<usize>,
    /// The bounds of each thread.
    pub options: ServeOptions,
    /// The bounds of each address.
    pub crowd: ConnectionLimitOptions,
    /// Certificate and key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Where requests are noted: `stdout` or a file.
    pub access_log: Option<PathBuf>,
}

/// The `gateway:` section of `tollgate.yaml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewayFile {
    routes: Vec<RouteFile>,
    upstreams: BTreeMap<String, UpstreamFile>,
    tls: Option<TlsFile>,
    forwarded: ForwardedFile,
    header_doubles: DoublesName,
    threads: Option<usize>,
    most_connections: Option<u32>,
    most_connections_per_ip: Option<u32>,
    most_rejections: Option<u32>,
    refuse_for: Option<Setting>,
    refusal_fast_path: Option<bool>,
    bodies: Option<BodiesFile>,
    idle_timeout: Option<Setting>,
    grace: Option<Setting>,
    access_log: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteFile {
    #[serde(default)]
    hosts: Vec<String>,
    #[serde(default)]
    paths: Vec<String>,
    upstream: String,
    bodies: Option<BodiesFile>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct UpstreamFile {
    addresses: Vec<String>,
    balance: BalanceName,
    connect_timeout: Option<Setting>,
    response_timeout: Option<Setting>,
    idle_timeout: Option<Setting>,
    retries: Option<u32>,
    most_failures: Option<u32>,
    health: Option<HealthFile>,
    on_client_gone: ClientGoneName,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ClientGoneName {
    #[default]
    Finish,
    Cancel,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum BalanceName {
    #[default]
    LeastLoaded,
    RoundRobin,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DoublesName {
    #[default]
    Drop,
    Pass,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HealthFile {
    path: String,
    interval: Option<Setting>,
    timeout: Option<Setting>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TlsFile {
    certificate: PathBuf,
    key: PathBuf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ForwardedFile {
    x_forwarded: Option<bool>,
    forwarded: Option<bool>,
    via: Option<bool>,
}

impl GatewayFile {
    /// Paths in the file start from its folder.
    pub fn start_from(&mut self, folder: &std::path::Path) {
        if let Some(tls) = &mut self.tls {
            *tls = TlsFile { certificate: folder.join(&tls.certificate), key: folder.join(&tls.key) };
        }
        if let Some(log) = self.access_log.as_mut().filter(|log| log.as_os_str() != "stdout") {
            *log = folder.join(&*log);
        }
    }
}

/// Something wrong, and where in the section.
type Wrong = (DocumentPath, String);

/// The gateway that flags and file describe, behind the proxies in `trusted`; none if they describe none.
pub fn read(
    listen: Option<&str>,
    upstream: Option<&str>,
    file: Option<&GatewayFile>,
    trusted: &[IpNetwork],
) -> Result<Option<Gateway>, Wrong> {
    if listen.is_none() && upstream.is_none() && file.is_none() {
        return Ok(None);
    }
    let root = DocumentPath::root();
    let empty = GatewayFile::default();
    let file = file.unwrap_or(&empty);
    let listen = listen.map_or(Ok(DEFAULT_LISTEN), address).map_err(|e| (root.field("gateway_listen"), e))?;
    let section = root.field("gateway");
    let trusted: Vec<IpNet> = trusted.iter().map(|IpNetwork(network)| *network).collect();
    let settings = GatewaySettings { trusted: trusted.clone(), ..settings(upstream, file, &root, &section)? };
    let defaults = (ServeOptions::default(), ConnectionLimitOptions::default());
    Ok(Some(Gateway {
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
        crowd: ConnectionLimitOptions {
            most_connections: file.most_connections_per_ip.unwrap_or(defaults.1.most_connections).max(1),
            most_rejections: file.most_rejections.unwrap_or(defaults.1.most_rejections).max(1),
            refuse_time: duration(file.refuse_for.as_ref(), defaults.1.refuse_time, &section, "refuse_for")?,
            trusted,
        },
        tls: file.tls.clone().map(|tls| (tls.certificate, tls.key)),
        access_log: file.access_log.clone(),
        settings,
    }))
}

/// Reports what is wrong in the file where it stands.
pub fn check(
    document: &mut Document,
    listen: Option<&str>,
    upstream: Option<&str>,
    file: Option<&GatewayFile>,
) {
    match read(listen, upstream, file, &[]) {
        // The upstream may still come from a flag.
        Err((path, error)) if !(error == NO_UPSTREAM && upstream.is_none()) => {
            document.error(&path, error, None)
        }
        _ => {}
    }
}

fn settings(
    upstream: Option<&str>,
    file: &GatewayFile,
    root: &DocumentPath,
    section: &DocumentPath,
) -> Result<GatewaySettings, Wrong> {
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
            let known: Vec<&str> = file.upstreams.keys().map(String::as_str).collect();
            let error = format!("there is no upstream `{}`; there are: {}", route.upstream, known.join(", "));
            return Err((path.field("upstream"), error));
        }
        let own = route.bodies.as_ref().map(|own| own.read(bodies, &path.field("bodies"))).transpose()?;
        routes.push(RouteSettings { bodies: own, ..read_route(route, &path)? });
    }
    if let Some(text) = upstream {
        let addresses = text.split(',').map(|text| text.trim().parse::<UpstreamAddress>());
        let addresses = addresses.collect::<Result<Vec<_>, _>>();
        let addresses = addresses.map_err(|error| (root.field("upstream"), error.to_string()))?;
        routes.push(RouteSettings { upstream: "--upstream".to_owned(), ..RouteSettings::default() });
        upstreams.push(UpstreamSettings::new("--upstream", addresses));
    } else if let ([only], []) = (upstreams.as_slice(), routes.as_slice()) {
        routes.push(RouteSettings { upstream: only.name.clone(), ..RouteSettings::default() });
    }
    if routes.is_empty() {
        return Err((section.clone(), NO_UPSTREAM.to_owned()));
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
            DoublesName::Drop => LookalikeHeaders::Drop,
            DoublesName::Pass => LookalikeHeaders::Pass,
        },
    })
}

fn read_route(route: &RouteFile, path: &DocumentPath) -> Result<RouteSettings, Wrong> {
    for (place, text) in route.paths.iter().enumerate() {
        let error = match canonical(text) {
            Ok(_) => continue,
            Err(PathError::NoSlash) => format!("`{text}` is not a path; it begins with a slash"),
            Err(fault) => format!("`{text}` matches nothing: {fault}"),
        };
        return Err((path.field("paths").index(place), error));
    }
    if let Some(place) = route.hosts.iter().position(|text| !is_host_pattern(text)) {
        let error =
            format!("`{}` is not a host; write it like shop.example or *.example", route.hosts[place]);
        return Err((path.field("hosts").index(place), error));
    }
    let (hosts, paths) = (route.hosts.clone(), route.paths.clone());
    Ok(RouteSettings { hosts, paths, upstream: route.upstream.clone(), bodies: None })
}

/// A host, `*.` and a host, or nothing or `*` for any.
fn is_host_pattern(text: &str) -> bool {
    let name = text.strip_prefix("*.").unwrap_or(text);
    matches!(text, "" | "*") || host::canonical(name).is_some_and(|name| !name.is_empty())
}

fn read_upstream(name: &str, file: &UpstreamFile, path: &DocumentPath) -> Result<UpstreamSettings, Wrong> {
    if file.addresses.is_empty() {
        return Err((
            path.clone(),
            "an upstream needs `addresses`, such as [http://10.0.0.5:3000]".to_owned(),
        ));
    }
    let addresses = file.addresses.iter().enumerate().map(|(index, text)| {
        text.parse::<UpstreamAddress>()
            .map_err(|error| (path.field("addresses").index(index), error.to_string()))
    });
    let mut upstream = UpstreamSettings::new(name, addresses.collect::<Result<_, _>>()?);
    upstream.balance = match file.balance {
        BalanceName::LeastLoaded => Balance::LeastLoaded,
        BalanceName::RoundRobin => Balance::RoundRobin,
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
        let error =
            format!("`{}` is out of range: `most_failures` lies between 1 and 1000", upstream.most_failures);
        return Err((path.field("most_failures"), error));
    }
    upstream.on_client_gone = match file.on_client_gone {
        ClientGoneName::Finish => OnClientGone::Finish,
        ClientGoneName::Cancel => OnClientGone::Cancel,
    };
    if let Some(health) = &file.health {
        let path = path.field("health");
        if !health.path.starts_with('/') {
            let error = format!("`{}` is not a path; it begins with a slash", health.path);
            return Err((path.field("path"), error));
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
    setting: Option<&Setting>,
    default: Duration,
    path: &DocumentPath,
    field: &str,
) -> Result<Duration, Wrong> {
    let Some(setting) = setting else { return Ok(default) };
    let wrong = |error| (path.field(field), error);
    let us = parse_duration_us(&setting.to_string()).map_err(wrong)?;
    if !(1_000..=86_400_000_000).contains(&us) {
        let error = format!("`{setting}` is out of range: `{field}` lies between 1ms and 1day");
        return Err((path.field(field), error));
    }
    Ok(Duration::from_micros(us))
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
            let file: GatewayFile = Document::parse("gateway.yaml", yaml).unwrap().decode().unwrap();
            let gateway = read(None, Some("http://127.0.0.1:1"), Some(&file), &[]).unwrap().unwrap();
            assert_eq!(gateway.options.refusal_fast_path, expected, "{yaml}");
        }
    }
}
