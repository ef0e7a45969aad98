//! A running gateway: one thread per core, each with its own listener, runtime and upstream connections.

mod listeners;

use crate::access_log::AccessLog;
use crate::forward::ThreadForwarder;
use crate::forwarding_state::ForwardingState;
use crate::metrics::{GatewayMetrics, ThreadCounters};
use crate::request_id::X_REQUEST_ID;
use crate::route_table::UnknownUpstream;
use crate::settings::{GatewaySettings, LookalikeHeaders, RequestIds, UpstreamScheme};
use crate::stack::Stack;
use crate::upstream::connect::{UpstreamConnector, native_tls};
use crate::upstream::health_check;
use ipnet::IpNet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tollgate_core::rules::OpenDoor;
use tollgate_http::{IdentityExtractor, RateLimitLayer, ReservedHeaders};
use tollgate_limiter::Door;
use tollgate_limiter::metrics::MetricSource;
use tollgate_listen::{ListenerCounters, ListenerSetup, ServeOptions, serve};

/// The polls of tasks between two queries for I/O events. Requests that arrived together go from step to step together,
/// and each step runs for all of them while it is in the processor's caches; more frequent queries would separate them.
/// New connections wait as long to be accepted, but a poll takes microseconds.
const POLLS_BEFORE_EVENTS: u32 = 512;
/// The same with TLS, where a poll may be a handshake, which takes a millisecond.
const POLLS_WITH_TLS: u32 = 61;

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error.
        error: io::Error,
    },
    /// A route names an upstream that does not exist.
    #[error(transparent)]
    UnknownUpstream(#[from] UnknownUpstream),
    /// An upstream has no addresses.
    #[error("the upstream `{0}` has no addresses")]
    NoAddress(String),
    /// TLS to upstreams cannot be set up.
    #[error("cannot set up TLS to upstreams: {0}")]
    Tls(#[from] rustls::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Where and how a gateway listens.
#[derive(Clone, Debug)]
pub struct ListenSettings {
    /// The address; port 0 for any free port.
    pub address: SocketAddr,
    /// The number of threads, ideally one per core.
    pub threads: usize,
    /// The limits of each thread.
    pub options: ServeOptions,
    /// TLS and connection limits.
    pub setup: ListenerSetup,
    /// The access log.
    pub log: Option<AccessLog>,
}

/// A running gateway. It stops when it is dropped.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    /// Each thread sends the number of connections it had to cut, at its end.
    ended: mpsc::UnboundedReceiver<usize>,
    log: Option<AccessLog>,
    metrics: Arc<GatewayMetrics>,
}

impl Gateway {
    /// What the gateway supports, for the rule compiler, with these identities.
    pub fn describe(identities: &IdentityExtractor) -> OpenDoor {
        identities.open_door("the gateway")
    }

    /// Starts to listen, and forwards requests that `limits` admit.
    pub fn start(
        settings: &GatewaySettings,
        limits: &RateLimitLayer,
        listen: &ListenSettings,
    ) -> Result<Self, GatewayError> {
        if let Some(upstream) = settings.upstreams.iter().find(|upstream| upstream.addresses.is_empty()) {
            return Err(GatewayError::NoAddress(upstream.name.clone()));
        }
        let state = Arc::new(ForwardingState::new(settings, listen.options.idle_time)?);
        let mut listen = listen.clone();
        let limits = limits.clone().door(Door::Gateway);
        let limits = if listen.log.is_some() { limits.with_summaries() } else { limits };
        listen.options.min_rate = settings.bodies.min_rate;
        let connector = connector(settings)?;
        let listen_error = |error| GatewayError::Listen { address: listen.address, error };
        let listeners = listeners::bind(listen.address, listen.threads.max(1)).map_err(listen_error)?;
        let address = listeners[0].local_addr().map_err(listen_error)?;
        let (stop, stopped) = watch::channel(false);
        let (end, ended) = mpsc::unbounded_channel();
        let (mut threads, mut counted_listeners) = (Vec::new(), Vec::new());
        let trusted: Arc<[IpNet]> = settings.trusted.clone().into();
        for (number, listener) in listeners.into_iter().enumerate() {
            let polls = if listen.setup.tls.is_some() { POLLS_WITH_TLS } else { POLLS_BEFORE_EVENTS };
            let runtime = Builder::new_current_thread().enable_all().event_interval(polls).build();
            let runtime = runtime.map_err(GatewayError::Thread)?;
            let counters = Arc::new(ThreadCounters::new(state.routes.labels().len(), state.upstreams.len()));
            threads.push(Arc::clone(&counters));
            // Connections are counted by thread as well.
            let mut listen = listen.clone();
            listen.setup.counters = Arc::new(ListenerCounters::default());
            counted_listeners.push(Arc::clone(&listen.setup.counters));
            let thread = GatewayThread {
                listener,
                limits: limits.clone(),
                // Each thread has its own names, so that no reference count is shared between cores.
                forwarder: ThreadForwarder::new(
                    Arc::clone(&state),
                    connector.clone(),
                    Arc::new(reserved_names(&limits, settings.request_ids)),
                    counters,
                ),
                trusted: Arc::clone(&trusted),
                lookalikes: settings.lookalikes,
                request_ids: settings.request_ids,
                listen,
                stopped: stopped.clone(),
                health_checks: (number == 0).then(|| (Arc::clone(&state), connector.clone())),
            };
            let end = end.clone();
            thread::Builder::new()
                .name(format!("gateway-{number}"))
                .spawn(move || {
                    let cut = thread.run(&runtime);
                    // A dropped gateway does not wait.
                    let _ = end.send(cut);
                })
                .map_err(GatewayError::Thread)?;
        }
        let metrics = Arc::new(GatewayMetrics {
            state,
            threads,
            listeners: counted_listeners,
            limits: listen.setup.limits.clone(),
            has_tls: listen.setup.tls.is_some(),
            log: listen.log.clone(),
        });
        Ok(Self { address, stop, ended, log: listen.log, metrics })
    }

    /// The metrics of the gateway and its listeners. They stay readable after the gateway has stopped.
    pub fn metrics(&self) -> Arc<dyn MetricSource> {
        Arc::clone(&self.metrics) as _
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Drains: finishes the requests in flight, then stops. Returns the number of connections that were cut because they
    /// were still busy at the end of the grace period.
    pub async fn stop(mut self) -> usize {
        self.stop.send_replace(true);
        let mut cut = 0;
        while let Some(cut_by_thread) = self.ended.recv().await {
            cut += cut_by_thread;
        }
        if let Some(log) = &self.log {
            log.lines().flush().await;
        }
        cut
    }
}

/// What one thread needs to run.
struct GatewayThread {
    listener: TcpListener,
    limits: RateLimitLayer,
    forwarder: ThreadForwarder,
    trusted: Arc<[IpNet]>,
    lookalikes: LookalikeHeaders,
    request_ids: RequestIds,
    listen: ListenSettings,
    stopped: watch::Receiver<bool>,
    /// Set on one of the threads.
    health_checks: Option<(Arc<ForwardingState>, UpstreamConnector)>,
}

impl GatewayThread {
    /// Serves until the gateway stops. Returns the number of connections that were cut.
    fn run(self, runtime: &Runtime) -> usize {
        let Self { listener, limits, forwarder, trusted, lookalikes, request_ids, listen, .. } = self;
        let (mut stopped, health_checks) = (self.stopped, self.health_checks);
        runtime.block_on(async move {
            let listener = match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::error!(%error, "a gateway thread cannot listen");
                    return 0;
                }
            };
            forwarder.start_sweeps();
            if let Some((state, connector)) = health_checks {
                health_check::start(&state, &connector);
            }
            let stack = Stack { limits, forwarder, trusted, lookalikes, request_ids, log: listen.log };
            // This also resolves when the gateway is dropped.
            let shutdown = async move { drop(stopped.wait_for(|stop| *stop).await) };
            serve(listener, listen.setup, |peer| stack.service(peer), shutdown, listen.options).await
        })
    }
}

/// The names that a client can neither remove nor imitate.
fn reserved_names(limits: &RateLimitLayer, request_ids: RequestIds) -> ReservedHeaders {
    match request_ids {
        RequestIds::Forwarded => limits.reserved_names(),
        RequestIds::Assigned => limits.reserved_names().with_written(X_REQUEST_ID.clone()),
    }
}

fn connector(settings: &GatewaySettings) -> Result<UpstreamConnector, rustls::Error> {
    let mut addresses = settings.upstreams.iter().flat_map(|upstream| &upstream.addresses);
    let needs_tls = addresses.any(|address| address.scheme == UpstreamScheme::Https);
    let tls = needs_tls.then(native_tls).transpose()?;
    Ok(UpstreamConnector::new(tls.map(Arc::new)))
}
