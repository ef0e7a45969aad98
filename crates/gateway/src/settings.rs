//! The settings of a gateway: plain data, validated where it is read.

mod address;

pub use address::{UpstreamAddress, UpstreamAddressError, UpstreamScheme};
use ipnet::IpNet;
use std::time::Duration;
use tollgate_limiter::line_log::{LogDestination, LogRotation};
use tollgate_limiter::{KeyDisplay, KeySecret};
use tollgate_listen::MinRate;

/// How a gateway forwards requests.
#[derive(Clone, Debug)]
pub struct GatewaySettings {
    /// Which requests go to which upstream. An exact host takes precedence over a host pattern and that over any host;
    /// then the longest path prefix wins.
    pub routes: Vec<RouteSettings>,
    /// The upstreams that routes name.
    pub upstreams: Vec<UpstreamSettings>,
    /// Proxies whose forwarding headers are trusted and whose connections are never limited.
    pub trusted: Vec<IpNet>,
    /// The headers that tell upstreams about the client.
    pub forwarded: ForwardedHeaders,
    /// What happens to headers that an upstream may mistake for reserved ones.
    pub lookalikes: LookalikeHeaders,
    /// How slow bodies may be, unless a route overrides it.
    pub bodies: BodyLimits,
    /// What happens to `X-Request-Id`.
    pub request_ids: RequestIds,
}

impl GatewaySettings {
    /// Defaults, with all requests going to `upstream`.
    pub fn to(upstream: UpstreamSettings) -> Self {
        Self {
            routes: vec![RouteSettings { upstream: upstream.name.clone(), ..RouteSettings::default() }],
            upstreams: vec![upstream],
            trusted: Vec::new(),
            forwarded: ForwardedHeaders::default(),
            lookalikes: LookalikeHeaders::default(),
            bodies: BodyLimits::default(),
            request_ids: RequestIds::default(),
        }
    }
}

/// Which requests go to an upstream.
#[derive(Clone, Debug, Default)]
pub struct RouteSettings {
    /// Hosts without a port, such as `api.example.com` or `*.example.com`; empty for any.
    pub hosts: Vec<String>,
    /// Path prefixes of whole segments: `/v1` matches `/v1` and `/v1/users`, not `/v10`; empty for any.
    pub paths: Vec<String>,
    /// The name of the upstream.
    pub upstream: String,
    /// How slow bodies may be; `None` for the value of the [`GatewaySettings`].
    pub bodies: Option<BodyLimits>,
}

/// How slow bodies may be, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimits {
    /// The rate at which a client must send its body while the gateway waits for it, and read a response that is ready.
    /// `None` for no minimum.
    pub min_rate: Option<MinRate>,
    /// The time from the head of a request to the end of its response.
    pub total_time: Option<Duration>,
}

impl Default for BodyLimits {
    fn default() -> Self {
        Self { min_rate: Some(MinRate::default()), total_time: None }
    }
}

/// A group of interchangeable servers.
#[derive(Clone, Debug)]
pub struct UpstreamSettings {
    /// The name that routes use.
    pub name: String,
    /// The servers.
    pub addresses: Vec<UpstreamAddress>,
    /// How a server is selected.
    pub balance: Balance,
    /// The timeout of a new connection, including the TLS handshake.
    pub connect_time: Duration,
    /// The timeout of a response head, from when the request was sent.
    pub response_time: Duration,
    /// How long an unused connection is kept.
    pub idle_time: Duration,
    /// The most idle connections that each thread keeps to each server.
    pub most_idle: usize,
    /// How many times a request that is safe to repeat is retried.
    pub retries: u32,
    /// The consecutive failures after which a server is ejected.
    pub most_failures: u32,
    /// The duration of the first ejection; each further one takes twice as long, up to a minute.
    pub first_ejection: Duration,
    /// Active health checks.
    pub health: Option<HealthCheckSettings>,
    /// What happens to a request that counts as in flight when its client disconnects.
    pub on_client_gone: OnClientGone,
}

impl UpstreamSettings {
    /// An upstream with default settings.
    pub fn new(name: impl Into<String>, addresses: Vec<UpstreamAddress>) -> Self {
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

/// What happens to a request that counts as in flight (`algorithm: concurrency`) when its client disconnects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnClientGone {
    /// The gateway waits for the response without the client, and the request counts until then.
    #[default]
    Finish,
    /// The upstream connection is closed, and the request no longer counts. For servers that stop working then.
    Cancel,
}

/// How a server of an upstream is selected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// The server with the fewest requests in flight.
    #[default]
    LeastLoaded,
    /// One server after the other.
    RoundRobin,
}

/// Active health checks: a server is healthy if it responds with a status below 400.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheckSettings {
    /// The path to request.
    pub path: String,
    /// The time between checks.
    pub interval: Duration,
    /// The timeout of a check.
    pub timeout: Duration,
}

/// The headers that tell upstreams about the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedHeaders {
    /// `X-Forwarded-For`, `-Proto` and `-Host`.
    pub x_forwarded: bool,
    /// `Forwarded` (RFC 7239).
    pub forwarded: bool,
    /// `Via`, in both directions.
    pub via: bool,
}

impl Default for ForwardedHeaders {
    fn default() -> Self {
        Self { x_forwarded: true, forwarded: false, via: false }
    }
}

/// What happens to headers whose names differ from reserved ones in punctuation only, such as `X_Forwarded_For`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookalikeHeaders {
    /// They are removed.
    #[default]
    Drop,
    /// They are forwarded; the upstream must distinguish them.
    Pass,
}

/// What happens to the header `X-Request-Id` of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestIds {
    /// It is forwarded as any other header.
    #[default]
    Forwarded,
    /// A request without a valid id gets a new one. The id is sent to the upstream and to the client.
    Assigned,
}

/// How the access log is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLogSettings {
    /// Where it is written.
    pub destination: LogDestination,
    /// When its file is rotated.
    pub rotation: Option<LogRotation>,
    /// The format of its lines.
    pub format: AccessLogFormat,
    /// What it shows of keys.
    pub keys: KeyDisplay,
    /// The secret of hashed keys; random if there is none.
    pub key_secret: Option<KeySecret>,
}

impl AccessLogSettings {
    /// Lines of JSON with hashed keys, and no rotation.
    pub fn new(destination: LogDestination) -> Self {
        Self {
            destination,
            rotation: None,
            format: AccessLogFormat::default(),
            keys: KeyDisplay::default(),
            key_secret: None,
        }
    }
}

/// The format of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// An object of JSON.
    #[default]
    Json,
    /// Apache's combined format, with more fields behind it.
    Combined,
}
