//! The upstream connections of one thread.
//!
//! Each thread has its own, so a request never waits for another thread, and its connection belongs to the runtime that
//! reads the response.

use super::connect::{ConnectError, UpstreamConnector};
use super::stream::WriteClosed;
use super::{ActiveRequest, ServerIndex, UpstreamServer};
use crate::body::UploadBody;
use crate::settings::UpstreamSettings;
use hyper::client::conn::http1::SendRequest;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// A connection to a server.
#[derive(Debug)]
pub(crate) struct UpstreamConnection {
    pub(crate) sender: SendRequest<UploadBody>,
    /// The deadline of the response. One timer serves all requests, because a reset is cheaper than a new timer.
    pub(crate) response_deadline: Pin<Box<Sleep>>,
    write_closed: WriteClosed,
}

impl UpstreamConnection {
    pub(super) fn new(sender: SendRequest<UploadBody>, write_closed: WriteClosed) -> Self {
        Self { sender, response_deadline: Box::pin(sleep(Duration::ZERO)), write_closed }
    }

    /// Whether nothing more can be sent.
    fn is_closed(&self) -> bool {
        self.sender.is_closed() || self.write_closed.get()
    }
}

/// The idle connections of one thread, by server.
#[derive(Debug)]
pub(crate) struct ConnectionPool {
    idle: Mutex<Vec<Vec<IdleConnection>>>,
    connector: UpstreamConnector,
}

#[derive(Debug)]
struct IdleConnection {
    connection: UpstreamConnection,
    /// The sweeps since its last use.
    age: u32,
}

/// Whether a connection was used before. If so, the server may have closed it at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionUse {
    First,
    Repeated,
}

/// A connection for one request.
#[derive(Debug)]
pub(crate) struct AcquiredConnection {
    pub(crate) connection: UpstreamConnection,
    pub(crate) usage: ConnectionUse,
}

/// A connection with a response in progress. It returns to its pool when the response has ended; dropped earlier, it is
/// closed.
#[derive(Debug)]
pub(crate) struct PooledConnection {
    pub(crate) connection: UpstreamConnection,
    pub(crate) request: ActiveRequest,
    pub(crate) pool: Arc<ConnectionPool>,
    pub(crate) most_idle: usize,
}

impl PooledConnection {
    /// Returns the connection to the pool.
    pub(crate) fn release(self) {
        self.pool.put(self.request.server().index, self.connection, self.most_idle);
    }
}

/// A connection is closed between this many and one more sweep intervals after its last use.
const OLDEST: u32 = 4;

impl ConnectionPool {
    /// An empty pool for `servers` servers.
    pub(crate) fn new(servers: usize, connector: UpstreamConnector) -> Self {
        Self { idle: Mutex::new((0..servers).map(|_| Vec::new()).collect()), connector }
    }

    /// A connection to `server`: the one used last, which the server is least likely to have closed, or a new one.
    pub(crate) async fn acquire(
        &self,
        server: &UpstreamServer,
        settings: &UpstreamSettings,
    ) -> Result<AcquiredConnection, ConnectError> {
        if let Some(acquired) = self.acquire_idle(server.index) {
            return Ok(acquired);
        }
        let connection = self.connector.connect(&server.address, settings.connect_time).await?;
        Ok(AcquiredConnection { connection, usage: ConnectionUse::First })
    }

    /// An idle connection, if there is one.
    pub(crate) fn acquire_idle(&self, server: ServerIndex) -> Option<AcquiredConnection> {
        let mut idle = self.idle.lock();
        let connections = &mut idle[server];
        let mut index = connections.len();
        while index > 0 {
            index -= 1;
            let connection = &connections[index].connection;
            if connection.is_closed() {
                connections.swap_remove(index);
            } else if connection.sender.is_ready() {
                let connection = connections.swap_remove(index).connection;
                return Some(AcquiredConnection { connection, usage: ConnectionUse::Repeated });
            }
            // A connection that is neither is still being written to, and will be ready later.
        }
        None
    }

    fn put(&self, server: ServerIndex, connection: UpstreamConnection, most_idle: usize) {
        let mut idle = self.idle.lock();
        let connections = &mut idle[server];
        if connections.len() < most_idle && !connection.is_closed() {
            connections.push(IdleConnection { connection, age: 0 });
        }
    }

    /// Closes connections that were idle for too long. To be called every [`sweep_interval`](Self::sweep_interval).
    pub(crate) fn sweep(&self, servers: std::ops::Range<ServerIndex>) {
        for connections in &mut self.idle.lock()[servers] {
            connections.retain_mut(|idle| {
                idle.age += 1;
                idle.age <= OLDEST && !idle.connection.is_closed()
            });
        }
    }

    /// The time between sweeps of connections that may be idle for `idle_time`.
    pub(crate) fn sweep_interval(idle_time: Duration) -> Duration {
        (idle_time / OLDEST).max(Duration::from_millis(10))
    }
}
