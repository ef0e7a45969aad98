//! The connections of one thread to all servers.
//!
//! A thread has its own, so a request never waits for another thread, and the connection it is sent on
//! belongs to the runtime that reads the answer.

use super::connect::{ConnectError, Connector};
use super::stream::Listening;
use super::{Member, MemberIndex};
use crate::body::Sent;
use crate::settings;
use hyper::client::conn::http1::SendRequest;
use parking_lot::Mutex;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// What requests are sent on.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) sender: SendRequest<Sent>,
    /// Says when an answer is late. One for all requests, because to put a timer off is cheaper than to make one.
    pub(crate) late: Pin<Box<Sleep>>,
    listening: Listening,
}

impl Connection {
    pub(crate) fn new(sender: SendRequest<Sent>, listening: Listening) -> Self {
        Self { sender, late: Box::pin(sleep(Duration::ZERO)), listening }
    }

    /// Nothing more can be sent on it.
    fn is_closed(&self) -> bool {
        self.sender.is_closed() || self.listening.is_over()
    }
}

/// Idle connections, by server.
#[derive(Debug)]
pub(crate) struct Pool {
    idle: Mutex<Vec<Vec<Idle>>>,
    connector: Connector,
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    /// Sweeps that found it here.
    age: u32,
}

/// A connection to use, and whether it was used before: then the server may have closed it just now.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) connection: Connection,
    pub(crate) reused: bool,
}

/// A connection dies between this many and one more sweeps after its last use.
const OLDEST: u32 = 4;

impl Pool {
    /// Without connections yet.
    pub(crate) fn new(members: usize, connector: Connector) -> Self {
        Self { idle: Mutex::new((0..members).map(|_| Vec::new()).collect()), connector }
    }

    /// A connection to `member`: the one last used, because that is the one its server has not forgotten.
    pub(crate) async fn take(
        &self,
        member: &Member,
        settings: &settings::Upstream,
    ) -> Result<Taken, ConnectError> {
        if let Some(connection) = self.take_idle(member.index) {
            return Ok(Taken { connection, reused: true });
        }
        let connection = self.connector.connect(&member.address, settings.connect_time).await?;
        Ok(Taken { connection, reused: false })
    }

    /// One that is at hand.
    pub(crate) fn take_idle(&self, member: MemberIndex) -> Option<Connection> {
        let mut idle = self.idle.lock();
        let connections = &mut idle[member];
        let mut place = connections.len();
        while place > 0 {
            place -= 1;
            let connection = &connections[place].connection;
            if connection.is_closed() {
                connections.swap_remove(place);
            } else if connection.sender.is_ready() {
                return Some(connections.swap_remove(place).connection);
            }
            // What is neither is still being written to, and will be ready later.
        }
        None
    }

    /// Keeps a connection for the next request.
    pub(crate) fn put(&self, member: MemberIndex, connection: Connection, most_idle: usize) {
        let mut idle = self.idle.lock();
        let connections = &mut idle[member];
        if connections.len() < most_idle && !connection.is_closed() {
            connections.push(Idle { connection, age: 0 });
        }
    }

    /// Drops what was idle for too long; called every quarter of an idle time.
    pub(crate) fn sweep(&self, members: std::ops::Range<MemberIndex>) {
        for connections in &mut self.idle.lock()[members] {
            connections.retain_mut(|idle| {
                idle.age += 1;
                idle.age <= OLDEST && !idle.connection.is_closed()
            });
        }
    }

    /// How often to sweep connections that may be idle for so long.
    pub(crate) fn sweep_every(idle_time: Duration) -> Duration {
        (idle_time / OLDEST).max(Duration::from_millis(10))
    }
}
