//! One connection to one server, shared by all calls to it.
//!
//! The client library's timeouts leave a connection open that may never reply again: a frozen server keeps its sockets.
//! So a connection is closed explicitly ([`RedisConnection::sever`]), which fails all calls on it.

mod bounded_stream;
mod driver;
mod failure;
mod handshake;
mod reply_bounds;
mod stream;

pub(crate) use failure::{Failure, PermissionError};
pub(crate) use handshake::is_hidden;

use super::url::{Login, ServerAddress, StoreUrl};
use bounded_stream::BoundedStream;
use driver::RedisDriver;
use handshake::ServerInfo;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, ProtocolVersion, PushInfo, RedisConnectionInfo, Value};
use reply_bounds::ReplyWatch;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use stream::TlsTrust;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};
use tollgate_core::time::TimerTime;

/// Commands that may wait to be written; further ones wait for room.
const QUEUE: usize = 4096;
/// Bytes that are gathered before they are written.
const WRITE_BUFFER: usize = 64 << 10;
/// Addresses whose settings were looked at; so many are remembered.
const MOST_EXAMINED: usize = 1024;

/// Takes what a server pushes on a connection. It must not block. An error says that nothing is taken any more.
pub(crate) type PushSink = Box<dyn Fn(PushInfo) -> Result<(), ()> + Send + Sync>;

/// Sends a message for each push, unless one is waiting already.
pub(crate) fn told_of_pushes(told: mpsc::Sender<()>) -> PushSink {
    Box::new(move |_| match told.try_send(()) {
        Err(mpsc::error::TrySendError::Closed(())) => Err(()),
        _ => Ok(()),
    })
}

/// The time by the clock of timers, for breakers and pauses.
pub(crate) fn timer_time() -> TimerTime {
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    TimerTime::from_us(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX))
}

/// Why a store cannot be used, also after retries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store at {address} cannot be used: {problem}\n  hint: {hint}")]
pub struct OpenError {
    pub(crate) address: String,
    pub(crate) problem: String,
    pub(crate) hint: String,
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum DialError {
    /// It did not reply, or not in time.
    Unreachable(String),
    /// It replies, but is loading its data or is not a primary.
    NotReady(String),
    /// It replies, and refuses this client: a fatal error.
    Refused(OpenError),
}

impl DialError {
    /// A reply that is beyond the bounds.
    fn invalid(fault: &str) -> Self {
        Self::Unreachable(format!("invalid answer: {fault}"))
    }
}

/// What the servers are expected to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerRole {
    /// A server on its own, or watched by Sentinels.
    Primary,
    /// A node of a Cluster.
    ClusterNode,
    /// A Sentinel.
    Sentinel,
}

/// Opens connections: logs in, and checks the server.
#[derive(Debug)]
pub(crate) struct Dialer {
    role: ServerRole,
    login: Login,
    db: u32,
    tls: Option<TlsTrust>,
    within: Duration,
    /// Servers whose settings were checked.
    examined: Mutex<BTreeSet<ServerAddress>>,
}

/// A connection that is open or was.
#[derive(Debug)]
pub(crate) struct RedisConnection {
    multiplexed: MultiplexedConnection,
    info: ServerInfo,
    /// Drives the connection; without it every call on it fails.
    driver: AbortHandle,
    /// What it drives.
    driven: Arc<RedisDriver>,
    replies: Arc<ReplyWatch>,
    /// Its sender lives in the driver.
    closed: watch::Receiver<()>,
}

impl Dialer {
    /// Opens connections to the servers of `url`, each within the given time.
    pub(crate) fn new(url: &StoreUrl, role: ServerRole, within: Duration) -> Result<Self, OpenError> {
        let (login, db) = match role {
            ServerRole::Sentinel => (&url.sentinel_login, 0),
            ServerRole::Primary | ServerRole::ClusterNode => (&url.login, url.db),
        };
        let tls = url.tls.then(|| TlsTrust::new(url)).transpose()?;
        Ok(Self { role, login: login.clone(), db, tls, within, examined: Mutex::default() })
    }

    /// What the servers are expected to be.
    pub(crate) fn role(&self) -> ServerRole {
        self.role
    }

    /// How long a new connection may take, each part of it.
    pub(crate) fn within(&self) -> Duration {
        self.within
    }

    /// A connection to whatever listens there: a primary or a replica.
    pub(crate) async fn dial(&self, address: &ServerAddress) -> Result<RedisConnection, DialError> {
        self.dial_with(address, None).await
    }

    /// A connection on which the server may also push: `pushed` takes each push.
    pub(crate) async fn dial_with(
        &self,
        address: &ServerAddress,
        pushed: Option<PushSink>,
    ) -> Result<RedisConnection, DialError> {
        match timeout(self.within, self.enter(address, pushed)).await {
            Ok(result) => result,
            Err(_) => Err(DialError::Unreachable(format!("no answer within {:?}", self.within))),
        }
    }

    /// A connection to a primary that serves.
    pub(crate) async fn dial_primary(&self, address: &ServerAddress) -> Result<RedisConnection, DialError> {
        let connection = self.dial(address).await?;
        match timeout(self.within, self.examine(address, &connection)).await {
            Ok(Ok(())) => Ok(connection),
            Ok(Err(error)) => Err(connection.fault().map_or(error, DialError::invalid)),
            Err(_) => Err(DialError::Unreachable(format!("no answer within {:?}", self.within))),
        }
    }

    async fn enter(
        &self,
        address: &ServerAddress,
        pushed: Option<PushSink>,
    ) -> Result<RedisConnection, DialError> {
        let replies = Arc::new(ReplyWatch::default());
        let entered = self.enter_watched(address, pushed, &replies).await;
        entered.map_err(|error| replies.fault().map_or(error, DialError::invalid))
    }

    async fn enter_watched(
        &self,
        address: &ServerAddress,
        pushed: Option<PushSink>,
        replies: &Arc<ReplyWatch>,
    ) -> Result<RedisConnection, DialError> {
        let unreachable = |error: &dyn std::fmt::Display| DialError::Unreachable(error.to_string());
        let stream = stream::open(address, self.tls.as_ref()).await.map_err(|error| unreachable(&error))?;
        let stream = BoundedStream::new(stream, Arc::clone(replies));
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            // Late replies are wanted; see the module for what ends the wait.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUE)
            .set_write_backpressure_boundary(WRITE_BUFFER);
        // Login and database are sent by `handshake`: the library reports any refusal as a wrong password.
        let mut info =
            RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
        if let Some(pushed) = pushed {
            config = config.set_push_sender(pushed);
            info = info.set_protocol(ProtocolVersion::RESP3);
            if let Some(password) = &self.login.password {
                info =
                    info.set_username(self.login.user.as_deref().unwrap_or("default")).set_password(password);
            }
        }
        let (multiplexed, driver) = MultiplexedConnection::new_with_config(&info, stream, config)
            .await
            .map_err(|error| handshake::refused_login(address, &error, &self.login))?;
        replies.opened();
        let (open, closed) = watch::channel(());
        let driven = Arc::new(RedisDriver::new(driver));
        let driver = tokio::spawn({
            let driven = Arc::clone(&driven);
            async move {
                driven.run().await;
                drop(open);
            }
        });
        let driver = driver.abort_handle();
        let replies = Arc::clone(replies);
        let mut connection =
            RedisConnection { multiplexed, info: ServerInfo::default(), driver, driven, replies, closed };
        connection.info = handshake::handshake(&connection, address, self).await?;
        Ok(connection)
    }

    /// Whether it is a primary that serves; and, the first time, how it is set up.
    async fn examine(&self, address: &ServerAddress, connection: &RedisConnection) -> Result<(), DialError> {
        connection.info.must_be_serving_primary()?;
        if self.role == ServerRole::ClusterNode {
            handshake::cluster_must_be_up(connection).await?;
        }
        let is_new = {
            let mut examined = self.examined.lock();
            if examined.len() >= MOST_EXAMINED {
                examined.clear();
            }
            examined.insert(address.clone())
        };
        if is_new {
            handshake::warn_of_settings(connection, address, self.role).await;
        }
        Ok(())
    }
}

impl RedisConnection {
    /// Sends `command` and waits for the reply, without a timeout.
    pub(crate) async fn send(&self, command: &Cmd) -> Result<Value, Failure> {
        if self.is_closed() {
            return Err(Failure::Unavailable);
        }
        self.replies.ask(1);
        match self.multiplexed.clone().send_packed_command(command).await {
            Ok(Value::ServerError(error)) => Err(Failure::of_answer(&error)),
            Ok(value) => Ok(value),
            Err(error) => Err(Failure::of_call(&error)),
        }
    }

    /// Writes what was sent, if the connection can take it, before its driver has its turn.
    pub(crate) fn write_now(&self) {
        self.driven.drive();
    }

    /// Sends `command` just behind ASKING, for a slot that is on its way to this server.
    pub(crate) async fn send_asking(&self, command: Cmd) -> Result<Value, Failure> {
        if self.is_closed() {
            return Err(Failure::Unavailable);
        }
        let mut both = redis::pipe();
        both.cmd("ASKING").add_command(command);
        self.replies.ask(2);
        match self.multiplexed.clone().send_packed_commands(&both, 1, 1).await {
            Ok(mut answers) => match answers.pop() {
                Some(Value::ServerError(error)) => Err(Failure::of_answer(&error)),
                Some(value) => Ok(value),
                None => Err(Failure::Other("an empty answer".to_owned())),
            },
            Err(error) => Err(Failure::of_call(&error)),
        }
    }

    /// Sends `count` commands at once, and tells of each what was answered.
    pub(crate) async fn send_all(
        &self,
        commands: &Pipeline,
        count: usize,
    ) -> Result<Vec<Result<Value, Failure>>, Failure> {
        if self.is_closed() {
            return Err(Failure::Unavailable);
        }
        self.replies.ask(count);
        let answers = self.multiplexed.clone().send_packed_commands(commands, 0, count).await;
        let answers = answers.map_err(|error| Failure::of_call(&error))?;
        let answer = |value| match value {
            Value::ServerError(error) => Err(Failure::of_answer(&error)),
            value => Ok(value),
        };
        Ok(answers.into_iter().map(answer).collect())
    }

    /// Subscribes to `channel` on a connection that accepts pushes.
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<(), Failure> {
        self.replies.ask(1);
        self.multiplexed.clone().subscribe(channel).await.map_err(|error| Failure::of_call(&error))
    }

    /// The server's version, if it says it: (7, 0).
    pub(crate) fn version(&self) -> Option<(u32, u32)> {
        self.info.version
    }

    /// What was wrong with a reply, if that is why it ended.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        self.replies.fault()
    }

    /// Closes the connection; calls in flight fail with [`Failure::Lost`].
    pub(crate) fn sever(&self) {
        self.driver.abort();
        self.driven.stop();
    }

    /// Whether it ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.has_changed().is_err()
    }

    /// Waits until it ends.
    pub(crate) async fn closed(&self) {
        let mut closed = self.closed.clone();
        while closed.changed().await.is_ok() {}
    }
}

impl Drop for RedisConnection {
    fn drop(&mut self) {
        self.sever();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// A server that knows no command, and says so with all that it was sent.
    async fn parrot() -> ServerAddress {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut bytes = vec![0; 4096];
                    while let Ok(length @ 1..) = client.read(&mut bytes).await {
                        let said = String::from_utf8_lossy(&bytes[..length]).replace(['\r', '\n'], " ");
                        let answer = format!("-ERR unknown command, with args beginning with: {said}\r\n");
                        if client.write_all(answer.as_bytes()).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        ServerAddress::Tcp("127.0.0.1".to_owned(), address.port())
    }

    #[tokio::test]
    async fn a_server_that_repeats_the_password_is_not_quoted() {
        let address = parrot().await;
        for url in ["redis://:hunter2@h", "redis://user:hunter2@h", "redis://user:hunter2@h/3"] {
            let dialer =
                Dialer::new(&url.parse().unwrap(), ServerRole::Primary, Duration::from_secs(10)).unwrap();
            for pushed in [None, Some(Box::new(|_| Ok(())) as PushSink)] {
                let error = dialer.dial_with(&address, pushed).await.unwrap_err();
                assert!(!format!("{error:?}").contains("hunter2"), "{url}: {error:?}");
            }
        }
    }
}
