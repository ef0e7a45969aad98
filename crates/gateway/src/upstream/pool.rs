//! The connections of one thread to all servers.
//!
//! A thread has its own, so a request never waits for another thread, and the connection it is sent on
//! belongs to the runtime that reads the answer.

use super::connect::{ConnectError, Connector};
use super::{Member, MemberIndex};
use crate::body::Sent;
use crate::settings;
use hyper::client::conn::http1::SendRequest;
use parking_lot::Mutex;
use std::time::Duration;

/// What requests are handed to.
pub(crate) type Sender = SendRequest<Sent>;

/// Idle connections, by server.
#[derive(Debug)]
pub(crate) struct Pool {
    idle: Mutex<Vec<Vec<Idle>>>,
    connector: Connector,
}

#[derive(Debug)]
struct Idle {
    sender: Sender,
    /// Sweeps that found it here.
    age: u32,
}

/// A connection to use, and whether it was used before: then the server may have closed it just now.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) sender: Sender,
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
        if let Some(sender) = self.take_idle(member.index) {
            return Ok(Taken { sender, reused: true });
        }
        self.connect(member, settings).await
    }

    /// A new connection to `member`.
    pub(crate) async fn connect(
        &self,
        member: &Member,
        settings: &settings::Upstream,
    ) -> Result<Taken, ConnectError> {
        let sender = self.connector.connect(&member.address, settings.connect_time).await?;
        Ok(Taken { sender, reused: false })
    }

    /// One that is at hand.
    pub(crate) fn take_idle(&self, member: MemberIndex) -> Option<Sender> {
        let mut idle = self.idle.lock();
        let connections = &mut idle[member];
        let mut place = connections.len();
        while place > 0 {
            place -= 1;
            if connections[place].sender.is_ready() {
                return Some(connections.swap_remove(place).sender);
            }
            if connections[place].sender.is_closed() {
                connections.swap_remove(place);
            }
            // What is neither is still being written to, and will be ready later.
        }
        None
    }

    /// Keeps a connection for the next request.
    pub(crate) fn put(&self, member: MemberIndex, sender: Sender, most_idle: usize) {
        let mut idle = self.idle.lock();
        let connections = &mut idle[member];
        if connections.len() < most_idle && !sender.is_closed() {
            connections.push(Idle { sender, age: 0 });
        }
    }

    /// Drops what was idle for too long; called every quarter of an idle time.
    pub(crate) fn sweep(&self, members: std::ops::Range<MemberIndex>) {
        for connections in &mut self.idle.lock()[members] {
            connections.retain_mut(|idle| {
                idle.age += 1;
                idle.age <= OLDEST && !idle.sender.is_closed()
            });
        }
    }

    /// How often to sweep connections that may be idle for so long.
    pub(crate) fn sweep_every(idle_time: Duration) -> Duration {
        (idle_time / OLDEST).max(Duration::from_millis(10))
    }
}
