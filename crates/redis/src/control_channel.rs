//! Script calls and messages of the control plane: rules, control state, audit log.
//!
//! They use connections of their own and a longer timeout than decisions: a large rule text must not delay a decision, and
//! a control plane may wait. All keys of a call have one hash tag, so the shard of the first key serves them all.

mod subscription;

pub use subscription::ControlSubscription;

use crate::connection::{DialError, Failure, RedisConnection};
use crate::permissions;
use crate::shard::RedisShard;
use crate::store::StoreCore;
use crate::url::ServerAddress;
use parking_lot::Mutex;
use redis::{Cmd, Value};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long a call may take, a new connection and redirections included.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Before the next attempt, while slots or the primary are moving.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// A script of the control plane.
#[derive(Debug)]
pub struct ControlScript {
    source: &'static str,
    digest: LazyLock<String, Box<dyn FnOnce() -> String + Send>>,
}

/// A value in the reply of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlValue {
    /// `false` or `nil` in Lua.
    Nil,
    /// A number.
    Number(i64),
    /// A string.
    Bytes(Vec<u8>),
    /// A table.
    List(Vec<ControlValue>),
}

/// Why a call of the control plane failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// It was not executed: the store cannot be reached, or cannot serve now.
    #[error("{0}")]
    Unavailable(String),
    /// It was sent, and no answer came: it may have been executed.
    #[error("{0}")]
    OutcomeUnknown(String),
    /// The user of the store lacks a permission.
    #[error("{0}\n  hint: docs/redis.md lists the permissions that the control plane needs")]
    Permission(String),
    /// The store answered with another error.
    #[error("{0}")]
    Refused(String),
}

/// The way of the control plane to a store. Clones share a connection.
#[derive(Clone)]
pub struct ControlChannel {
    core: Arc<StoreCore>,
    connection: Arc<Mutex<Option<ControlConnection>>>,
}

/// The connection of last time.
struct ControlConnection {
    address: ServerAddress,
    connection: Arc<RedisConnection>,
}

impl ControlScript {
    /// The script with this source.
    pub fn new(source: &'static str) -> Self {
        let digest = move || sha1_smol::Sha1::from(source).digest().to_string();
        Self { source, digest: LazyLock::new(Box::new(digest)) }
    }

    fn command(&self, verb: &'static str, keys: &[String], arguments: &[Vec<u8>]) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(if verb == "EVAL" { self.source } else { &self.digest });
        command.arg(keys.len()).arg(keys).arg(arguments);
        command
    }
}

impl fmt::Debug for ControlChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlChannel").field("store", self.core.servers.url()).finish_non_exhaustive()
    }
}

impl ControlChannel {
    pub(crate) fn new(core: Arc<StoreCore>) -> Self {
        Self { core, connection: Arc::default() }
    }

    /// The prefix of all keys.
    pub fn prefix(&self) -> &str {
        &self.core.settings.prefix
    }

    /// The store, without its password.
    pub fn store_name(&self) -> String {
        self.core.servers.url().to_string()
    }

    /// The number of the rules in force on this node, for the other nodes to see.
    pub fn set_rules_version(&self, version: u64) {
        self.core.fleet.set_rules_version(version);
    }

    /// The highest number of rules in force that a node of the fleet has reported, as far as shards reply.
    pub async fn highest_rules_version(&self) -> u64 {
        self.core.list_nodes().await.iter().map(|node| node.rules).max().unwrap_or(0)
    }

    /// Runs `script` on the shard of the first of `keys`.
    pub async fn call(
        &self,
        script: &ControlScript,
        keys: &[String],
        arguments: &[Vec<u8>],
    ) -> Result<ControlValue, ControlError> {
        let is_sent = AtomicBool::new(false);
        match timeout(CALL_TIMEOUT, self.call_until_served(script, keys, arguments, &is_sent)).await {
            Ok(result) => result,
            Err(_) => {
                self.drop_connection();
                let late = format!("the store did not answer within {CALL_TIMEOUT:?}");
                Err(match is_sent.into_inner() {
                    true => ControlError::OutcomeUnknown(late),
                    false => ControlError::Unavailable(late),
                })
            }
        }
    }

    /// Calls until a server has served the call or failed for good. `is_sent` is set while an answer is missing.
    async fn call_until_served(
        &self,
        script: &ControlScript,
        keys: &[String],
        arguments: &[Vec<u8>],
        is_sent: &AtomicBool,
    ) -> Result<ControlValue, ControlError> {
        let mut verb = "EVALSHA";
        loop {
            let shard = self.shard_of(keys);
            let connection = self.connection(&shard).await?;
            let command = script.command(verb, keys, arguments);
            is_sent.store(true, Ordering::Relaxed);
            let mut result = connection.send(&command).await;
            if let Err(Failure::Ask { address, .. }) = &result {
                result = self.ask_at(address, &shard, command).await;
            }
            let failure = match result {
                Ok(value) => return Ok(ControlValue::from(value)),
                Err(failure) => failure,
            };
            match failure {
                Failure::Lost | Failure::InvalidAnswer(_) => {
                    self.drop_connection();
                    return Err(ControlError::OutcomeUnknown(failure.to_string()));
                }
                Failure::Unavailable => {
                    self.drop_connection();
                    return Err(ControlError::Unavailable(failure.to_string()));
                }
                Failure::NoScript => verb = "EVAL",
                Failure::NoPermission(_, text) => return Err(ControlError::Permission(text)),
                // Not executed. The map of servers is refreshed, and the call is made again until its time is over.
                Failure::Moved { .. }
                | Failure::Ask { .. }
                | Failure::TryAgain
                | Failure::SlotNotServed
                | Failure::ClusterDown
                | Failure::Loading
                | Failure::ReadOnly
                | Failure::Busy => {
                    is_sent.store(false, Ordering::Relaxed);
                    if matches!(failure, Failure::ReadOnly | Failure::Loading) {
                        self.drop_connection();
                    }
                    self.core.servers.refresh();
                    sleep(RETRY_AFTER).await;
                }
                failure => return Err(ControlError::Refused(failure.to_string())),
            }
        }
    }

    /// Sends a command to the server to which its slot is on the way.
    async fn ask_at(&self, address: &str, asked: &RedisShard, command: Cmd) -> Result<Value, Failure> {
        let servers = &self.core.servers;
        let address = servers.address_of(address, asked).ok_or(Failure::TryAgain)?;
        let connection = servers.added_server(&address).await.map_err(|_| Failure::TryAgain)?;
        connection.send_asking(command).await
    }

    /// The commands of [`permissions::CONTROL_COMMANDS`] that the user may not run, as far as the store replies. The
    /// key and the channel must have the hash tag of the control plane's keys.
    pub async fn missing_permissions(&self, key: &str, channel: &str) -> Vec<&'static str> {
        let Ok(connection) = self.connection(&self.shard_of(&[key.to_owned()])).await else {
            return Vec::new();
        };
        let mut missing = Vec::new();
        for name in permissions::CONTROL_COMMANDS {
            let command = match name {
                "hstrlen" => redis::cmd("HSTRLEN").arg(key).arg("field").take(),
                "hvals" => redis::cmd("HVALS").arg(key).take(),
                "publish" => redis::cmd("PUBLISH").arg(channel).arg("").take(),
                // A subscription is tried by subscribing.
                _ => continue,
            };
            if let Ok(Err(Failure::NoPermission(..))) = timeout(CALL_TIMEOUT, connection.send(&command)).await
            {
                missing.push(name);
            }
        }
        missing
    }

    fn shard_of(&self, keys: &[String]) -> Arc<RedisShard> {
        self.core.servers.shard_of(keys.first().map_or(b"", |key| key.as_bytes()))
    }

    /// The connection of last time, if it is to the same server, or a new one.
    async fn connection(&self, shard: &RedisShard) -> Result<Arc<RedisConnection>, ControlError> {
        let unknown = || ControlError::Unavailable("the address of the primary is unknown".to_owned());
        let address = shard.address().ok_or_else(unknown)?;
        if let Some(known) = &*self.connection.lock()
            && known.address == *address
            && !known.connection.is_closed()
        {
            return Ok(Arc::clone(&known.connection));
        }
        let dialed = self.core.servers.dial_primary(&address).await;
        let connection = Arc::new(dialed.map_err(|error| unavailable(&address, error))?);
        let known = ControlConnection {
            address: ServerAddress::clone(&address),
            connection: Arc::clone(&connection),
        };
        *self.connection.lock() = Some(known);
        Ok(connection)
    }

    /// A connection that may never reply again is not used again.
    fn drop_connection(&self) {
        if let Some(known) = self.connection.lock().take() {
            known.connection.sever();
        }
    }
}

/// A server that cannot be connected to.
fn unavailable(address: &ServerAddress, error: DialError) -> ControlError {
    match error {
        DialError::Unreachable(reason) | DialError::NotReady(reason) => {
            ControlError::Unavailable(format!("{address}: {reason}"))
        }
        DialError::Refused(error) => ControlError::Unavailable(error.to_string()),
    }
}

impl From<Value> for ControlValue {
    fn from(value: Value) -> Self {
        match value {
            Value::Int(number) => Self::Number(number),
            Value::BulkString(bytes) => Self::Bytes(bytes),
            Value::SimpleString(text) => Self::Bytes(text.into_bytes()),
            Value::Array(values) => Self::List(values.into_iter().map(Self::from).collect()),
            _ => Self::Nil,
        }
    }
}

impl ControlValue {
    /// The elements of a list; of anything else none.
    pub fn into_list(self) -> Vec<ControlValue> {
        match self {
            Self::List(values) => values,
            _ => Vec::new(),
        }
    }

    /// The bytes of a string; none of anything else.
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The text of a string that is UTF-8.
    pub fn into_text(self) -> Option<String> {
        String::from_utf8(self.into_bytes()?).ok()
    }

    /// The value of a number.
    pub fn as_number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }
}
