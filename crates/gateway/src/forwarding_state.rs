//! What all threads of a gateway share: routes, upstreams with their health, and settings.

use crate::route_table::{NO_ROUTE, RouteIndex, RouteTable, UnknownUpstream};
use crate::settings::{BodyLimits, ForwardedHeaders, GatewaySettings};
use crate::upstream::Upstream;
use http::Request;
use std::time::Duration;
use tollgate_core::path;
use tollgate_http::host;

/// The state of a gateway that its threads share.
#[derive(Debug)]
pub(crate) struct ForwardingState {
    pub(crate) routes: RouteTable,
    pub(crate) upstreams: Vec<Upstream>,
    pub(crate) forwarded: ForwardedHeaders,
    pub(crate) bodies: BodyLimits,
    /// How long a tunnel may be idle.
    pub(crate) tunnel_idle_time: Duration,
}

impl ForwardingState {
    pub(crate) fn new(
        settings: &GatewaySettings,
        tunnel_idle_time: Duration,
    ) -> Result<Self, UnknownUpstream> {
        let mut first = 0;
        let upstreams = settings.upstreams.iter().map(|upstream| {
            let upstream = Upstream::new(upstream.clone(), first);
            first += upstream.servers.len();
            upstream
        });
        Ok(Self {
            upstreams: upstreams.collect(),
            routes: RouteTable::new(&settings.routes, &settings.upstreams)?,
            forwarded: settings.forwarded,
            bodies: settings.bodies,
            tunnel_idle_time,
        })
    }

    /// The route under which a response to `request` is counted if the forwarder does not get the request.
    pub(crate) fn route_of<B>(&self, request: &Request<B>) -> RouteIndex {
        let Ok(path) = path::canonical(request.uri().path()) else { return NO_ROUTE };
        let Ok(host) = host::of_request(request.uri(), request.headers()) else { return NO_ROUTE };
        let found = self.routes.find(host.as_deref().unwrap_or_default(), &path);
        found.map_or(NO_ROUTE, |route| route.index)
    }

    /// The number of servers of all upstreams.
    pub(crate) fn servers(&self) -> usize {
        self.upstreams.iter().map(|upstream| upstream.servers.len()).sum()
    }
}
