//! The accept loop.
//!
//! Everything that a client can make the server hold is bounded: connections, also of one address, the size and the time of a
//! head, the idle time of a connection, its streams. At shutdown the listener closes first, then idle connections; requests in
//! flight are finished, and connections that are still open after the grace period are cut.

use crate::connection::{AcceptedConnection, ConnectionPermits};
use crate::connection_activity::{self, ConnectionActivity};
use crate::connection_limits::{ConnectionLimits, CountedConnection};
use crate::listener_counters::{ListenerCounters, OpenConnection};
use crate::min_rate::MinRate;
use crate::protocol::ProtocolBuilders;
use crate::refusal_fast_path::RefusalFastPath;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::service::Service;
use rustls::ServerConfig;
use socket2::SockRef;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// The most connections that wait to be accepted. The default of the standard library, 128, overflows when many clients
/// connect at once, such as nodes that follow a control plane after a publish: the kernel drops the attempt, and the client
/// repeats it after a second.
const BACKLOG: i32 = 4096;
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);

/// The bounds of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ServeOptions {
    /// Open connections; the next one is not accepted until one closes.
    pub most_connections: u32,
    /// The length of a request line and its headers. The number of headers is at most 100.
    pub most_head_bytes: usize,
    /// How long a head may take from its first byte, or the first head from the start of the connection. It is checked every half of
    /// this time.
    pub head_time: Duration,
    /// How long a connection may be idle between requests, or a client not read its response. On HTTP/2 only requests and bodies
    /// count: a client that only answers pings is idle.
    pub idle_time: Duration,
    /// How fast a client has to read its responses; none for no minimum.
    pub min_rate: Option<MinRate>,
    /// How long requests in flight may take at shutdown.
    pub grace: Duration,
    /// The protocols.
    pub protocols: Protocols,
    /// What becomes of requests whose end is ambiguous.
    pub framing: Framing,
    /// Whether repeated requests of a refused client are answered before they are parsed.
    pub refusal_fast_path: RefusalFastPath,
}

/// The protocols of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocols {
    /// HTTP/1.1.
    Http1,
    /// HTTP/1.1, and HTTP/2 for clients that start with its preface or negotiate it in TLS.
    Http1And2,
}

/// What becomes of requests whose end is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// They are read as the standard says, which is enough for a server that answers them itself.
    Standard,
    /// They are refused, so that no upstream can read them differently.
    Strict,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            most_connections: 10_000,
            most_head_bytes: 16 * 1024,
            head_time: Duration::from_secs(5),
            idle_time: Duration::from_secs(75),
            min_rate: Some(MinRate::default()),
            grace: Duration::from_secs(10),
            protocols: Protocols::Http1,
            framing: Framing::Standard,
            refusal_fast_path: RefusalFastPath::default(),
        }
    }
}

/// TLS, the connection limits and the counters of a listener.
#[derive(Clone, Debug, Default)]
pub struct ListenerSetup {
    /// None for connections without TLS.
    pub tls: Option<Arc<ServerConfig>>,
    /// The limits of each client address.
    pub limits: Option<Arc<ConnectionLimits>>,
    /// What the listener counts.
    pub counters: Arc<ListenerCounters>,
}

/// The client's end of a connection, for the service that answers its requests.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The client's address.
    pub address: SocketAddr,
    /// Whether the connection is TLS.
    pub secure: bool,
    /// The connection in the counts of its address; none if it is not counted.
    pub counted: Option<Arc<CountedConnection>>,
    pub(crate) activity: Arc<ConnectionActivity>,
}

impl Peer {
    /// Closes the connection after the response in progress: no more requests are read from it.
    pub fn close_after_response(&self) {
        self.activity.close_after_response();
    }

    /// Records that a part of a request body was read: the client is not idle.
    pub fn record_progress(&self) {
        self.activity.record_progress();
    }
}

/// Whether the server accepts, drains or stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerPhase {
    Serving,
    /// Connections end after their requests in flight.
    Draining,
    /// The grace period is over.
    Stopped,
}

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Answers the requests of one connection. Every hyper service that can be sent between threads is one.
pub trait ConnectionService:
    Service<
        Request<Incoming>,
        Response = Response<Self::Body>,
        Future: Send,
        Error: Into<Box<dyn Error + Send + Sync>> + Send,
    > + Send
    + Sync
    + 'static
{
    /// The body of its responses.
    type Body: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static;
}

impl<S, B> ConnectionService for S
where
    S: Service<Request<Incoming>, Response = Response<B>> + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    type Body = B;
}

/// Lets more clients connect at once than the default allows.
pub(crate) fn set_backlog(listener: &TcpListener) {
    if let Err(error) = SockRef::from(listener).listen(BACKLOG) {
        tracing::warn!(%error, "backlog of the listener cannot be set");
    }
}

/// Serves until `shutdown`, then drains. `connect` makes the service of one connection. Returns the number of connections that were
/// still open when the grace period ended.
pub async fn serve<S: ConnectionService>(
    listener: TcpListener,
    setup: ListenerSetup,
    connect: impl Fn(Peer) -> S,
    shutdown: impl Future<Output = ()>,
    options: ServeOptions,
) -> usize {
    set_backlog(&listener);
    let builders = Arc::new(ProtocolBuilders::new(&options));
    let slots = Arc::new(Semaphore::new(options.most_connections as usize));
    let (phase, watched) = watch::channel(ServerPhase::Serving);
    let mut shutdown = pin!(shutdown);
    loop {
        let AdmittedConnection { stream, address, permits } = tokio::select! {
            biased;
            () = &mut shutdown => break,
            admitted = next_connection(&listener, &slots, &setup) => admitted,
        };
        let activity = Arc::new(ConnectionActivity::new(&options));
        let peer = Peer {
            address,
            secure: setup.tls.is_some(),
            counted: permits.counted.clone(),
            activity: Arc::clone(&activity),
        };
        let service = connect(peer);
        let connection =
            AcceptedConnection { stream, address, permits, activity, phase: watched.clone(), options };
        let (builders, tls) = (Arc::clone(&builders), setup.tls.clone());
        tokio::spawn(connection.run(builders, tls, service));
    }
    drop(listener);
    drain(&phase, &slots, &options).await
}

/// A connection that was accepted and that the limits of its address allow.
pub(crate) struct AdmittedConnection {
    pub(crate) stream: TcpStream,
    pub(crate) address: SocketAddr,
    pub(crate) permits: ConnectionPermits,
}

/// The next connection that is to be served.
pub(crate) async fn next_connection(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
    setup: &ListenerSetup,
) -> AdmittedConnection {
    loop {
        let (stream, address, slot) = accept(listener, slots).await;
        let counted = match &setup.limits {
            None => None,
            Some(limits) => match limits.admit(address.ip()) {
                Ok(counted) => counted.map(Arc::new),
                // Dropping the stream closes it before a byte is read.
                Err(_) => continue,
            },
        };
        // Responses are small and written whole; waiting to fill a packet would only add latency.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(peer = %address, %error, "connection closed before it was served");
            continue;
        }
        bound_unsent(&stream);
        let permits = ConnectionPermits { _slot: slot, open: OpenConnection::new(&setup.counters), counted };
        return AdmittedConnection { stream, address, permits };
    }
}

/// Waits until all connections are closed, or the grace period is over.
pub(crate) async fn drain(
    phase: &watch::Sender<ServerPhase>,
    slots: &Semaphore,
    options: &ServeOptions,
) -> usize {
    phase.send_replace(ServerPhase::Draining);
    let all_slots = slots.acquire_many(options.most_connections);
    if tokio::time::timeout(options.grace, all_slots).await.is_ok() {
        return 0;
    }
    let open = options.most_connections as usize - slots.available_permits();
    tracing::warn!(open, "shutdown timeout: connections with requests in flight are cut");
    phase.send_replace(ServerPhase::Stopped);
    open
}

/// The next connection, once there is a slot for it. Errors are retried: a server that stopped because it ran out of file
/// descriptors for a moment would turn a shortage into an outage.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    let slot = Arc::clone(slots).acquire_owned().await.expect("the slots are never closed");
    let mut backoff = FIRST_BACKOFF;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => return (stream, peer, slot),
            Err(error) if is_about_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, ?backoff, "cannot accept connections; retrying");
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(LONGEST_BACKOFF);
            }
        }
    }
}

/// Bounds what the kernel buffers of a response; see `connection_activity`. Where that fails, a client has to read faster to be seen
/// to read, which is no reason to refuse it.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn bound_unsent(stream: &TcpStream) {
    if let Err(error) =
        socket2::SockRef::from(stream).set_tcp_notsent_lowat(connection_activity::MOST_UNSENT_BYTES)
    {
        tracing::debug!(%error, "cannot bound the unsent bytes of a socket");
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn bound_unsent(_: &TcpStream) {}

/// Whether an error concerns only a connection that was closed before it was accepted.
fn is_about_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
