//! The accept loop: from a listener and a service to a server that drains.
//!
//! Everything a stranger can make us hold is bounded: connections, also from one address, the size of a
//! head, the time a head may take, the time a connection may be silent, the streams on it. At shutdown the
//! listener closes first, idle connections close at once, requests in flight are finished, and what is
//! still open after the grace period is cut.

use crate::connection::{AcceptedConnection, ConnectionPermits};
use crate::connection_activity::{self, ConnectionActivity};
use crate::connection_limits::{ConnectionLimits, CountedConnection};
use crate::min_rate::MinRate;
use crate::protocol::ProtocolBuilders;
use crate::repeat_refusal::RepeatRefuser;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::service::Service;
use rustls::ServerConfig;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const LONGEST_BACKOFF: Duration = Duration::from_secs(1);

/// The bounds of a server.
#[derive(Clone, Copy, Debug)]
pub struct ServeOptions {
    /// Connections at once; the next one waits to be accepted.
    pub most_connections: u32,
    /// The request line and headers together. Their number is at most 100.
    pub most_head_bytes: usize,
    /// How long a head may take from its first byte, or from the connection's start; looked at every half
    /// of it.
    pub head_time: Duration,
    /// How long a connection may be silent between requests, or a peer not read what it asked for. On HTTP/2 only
    /// requests and bodies count: a client that just answers pings is silent.
    pub idle_time: Duration,
    /// What a client has to take of what is ready for it; none for clients that may be as slow as they like.
    pub min_rate: Option<MinRate>,
    /// How long requests in flight have at shutdown.
    pub grace: Duration,
    /// What is spoken.
    pub protocols: Protocols,
    /// What becomes of requests whose end is ambiguous.
    pub framing: Framing,
}

/// What is spoken on a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocols {
    /// HTTP/1.1.
    Http1,
    /// And HTTP/2, for clients that begin with it or agree on it in TLS.
    Http1And2,
}

/// What becomes of requests whose end is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// They are read by the letter of the standard, which is enough for who answers them itself.
    Usual,
    /// They are refused, so that no server behind us can read them differently.
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
            framing: Framing::Usual,
        }
    }
}

/// Who is let in, and how they are spoken to.
#[derive(Clone, Debug, Default)]
pub struct ListenerSetup {
    /// Connections are TLS, with this certificate.
    pub tls: Option<Arc<ServerConfig>>,
    /// Bounds what one address may hold.
    pub limits: Option<Arc<ConnectionLimits>>,
}

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Whether it is spoken to over TLS.
    pub secure: bool,
    /// Its permits in the limits; none if it is not counted.
    pub counted: Option<Arc<CountedConnection>>,
    activity: Arc<ConnectionActivity>,
}

impl Peer {
    /// Ends the connection after the answer that is being made: nothing more is read from it.
    pub fn close_after_response(&self) {
        self.activity.close_after_response();
    }

    /// Whether the request that was just handed over may come again in words that are kept: if it is refused, a
    /// [`RepeatRefuser`] is of use. It says so once.
    pub fn expects_repeat(&self) -> bool {
        self.activity.repeats.take_kept()
    }

    /// The request was refused. `refuser` answers those that come again in its words.
    pub fn record_refusal(&self, refuser: Option<Box<dyn RepeatRefuser>>) {
        self.activity.repeats.record_refusal(refuser);
    }

    /// The request was not refused.
    pub fn record_other_response(&self) {
        self.activity.repeats.record_other_response();
    }

    /// Part of a request's body was read: the client is not idle.
    pub fn record_progress(&self) {
        self.activity.moved();
    }
}

/// How far a server is; what its connections act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerPhase {
    Serving,
    /// Finish what is in flight.
    Draining,
    /// Time is up.
    Stopped,
}

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// What answers the requests of one connection: every hyper service that may be sent to another thread does.
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
    /// The body of an answer.
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

/// Serves until `shutdown`, then drains. `connect` makes the service of one connection. Answers how many connections
/// were still open when the grace period ended.
pub async fn serve<S: ConnectionService>(
    listener: TcpListener,
    entrance: ListenerSetup,
    connect: impl Fn(Peer) -> S,
    shutdown: impl Future<Output = ()>,
    options: ServeOptions,
) -> usize {
    let speakers = Arc::new(ProtocolBuilders::new(&options));
    let slots = Arc::new(Semaphore::new(options.most_connections as usize));
    let (phase, watched) = watch::channel(ServerPhase::Serving);
    let mut shutdown = pin!(shutdown);
    loop {
        let (stream, address, slot) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        let counted = match &entrance.limits {
            None => None,
            Some(limits) => match limits.admit(address.ip()) {
                Ok(counted) => counted.map(Arc::new),
                // Closed before a byte of it is read.
                Err(_) => continue,
            },
        };
        // Answers are small and written whole; waiting to fill a packet would only add latency.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(peer = %address, %error, "the connection was gone before it was served");
            continue;
        }
        bound_unsent(&stream);
        let activity = Arc::new(ConnectionActivity::default());
        let peer = Peer {
            address,
            secure: entrance.tls.is_some(),
            counted: counted.clone(),
            activity: Arc::clone(&activity),
        };
        let service = connect(peer);
        let connection = AcceptedConnection {
            stream,
            address,
            permits: ConnectionPermits { _slot: slot, counted },
            activity,
            phase: watched.clone(),
            options,
        };
        let (speakers, tls) = (Arc::clone(&speakers), entrance.tls.clone());
        tokio::spawn(connection.run(speakers, tls, service));
    }
    drop(listener);
    drain(&phase, &slots, &options).await
}

/// Waits until every connection gave its slot back, or the grace period is over.
async fn drain(phase: &watch::Sender<ServerPhase>, slots: &Semaphore, options: &ServeOptions) -> usize {
    phase.send_replace(ServerPhase::Draining);
    let all_slots = slots.acquire_many(options.most_connections);
    if tokio::time::timeout(options.grace, all_slots).await.is_ok() {
        return 0;
    }
    let open = options.most_connections as usize - slots.available_permits();
    tracing::warn!(open, "the grace period is over; connections with requests in flight are cut");
    phase.send_replace(ServerPhase::Stopped);
    open
}

/// The next connection, once there is a slot for it. Errors are waited out: a server that stops because
/// it ran out of file descriptors for a moment would turn a squeeze into an outage.
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
                tracing::warn!(%error, ?backoff, "cannot accept connections; trying again");
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(LONGEST_BACKOFF);
            }
        }
    }
}

/// Keeps the system from taking more of an answer than a peer that reads slowly needs; see `activity`. Without it peers have
/// to read faster to be seen to read, which is no reason to refuse them.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn bound_unsent(stream: &TcpStream) {
    if let Err(error) =
        socket2::SockRef::from(stream).set_tcp_notsent_lowat(connection_activity::MOST_UNSENT_BYTES)
    {
        tracing::debug!(%error, "the system does not bound what is not sent yet");
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn bound_unsent(_: &TcpStream) {}

/// Errors of a connection that went away while it was waiting to be accepted.
fn is_about_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
