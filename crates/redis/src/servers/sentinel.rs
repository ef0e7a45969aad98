//! Discovery of the primary through Sentinels.
//!
//! All are asked at once, and the reply with the highest epoch is used: a frozen Sentinel causes no delay, and one that was
//! cut off has a lower epoch. Each is also subscribed to, so that a failover is known at once.
//!
//! SENTINEL MASTER tells the epoch, and SENTINEL GET-MASTER-ADDR-BY-NAME the address: until the other replicas follow, the
//! Sentinel that leads a failover has the address of the old primary in the former, with the epoch of the new one.

use super::super::connection::{DialError, Dialer, Failure, OpenError, RedisConnection, told_of_pushes};
use super::super::errors::is_primary_unknown;
use super::super::shard::ShardContext;
use super::super::url::ServerAddress;
use parking_lot::Mutex;
use redis::{Value, cmd};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// When nothing seems wrong.
pub(super) const DISCOVER_EVERY: Duration = Duration::from_secs(1);
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// The channel on which a Sentinel announces a new primary.
const SWITCH: &str = "+switch-master";

/// The Sentinels, and the name they know the primary by.
#[derive(Debug)]
pub(super) struct SentinelDiscovery {
    name: String,
    clients: Vec<Arc<SentinelClient>>,
    /// The epoch of the primary that was found last.
    epoch: AtomicU64,
}

#[derive(Debug)]
struct SentinelClient {
    address: ServerAddress,
    dialer: Arc<Dialer>,
    connection: Mutex<Option<Arc<RedisConnection>>>,
}

/// The reply of a Sentinel.
enum SentinelReply {
    Primary {
        epoch: u64,
        address: ServerAddress,
    },
    /// It knows no primary by that name.
    Unknown,
}

impl SentinelDiscovery {
    pub(super) fn new(name: &str, addresses: &[ServerAddress], dialer: Dialer) -> Self {
        let dialer = Arc::new(dialer);
        let client = |address: &ServerAddress| {
            let (address, dialer) = (address.clone(), Arc::clone(&dialer));
            Arc::new(SentinelClient { address, dialer, connection: Mutex::default() })
        };
        let clients = addresses.iter().map(client).collect();
        Self { name: name.to_owned(), clients, epoch: AtomicU64::new(0) }
    }

    /// Where the primary is; nothing if no Sentinel replies, or only some that have missed the last failover.
    pub(super) async fn primary(
        &self,
        common: &Arc<ShardContext>,
    ) -> Result<Option<ServerAddress>, OpenError> {
        let mut asked = JoinSet::new();
        for client in &self.clients {
            let (client, common, name) = (Arc::clone(client), Arc::clone(common), self.name.clone());
            asked.spawn(async move { client.ask(&name, &common).await });
        }
        let (mut best, mut refusal, mut replies) = (None, None, 0);
        loop {
            // After the first reply, the others are waited for only briefly.
            let patience = if best.is_some() { common.timeout } else { ANSWER_WITHIN * 2 };
            let Ok(Some(reply)) = timeout(patience, asked.join_next()).await else { break };
            match reply {
                Ok(Ok(SentinelReply::Primary { epoch, address })) => {
                    replies += 1;
                    if best.as_ref().is_none_or(|(known, _)| *known < epoch) {
                        best = Some((epoch, address));
                    }
                }
                Ok(Ok(SentinelReply::Unknown)) => refusal = Some(self.unknown()),
                Ok(Err(DialError::Refused(error))) => refusal = Some(error),
                Ok(Err(DialError::Unreachable(reason) | DialError::NotReady(reason))) => {
                    tracing::debug!(reason, "Sentinel did not return the primary");
                }
                Err(error) => tracing::error!(%error, "task that asks a Sentinel panicked"),
            }
        }
        match (best, refusal) {
            // Sentinels that were set up anew count from 0 again: the majority of them is believed.
            (Some((epoch, _)), _)
                if epoch < self.epoch.load(Ordering::Relaxed) && 2 * replies <= self.clients.len() =>
            {
                Ok(None)
            }
            (Some((epoch, address)), _) => {
                self.epoch.store(epoch, Ordering::Relaxed);
                Ok(Some(address))
            }
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    fn unknown(&self) -> OpenError {
        let addresses: Vec<_> = self.clients.iter().map(|client| client.address.to_string()).collect();
        OpenError {
            address: addresses.join(","),
            problem: format!("these Sentinels know no primary by the name `{}`", self.name),
            hint: "SENTINEL MASTERS lists the names they know; write redis-sentinel://host1,host2/name"
                .to_owned(),
        }
    }
}

impl SentinelClient {
    async fn ask(&self, name: &str, common: &Arc<ShardContext>) -> Result<SentinelReply, DialError> {
        let connection = self.connection(common).await?;
        let question = |what: &str| cmd("SENTINEL").arg(what).arg(name).take();
        let (state, address) = (question("MASTER"), question("GET-MASTER-ADDR-BY-NAME"));
        let asked = async {
            // The epoch first: a failover between the two must not lend its epoch to the address before it.
            let state = connection.send(&state).await?;
            Ok((state, connection.send(&address).await?))
        };
        let failure = match timeout(ANSWER_WITHIN, asked).await {
            Ok(Ok((state, address))) => {
                return reply(state, address)
                    .ok_or_else(|| DialError::NotReady("its reply is malformed".to_owned()));
            }
            Ok(Err(Failure::Other(detail))) if is_primary_unknown(&detail) => {
                return Ok(SentinelReply::Unknown);
            }
            Ok(Err(failure)) => connection.fault().map_or(failure, Failure::InvalidAnswer),
            Err(_) => Failure::Lost,
        };
        // A frozen one keeps its connection, but will not be asked on it again.
        connection.sever();
        *self.connection.lock() = None;
        Err(DialError::Unreachable(failure.to_string()))
    }

    /// The connection of last time, or a new one that is subscribed to failovers.
    async fn connection(&self, common: &Arc<ShardContext>) -> Result<Arc<RedisConnection>, DialError> {
        if let Some(connection) = self.connection.lock().as_ref().filter(|connection| !connection.is_closed())
        {
            return Ok(Arc::clone(connection));
        }
        let (pushed, mut pushes) = mpsc::channel(1);
        let connection = Arc::new(self.dialer.dial_with(&self.address, Some(told_of_pushes(pushed))).await?);
        if let Err(failure) = connection.subscribe(SWITCH).await {
            tracing::debug!(address = %self.address, %failure, "cannot subscribe to a Sentinel; polling it");
        }
        let common = Arc::clone(common);
        // Ends with the connection.
        tokio::spawn(async move {
            while pushes.recv().await.is_some() {
                common.rediscover.notify_one();
            }
        });
        *self.connection.lock() = Some(Arc::clone(&connection));
        Ok(connection)
    }
}

/// Reads the replies to SENTINEL MASTER and SENTINEL GET-MASTER-ADDR-BY-NAME.
fn reply(state: Value, address: Value) -> Option<SentinelReply> {
    let state: HashMap<String, String> = redis::from_redis_value(state).ok()?;
    let (host, port): (String, String) = redis::from_redis_value(address).ok()?;
    let port = port.parse().ok().filter(|port| *port > 0)?;
    let epoch = state.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    Some(SentinelReply::Primary { epoch, address: ServerAddress::Tcp(host, port) })
}
