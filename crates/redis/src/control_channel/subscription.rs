//! A subscription to one channel that connects again by itself: to the server that serves the channel's hash tag, also
//! after a failover or when its slot has moved.
//!
//! On the same connection come the reset markers of other nodes. One that is missed comes with a heartbeat.

use super::{ControlChannel, unavailable};
use crate::connection::{Failure, PushSink, RedisConnection, told_of_pushes};
use crate::url::ServerAddress;
use redis::{PushInfo, PushKind, Value};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tollgate_core::heartbeat;

/// How often the connection is checked: whether the server still is the primary, and whether it answers.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// A server that does not answer a PING for so long is given up.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two attempts to subscribe: from the first to the last, doubled each time, less up to a half.
const RETRY_MS: (u64, u64) = (100, 2_000);

/// A subscription, until it is dropped.
pub struct ControlSubscription(JoinHandle<()>);

impl Drop for ControlSubscription {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl fmt::Debug for ControlSubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlSubscription")
    }
}

impl ControlChannel {
    /// Calls `on_message` for the messages on `channel`. Messages that come at once may be one call, and there is a call
    /// after each connection, because messages may have been missed. Needs a tokio runtime.
    pub fn subscribe(
        &self,
        channel: String,
        on_message: impl Fn() + Send + Sync + 'static,
    ) -> ControlSubscription {
        ControlSubscription(tokio::spawn(keep_subscribed(self.clone(), channel, on_message)))
    }

    async fn subscribe_once(&self, channel: &str, on_message: &impl Fn()) -> Result<(), String> {
        let shard = self.core.servers.shard_of(channel.as_bytes());
        let address = shard.address().ok_or("the address of the primary is unknown")?;
        let resets = heartbeat::resets_channel(self.prefix());
        let (told, mut messages) = mpsc::channel(1);
        let dialed = self.core.servers.dial_subscriber(&address, self.push_sink(resets.clone(), told)).await;
        let connection = dialed.map_err(|error| unavailable(&address, error).to_string())?;
        for channel in [channel, &resets] {
            match timeout(PING_TIMEOUT, connection.subscribe(channel)).await {
                Ok(Ok(())) => {}
                Ok(Err(failure @ Failure::NoPermission(..))) => {
                    return Err(format!("the user may not run subscribe on this channel: {failure}"));
                }
                Ok(Err(failure)) => return Err(failure.to_string()),
                Err(_) => return Err("the server does not answer".to_owned()),
            }
        }
        tracing::debug!(%address, channel, "subscribed");
        on_message();
        loop {
            tokio::select! {
                message = messages.recv() => match message {
                    Some(()) => on_message(),
                    None => return Ok(()),
                },
                () = connection.closed() => return Ok(()),
                () = sleep(CHECK_EVERY) => {
                    if !self.serves(channel, &address) || !is_answering(&connection).await {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Takes in reset markers, and passes all other messages on, unless one is waiting already.
    fn push_sink(&self, resets: String, told: mpsc::Sender<()>) -> PushSink {
        let (core, told) = (Arc::clone(&self.core), told_of_pushes(told));
        Box::new(move |push| match message_on(&push, &resets) {
            Some(marker) => {
                core.note_marker(marker);
                Ok(())
            }
            None => told(push),
        })
    }

    /// Whether the server at `address` still serves the slot of `channel`.
    fn serves(&self, channel: &str, address: &Arc<ServerAddress>) -> bool {
        let shard = self.core.servers.shard_of(channel.as_bytes());
        shard.address().is_some_and(|current| current == *address)
    }
}

/// The text of a message on `channel`.
fn message_on<'p>(push: &'p PushInfo, channel: &str) -> Option<&'p [u8]> {
    match (&push.kind, push.data.as_slice()) {
        (PushKind::Message, [Value::BulkString(name), Value::BulkString(text)])
            if name == channel.as_bytes() =>
        {
            Some(text)
        }
        _ => None,
    }
}

async fn is_answering(connection: &RedisConnection) -> bool {
    matches!(timeout(PING_TIMEOUT, connection.send(&redis::cmd("PING"))).await, Ok(Ok(_)))
}

async fn keep_subscribed(control: ControlChannel, channel: String, on_message: impl Fn()) {
    let (first_ms, last_ms) = RETRY_MS;
    let mut pause_ms = first_ms;
    let mut last_error = None;
    loop {
        match control.subscribe_once(&channel, &on_message).await {
            Ok(()) => {
                (pause_ms, last_error) = (first_ms, None);
            }
            Err(error) => {
                if last_error.as_ref() != Some(&error) {
                    tracing::warn!(channel, error, "cannot subscribe to changes; polling for them instead");
                }
                last_error = Some(error);
            }
        }
        sleep(Duration::from_millis(fastrand::u64(pause_ms / 2..=pause_ms))).await;
        pause_ms = (pause_ms * 2).min(last_ms);
    }
}
