//! The forwarder: prepares a request for its server, and the server's response for the client.
//!
//! It is a tower service, so that everything that decides about requests is a layer in front of it.

use crate::access_log::RequestTrace;
use crate::body::{GatewayBody, RoutedBody, UpstreamBody};
use crate::client_address::ClientAddresses;
use crate::client_gone::FinishLimit;
use crate::exchange::{Exchange, ForwardFuture};
use crate::forward_error::ForwardError;
use crate::forwarding_state::ForwardingState;
use crate::headers::{self, ClientOrigin, HeaderKinds};
use crate::metrics::ThreadCounters;
use crate::route_table::{NO_ROUTE, RouteIndex, UpstreamIndex};
use crate::scrub::ScrubFindings;
use crate::settings::BodyLimits;
use crate::tunnel::Tunnel;
use crate::upstream::Upstream;
use crate::upstream::connect::UpstreamConnector;
use crate::upstream::pool::{ConnectionPool, PooledConnection};
use http::header::{HOST, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Request, Response, Uri, Version};
use hyper::body::{Body, Incoming};
use hyper::upgrade::OnUpgrade;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::time::Instant;
use tollgate_http::ReservedHeaders;
use tollgate_http::host;
use tollgate_http::layer::SharedPermit;
use tollgate_http::response::switches_protocols;
use tollgate_listen::{Peer, SendLimits};

/// The response to a request.
pub(crate) type GatewayResponse = Response<GatewayBody>;

/// The response to a request, with the route of the request.
pub(crate) type RoutedResponse = Response<RoutedBody>;

/// Makes the forwarders of one thread's connections.
#[derive(Clone, Debug)]
pub(crate) struct ThreadForwarder {
    state: Arc<ForwardingState>,
    pool: Arc<ConnectionPool>,
    finish_limit: FinishLimit,
    reserved: Arc<ReservedHeaders>,
    counters: Arc<ThreadCounters>,
}

/// Forwards the requests of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Forwarder(Arc<ForwardContext>);

/// What the requests of one connection have in common.
#[derive(Debug)]
pub(crate) struct ForwardContext {
    pub(crate) state: Arc<ForwardingState>,
    pub(crate) pool: Arc<ConnectionPool>,
    pub(crate) finish_limit: FinishLimit,
    /// The names that trailers must not have, and that `Connection` must not remove.
    pub(crate) reserved: Arc<ReservedHeaders>,
    /// The counters of the thread.
    pub(crate) counters: Arc<ThreadCounters>,
    /// The client's end of the connection.
    pub(crate) peer: Arc<Peer>,
    origin: ClientOrigin,
    clients: ClientAddresses,
}

/// What is known of a request when it is ready to be sent.
#[derive(Debug)]
pub(crate) struct PreparedRequest {
    pub(crate) route: RouteIndex,
    pub(crate) upstream: UpstreamIndex,
    /// The HTTP version of the client.
    pub(crate) version: Version,
    pub(crate) client: IpAddr,
    pub(crate) bodies: BodyLimits,
    /// Whether the route overrides the gateway's body limits.
    has_route_bodies: bool,
    pub(crate) deadline: Option<Instant>,
    /// Held by a request that counts as in flight.
    pub(crate) permit: Option<SharedPermit>,
    /// For the access log.
    pub(crate) trace: Option<Arc<RequestTrace>>,
    /// The client asked for another protocol.
    upgrade: Option<OnUpgrade>,
}

impl ThreadForwarder {
    pub(crate) fn new(
        state: Arc<ForwardingState>,
        connector: UpstreamConnector,
        reserved: Arc<ReservedHeaders>,
        counters: Arc<ThreadCounters>,
    ) -> Self {
        let pool = Arc::new(ConnectionPool::new(state.servers(), connector));
        Self { state, pool, finish_limit: FinishLimit::default(), reserved, counters }
    }

    pub(crate) fn reserved(&self) -> &Arc<ReservedHeaders> {
        &self.reserved
    }

    pub(crate) fn state(&self) -> &Arc<ForwardingState> {
        &self.state
    }

    pub(crate) fn counters(&self) -> &Arc<ThreadCounters> {
        &self.counters
    }

    /// The forwarder of one connection.
    pub(crate) fn for_connection(
        &self,
        peer: Arc<Peer>,
        origin: ClientOrigin,
        clients: ClientAddresses,
    ) -> Forwarder {
        let Self { state, pool, finish_limit, reserved, counters } = self.clone();
        Forwarder(Arc::new(ForwardContext {
            state,
            pool,
            finish_limit,
            reserved,
            counters,
            peer,
            origin,
            clients,
        }))
    }

    /// Starts tasks that close idle upstream connections. They end with the runtime.
    pub(crate) fn start_sweeps(&self) {
        for upstream in &self.state.upstreams {
            let first = upstream.servers.first().map_or(0, |server| server.index);
            let servers = first..first + upstream.servers.len();
            let (pool, idle_time) = (Arc::clone(&self.pool), upstream.settings.idle_time);
            tokio::spawn(async move {
                let mut every = tokio::time::interval(ConnectionPool::sweep_interval(idle_time));
                loop {
                    every.tick().await;
                    pool.sweep(servers.clone());
                }
            });
        }
    }
}

impl tower::Service<Request<Incoming>> for Forwarder {
    type Response = RoutedResponse;
    type Error = Infallible;
    type Future = ForwardFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Incoming>) -> ForwardFuture {
        match self.0.prepare(&mut request) {
            Ok(prepared) => Exchange::start(&self.0, request, prepared),
            Err(error) => Box::pin(std::future::ready(Ok(RoutedBody::wrap(error.response(), NO_ROUTE)))),
        }
    }
}

impl ForwardContext {
    pub(crate) fn upstream(&self, prepared: &PreparedRequest) -> &Upstream {
        &self.state.upstreams[prepared.upstream]
    }

    /// Finds the route and turns the client's request into the one that the server gets.
    fn prepare(&self, request: &mut Request<Incoming>) -> Result<PreparedRequest, ForwardError> {
        if request.method() == Method::CONNECT || request.method() == Method::TRACE {
            return Err(ForwardError::Method);
        }
        let host = take_host(request)?;
        let name = host.to_str().ok().and_then(host::canonical).ok_or(ForwardError::Host)?;
        let found = self.state.routes.find(&name, request.uri().path());
        let route = found.ok_or_else(|| ForwardError::NoRoute(request.uri().path().to_owned()))?;
        let client = self.clients.client(request.headers());
        let permit = request.extensions_mut().remove::<SharedPermit>();
        let trace = request.extensions_mut().remove::<Arc<RequestTrace>>();
        let (version, has_body) = (request.version(), !request.body().is_end_stream());
        let on_upgrade = request.extensions_mut().remove::<OnUpgrade>();
        let scrubbed = request.extensions_mut().remove::<ScrubFindings>().unwrap_or_default();
        if scrubbed.has_ambiguous_length {
            return Err(ForwardError::Framing);
        }
        *request.version_mut() = Version::HTTP_11;
        let headers = request.headers_mut();
        self.origin.write(headers, &host, self.state.forwarded);
        if self.state.forwarded.via {
            headers::put_via(headers, version);
        }
        if headers.get(HOST) != Some(&host) {
            headers.insert(HOST, host);
        }
        // With a body it would be ambiguous where the other protocol begins.
        let upgrade = match (scrubbed.upgrade, on_upgrade) {
            (Some(protocol), Some(on_upgrade)) if !has_body => {
                headers::put_upgrade(headers, protocol);
                Some(on_upgrade)
            }
            _ => None,
        };
        let bodies = route.bodies.unwrap_or(self.state.bodies);
        Ok(PreparedRequest {
            route: route.index,
            upstream: route.upstream,
            version,
            client,
            bodies,
            has_route_bodies: route.bodies.is_some(),
            deadline: bodies.total_time.map(|time| Instant::now() + time),
            permit,
            trace,
            upgrade,
        })
    }

    /// Turns the server's response into the one that the client gets.
    pub(crate) fn relay(
        &self,
        mut response: Response<Incoming>,
        connection: PooledConnection,
        prepared: PreparedRequest,
    ) -> Result<GatewayResponse, ForwardError> {
        if switches_protocols(&response) {
            let Some(client) = prepared.upgrade else { return Err(ForwardError::InvalidResponse) };
            let tunnel = Tunnel {
                connection,
                permit: prepared.permit,
                trace: prepared.trace,
                counters: Arc::clone(&self.counters),
                idle_time: self.state.tunnel_idle_time,
                deadline: prepared.deadline,
            };
            return tunnel.open(client, response, &self.reserved);
        }
        let headers = response.headers_mut();
        let kinds = HeaderKinds::of(headers);
        if kinds.hop_by_hop {
            headers::remove_hop_by_hop(headers, &self.reserved);
        }
        if kinds.framing {
            // The client's connection frames the body anew.
            headers.remove(TRANSFER_ENCODING);
        }
        if self.state.forwarded.via {
            headers::put_via(headers, Version::HTTP_11);
        }
        *response.version_mut() = prepared.version;
        if prepared.has_route_bodies || prepared.deadline.is_some() {
            let limits = SendLimits { min_rate: prepared.bodies.min_rate, until: prepared.deadline };
            response.extensions_mut().insert(limits);
        }
        let reserved = Arc::clone(&self.reserved);
        Ok(response.map(|body| {
            GatewayBody::Upstream(UpstreamBody::new(body, connection, prepared.version, reserved))
        }))
    }
}

/// The host of a request, from its target or its `Host` header. The target is reduced to path and query.
fn take_host(request: &mut Request<Incoming>) -> Result<HeaderValue, ForwardError> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let (first, more) = (hosts.next().cloned(), hosts.next().is_some());
    if more {
        return Err(ForwardError::Host);
    }
    if let Some(authority) = request.uri().authority() {
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| ForwardError::Host)?;
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = path.map_or(Uri::from_static("/"), Uri::from);
        return Ok(host);
    }
    match first {
        Some(host) => Ok(host),
        // HTTP/1.0 does not require it.
        None if request.version() == Version::HTTP_10 => Ok(HeaderValue::from_static("")),
        None => Err(ForwardError::Host),
    }
}
