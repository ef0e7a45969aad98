//! A gateway that runs: one thread for each core, each with its own listener, runtime and connections.

use crate::forward::{Forwarder, Shared};
use crate::log::AccessLog;
use crate::probe;
use crate::settings::{Doubles, Scheme, Settings};
use crate::stack::Stack;
use crate::upstream::connect::{Connector, native_tls};
use ipnet::IpNet;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tollgate_http::RateLimitLayer;
use tollgate_listen::{ListenerSetup, ServeOptions, serve};

/// Connections that wait to be accepted, on each thread.
const BACKLOG: i32 = 4096;

/// How many polls of tasks there are before the system is asked for new events. Requests that came together go
/// from step to step together, and each step is done for all of them while it is in the processor's caches: to ask
/// more often breaks them up. Connections wait as long to be accepted, but a poll takes microseconds.
const POLLS_BEFORE_EVENTS: u32 = 512;
/// The same where polls may be handshakes, which take a millisecond.
const POLLS_WITH_TLS: u32 = 61;

/// Why a gateway cannot run.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What is wrong.
        error: io::Error,
    },
    /// A route leads nowhere.
    #[error("a route names the upstream `{0}`, which is not there")]
    NoUpstream(String),
    /// An upstream without addresses.
    #[error("the upstream `{0}` has no address")]
    NoAddress(String),
    /// TLS to upstreams cannot be spoken.
    #[error("TLS to upstreams cannot be used: {0}")]
    Tls(#[from] rustls::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Where and how a gateway listens.
#[derive(Clone, Debug)]
pub struct Listen {
    /// The address; port 0 for any that is free.
    pub address: SocketAddr,
    /// One for each core is best.
    pub threads: usize,
    /// The bounds of each thread.
    pub options: ServeOptions,
    /// Who is let in.
    pub entrance: ListenerSetup,
    /// Where requests are noted.
    pub log: Option<AccessLog>,
}

/// A gateway that runs, until it is stopped.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    /// What each thread says at its end.
    ended: mpsc::UnboundedReceiver<usize>,
    log: Option<AccessLog>,
}

impl Gateway {
    /// Listens from now on, and forwards what `limits` let pass.
    pub fn start(
        settings: &Settings,
        limits: &RateLimitLayer,
        listen: &Listen,
    ) -> Result<Self, GatewayError> {
        if let Some(upstream) = settings.upstreams.iter().find(|upstream| upstream.addresses.is_empty()) {
            return Err(GatewayError::NoAddress(upstream.name.clone()));
        }
        let shared = Shared::new(settings, listen.options.idle_time).map_err(GatewayError::NoUpstream)?;
        let shared = Arc::new(shared);
        let mut listen = listen.clone();
        listen.options.min_rate = settings.bodies.min_rate;
        let connector = connector(settings)?;
        let listeners = listeners(listen.address, listen.threads.max(1))
            .map_err(|error| GatewayError::Listen { address: listen.address, error })?;
        let address = listeners[0]
            .local_addr()
            .map_err(|error| GatewayError::Listen { address: listen.address, error })?;
        let (stop, stopped) = watch::channel(false);
        let (say, ended) = mpsc::unbounded_channel();
        let trusted: Arc<[IpNet]> = settings.trusted.clone().into();
        for (number, listener) in listeners.into_iter().enumerate() {
            let polls = if listen.entrance.tls.is_some() { POLLS_WITH_TLS } else { POLLS_BEFORE_EVENTS };
            let runtime = Builder::new_current_thread().enable_all().event_interval(polls).build();
            let runtime = runtime.map_err(GatewayError::Thread)?;
            let thread = Thread {
                listener,
                limits: limits.clone(),
                // Names of its own for each thread, so that no count of references is shared between cores.
                forwarder: Forwarder::new(
                    Arc::clone(&shared),
                    connector.clone(),
                    Arc::new(limits.reserved_names()),
                ),
                trusted: Arc::clone(&trusted),
                doubles: settings.doubles,
                listen: listen.clone(),
                stopped: stopped.clone(),
                // One is enough to ask servers how they are.
                asks: (number == 0).then(|| (Arc::clone(&shared), connector.clone())),
            };
            let say = say.clone();
            thread::Builder::new()
                .name(format!("gateway-{number}"))
                .spawn(move || {
                    let cut = thread.run(&runtime);
                    // Nobody may be waiting.
                    let _ = say.send(cut);
                })
                .map_err(GatewayError::Thread)?;
        }
        Ok(Self { address, stop, ended, log: listen.log.clone() })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Finishes what is in flight and ends. Answers how many connections had to be cut.
    pub async fn stop(mut self) -> usize {
        self.stop.send_replace(true);
        let mut cut = 0;
        while let Some(by_one) = self.ended.recv().await {
            cut += by_one;
        }
        if let Some(log) = &self.log {
            log.written().await;
        }
        cut
    }
}

/// One thread's part.
struct Thread {
    listener: TcpListener,
    limits: RateLimitLayer,
    forwarder: Forwarder,
    trusted: Arc<[IpNet]>,
    doubles: Doubles,
    listen: Listen,
    stopped: watch::Receiver<bool>,
    asks: Option<(Arc<Shared>, Connector)>,
}

impl Thread {
    fn run(self, runtime: &Runtime) -> usize {
        let Self { listener, limits, forwarder, trusted, doubles, listen, mut stopped, asks } = self;
        runtime.block_on(async move {
            let listener = match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::error!(%error, "a thread of the gateway cannot listen");
                    return 0;
                }
            };
            forwarder.keep_tidy();
            if let Some((shared, connector)) = asks {
                probe::start(&shared, &connector);
            }
            let stack = Stack::new(limits, forwarder, trusted, doubles, listen.log);
            // A gateway that was dropped stops as well.
            let shutdown = async move { drop(stopped.wait_for(|stop| *stop).await) };
            serve(listener, listen.entrance, |peer| stack.connect(peer), shutdown, listen.options).await
        })
    }
}

fn connector(settings: &Settings) -> Result<Connector, rustls::Error> {
    let mut addresses = settings.upstreams.iter().flat_map(|upstream| &upstream.addresses);
    let tls = addresses.any(|address| address.scheme == Scheme::Https).then(native_tls).transpose()?;
    Ok(Connector::new(tls.map(Arc::new)))
}

/// A listener for each thread, all on one port; the system deals connections out to them.
fn listeners(address: SocketAddr, count: usize) -> io::Result<Vec<TcpListener>> {
    // The option that lets our threads share a port would let another process share it too, unnoticed.
    // Without it, this fails if anybody is there.
    let alone = socket(address)?;
    alone.bind(&address.into())?;
    let address = alone.local_addr()?.as_socket().unwrap_or(address);
    drop(alone);
    let listen = |_| {
        let socket = socket(address)?;
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    (0..count).map(listen).collect()
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // So that a restart does not wait for old connections to be forgotten.
    socket.set_reuse_address(true)?;
    Ok(socket)
}
