//! The forwarder: a request goes to a server, its answer comes back.
//!
//! It is a tower service, so whatever decides about requests stands in front of it as a layer.

use crate::body::{AnswerBody, ExchangeRoom, Lease, Received};
use crate::client::Clients;
use crate::exchange::Exchange;
use crate::headers::{self, Noticed, Origin};
use crate::refusal::Refused;
use crate::route::{Routes, UpstreamIndex};
use crate::scrub::Scrubbed;
use crate::settings::{BodyLimits, Forwarded, Settings};
use crate::tunnel::Tunnel;
use crate::upstream::Upstream;
use crate::upstream::connect::Connector;
use crate::upstream::pool::Pool;
use http::header::{HOST, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Request, Response, Uri, Version};
use hyper::body::{Body, Incoming};
use hyper::upgrade::OnUpgrade;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;
use tollgate_http::ReservedHeaders;
use tollgate_http::host;
use tollgate_http::layer::SharedPermit;
use tollgate_http::response::switches_protocols;
use tollgate_listen::{Peer, SendLimits};

/// What all threads share: where requests go, and how the servers are.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) routes: Routes,
    pub(crate) upstreams: Vec<Upstream>,
    pub(crate) forwarded: Forwarded,
    bodies: BodyLimits,
    /// How long a tunnel may be silent.
    tunnel_idle_time: Duration,
}

impl Shared {
    /// The error is the name of an upstream that a route names and that is not there.
    pub(crate) fn new(settings: &Settings, tunnel_idle_time: Duration) -> Result<Self, String> {
        let mut first = 0;
        let upstreams = settings.upstreams.iter().map(|upstream| {
            let upstream = Upstream::new(upstream.clone(), first);
            first += upstream.members.len();
            upstream
        });
        Ok(Self {
            upstreams: upstreams.collect(),
            routes: Routes::new(&settings.routes, &settings.upstreams)?,
            forwarded: settings.forwarded,
            bodies: settings.bodies,
            tunnel_idle_time,
        })
    }

    pub(crate) fn members(&self) -> usize {
        self.upstreams.iter().map(|upstream| upstream.members.len()).sum()
    }
}

/// Forwards requests of one thread, or of one connection to it.
#[derive(Clone, Debug)]
pub struct Forwarder(Arc<Way>);

/// What the requests of one connection have in common.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) exchange_room: ExchangeRoom,
    /// The client's end of the connection; none outside of one.
    pub(crate) peer: Option<Arc<Peer>>,
    /// Who asks; none if servers are not told.
    origin: Option<Origin>,
    clients: Option<Clients>,
    /// What trailers must not carry, and `Connection` not take away.
    pub(crate) reserved: Arc<ReservedHeaders>,
}

/// The answer to a request.
pub type Answer = Response<AnswerBody>;

/// The client of requests outside of a connection.
const NO_CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl tower::Service<Request<Incoming>> for Forwarder {
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    /// With a connection at hand the request is on its way when this returns, and what is left is a wait.
    fn call(&mut self, mut request: Request<Incoming>) -> Self::Future {
        match self.0.prepare(&mut request) {
            Ok(order) => Exchange::begin(&self.0, request, order),
            Err(refused) => Box::pin(std::future::ready(Ok(refused.answer()))),
        }
    }
}

/// What is known of a request when it is ready to be sent.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) upstream: UpstreamIndex,
    /// The client's.
    pub(crate) version: Version,
    pub(crate) client: IpAddr,
    pub(crate) bodies: BodyLimits,
    /// The route has its own.
    has_own_bodies: bool,
    /// When all of it has to be over.
    pub(crate) until: Option<Instant>,
    /// Its place among the requests in flight, if it counts there.
    pub(crate) place: Option<SharedPermit>,
    /// The client wants to change to another protocol.
    upgrade: Option<OnUpgrade>,
}

impl Forwarder {
    pub(crate) fn new(shared: Arc<Shared>, connector: Connector, reserved: Arc<ReservedHeaders>) -> Self {
        let pool = Arc::new(Pool::new(shared.members(), connector));
        let exchange_room = ExchangeRoom::default();
        Self(Arc::new(Way { shared, pool, exchange_room, peer: None, origin: None, clients: None, reserved }))
    }

    pub(crate) fn reserved(&self) -> &Arc<ReservedHeaders> {
        &self.0.reserved
    }

    /// For the requests of one connection.
    pub(crate) fn of(&self, peer: Arc<Peer>, origin: Origin, clients: Clients) -> Self {
        let (peer, origin, clients) = (Some(peer), Some(origin), Some(clients));
        Self(Arc::new(Way { peer, origin, clients, ..Way::clone(&self.0) }))
    }

    /// Drops connections that were idle for too long, until the runtime ends.
    pub(crate) fn keep_tidy(&self) {
        for upstream in &self.0.shared.upstreams {
            let first = upstream.members.first().map_or(0, |member| member.index);
            let members = first..first + upstream.members.len();
            let (pool, idle_time) = (Arc::clone(&self.0.pool), upstream.settings.idle_time);
            tokio::spawn(async move {
                let mut every = tokio::time::interval(Pool::sweep_every(idle_time));
                loop {
                    every.tick().await;
                    pool.sweep(members.clone());
                }
            });
        }
    }
}

impl Way {
    pub(crate) fn upstream(&self, order: &Order) -> &Upstream {
        &self.shared.upstreams[order.upstream]
    }

    /// Makes the request what the server shall see.
    fn prepare(&self, request: &mut Request<Incoming>) -> Result<Order, Refused> {
        if request.method() == Method::CONNECT || request.method() == Method::TRACE {
            return Err(Refused::Method);
        }
        let host = take_host(request)?;
        let name = host.to_str().ok().and_then(host::canonical).ok_or(Refused::Host)?;
        let found = self.shared.routes.find(&name, request.uri().path());
        let route = found.ok_or_else(|| Refused::NoRoute(request.uri().path().to_owned()))?;
        let client = self.clients.as_ref().map_or(NO_CLIENT, |clients| clients.client(request.headers()));
        let place = request.extensions_mut().remove::<SharedPermit>();
        let (version, has_body) = (request.version(), !request.body().is_end_stream());
        let on_upgrade = request.extensions_mut().remove::<OnUpgrade>();
        let scrubbed = request.extensions_mut().remove::<Scrubbed>().unwrap_or_default();
        if scrubbed.is_ambiguous {
            return Err(Refused::Framing);
        }
        *request.version_mut() = Version::HTTP_11;
        let headers = request.headers_mut();
        if let Some(origin) = &self.origin {
            origin.write(headers, &host, self.shared.forwarded);
        }
        if self.shared.forwarded.via {
            headers::put_via(headers, version);
        }
        if headers.get(HOST) != Some(&host) {
            headers.insert(HOST, host);
        }
        // With a body it would not be clear where the other protocol begins.
        let upgrade = match (scrubbed.upgrade, on_upgrade) {
            (Some(protocol), Some(on_upgrade)) if !has_body => {
                headers::put_upgrade(headers, protocol);
                Some(on_upgrade)
            }
            _ => None,
        };
        let bodies = route.bodies.unwrap_or(self.shared.bodies);
        Ok(Order {
            upstream: route.upstream,
            version,
            client,
            bodies,
            has_own_bodies: route.bodies.is_some(),
            until: bodies.total_time.map(|time| Instant::now() + time),
            place,
            upgrade,
        })
    }

    /// Makes a server's answer what the client shall see.
    pub(crate) fn pass_on(
        &self,
        mut answer: Response<Incoming>,
        lease: Lease,
        order: Order,
    ) -> Result<Answer, Refused> {
        if switches_protocols(&answer) {
            let Some(client) = order.upgrade else { return Err(Refused::BadAnswer) };
            let idle_time = self.shared.tunnel_idle_time;
            let tunnel = Tunnel { lease, place: order.place, idle_time, until: order.until };
            return tunnel.open(client, answer, &self.reserved);
        }
        let headers = answer.headers_mut();
        let noticed = Noticed::in_(headers);
        if noticed.hop_by_hop {
            headers::remove_hop_by_hop(headers, &self.reserved);
        }
        if noticed.framing {
            // The body is framed anew, as the client's connection wants it.
            headers.remove(TRANSFER_ENCODING);
        }
        if self.shared.forwarded.via {
            headers::put_via(headers, Version::HTTP_11);
        }
        *answer.version_mut() = order.version;
        if order.has_own_bodies || order.until.is_some() {
            let pace = SendLimits { min_rate: order.bodies.min_rate, until: order.until };
            answer.extensions_mut().insert(pace);
        }
        let reserved = Arc::clone(&self.reserved);
        Ok(answer.map(|body| AnswerBody::Upstream(Received::new(body, lease, order.version, reserved))))
    }
}

/// The host that a request is for, out of its target or its `Host`; the target becomes a plain path.
fn take_host(request: &mut Request<Incoming>) -> Result<HeaderValue, Refused> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let (first, more) = (hosts.next().cloned(), hosts.next().is_some());
    if more {
        return Err(Refused::Host);
    }
    if let Some(authority) = request.uri().authority() {
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| Refused::Host)?;
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = path.map_or(Uri::from_static("/"), Uri::from);
        return Ok(host);
    }
    match first {
        Some(host) => Ok(host),
        // HTTP/1.0 did not know it yet.
        None if request.version() == Version::HTTP_10 => Ok(HeaderValue::from_static("")),
        None => Err(Refused::Host),
    }
}
