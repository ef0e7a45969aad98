//! The RESP door: the Redis protocol, so that any Redis client can ask for decisions.
//!
//! All commands that one read brings are decided before the next read, and answered by one write. With a shared store
//! they are all started before the first is waited for. What a client can make a connection hold is bounded: the bytes of
//! a command ([`mod@decode`]), the bytes of a read, and the replies, which are written before more is decoded.

pub mod decode;
pub mod encode;
mod rule_check;
mod session;
mod throttle;

use decode::{Decoded, LONGEST_COMMAND, decode};
use session::{CommandOutcome, RespSession, WaitingReply};
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{Instant, timeout, timeout_at};
use tollgate_core::rules::OpenDoor;
use tollgate_limiter::Limiter;
use tollgate_listen::{ListenerSetup, ListenerStream, ServeOptions, StreamConnection, serve_streams};

/// The reply if the store is unavailable and the policy is to refuse.
const STORE_UNAVAILABLE: &str = "UNAVAILABLE the shared store is unavailable; try again in a second";
/// The bytes that one read can bring. The buffer grows to a command that is longer.
const READ_BYTES: usize = 16 * 1024;
/// Replies are written when they are longer than this, before more commands are decoded.
const WRITE_BYTES: usize = 64 * 1024;
/// How long a client may not read its replies.
const WRITE_TIME: Duration = Duration::from_secs(30);

/// How long the rest of a connection that is closed is read.
const LINGER_TIME: Duration = Duration::from_secs(1);

/// What the RESP door needs to respond.
pub struct RespDoor {
    /// Makes the decisions.
    pub limiter: Arc<Limiter>,
    /// What clients have to give with `AUTH`; none if they need not.
    pub password: Option<String>,
}

impl fmt::Debug for RespDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RespDoor").field("has_password", &self.password.is_some()).finish_non_exhaustive()
    }
}

impl RespDoor {
    /// What the door supports, for the rule compiler: a check has an API key and an endpoint.
    pub fn describe() -> OpenDoor {
        OpenDoor {
            name: "the RESP door",
            capabilities: BTreeSet::new(),
            identities: Some(BTreeSet::from(["api_key".to_owned()])),
        }
    }

    /// The bounds of its listener. Redis clients keep connections for later, so they may be idle for long.
    pub fn default_options() -> ServeOptions {
        ServeOptions { idle_time: Duration::from_secs(600), ..ServeOptions::default() }
    }

    /// Serves until `shutdown` resolves, then drains. Returns the number of connections that were cut because they were
    /// still busy at the end of the grace period.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        setup: ListenerSetup,
        shutdown: impl Future<Output = ()>,
        options: ServeOptions,
    ) -> usize {
        let handle = move |connection: StreamConnection| {
            let door = Arc::clone(&self);
            async move {
                let peer = connection.peer;
                if let Err(error) = door.converse(connection, &options).await {
                    tracing::debug!(%peer, %error, "RESP connection closed");
                }
            }
        };
        serve_streams(listener, setup, handle, shutdown, options).await
    }

    /// Serves one connection to its end.
    async fn converse(&self, mut connection: StreamConnection, options: &ServeOptions) -> io::Result<()> {
        let mut session = RespSession::new(self);
        let mut buffer: Vec<u8> = Vec::with_capacity(READ_BYTES);
        let mut replies = Vec::new();
        // The first byte of a command may take long, the rest may not.
        let mut deadline = Instant::now() + options.idle_time;
        loop {
            let had_bytes = !buffer.is_empty();
            let read = tokio::select! {
                biased;
                read = timeout_at(deadline, connection.stream.read_buf(&mut buffer)) => read,
                () = connection.drain.begun() => return Ok(()),
            };
            match read {
                Ok(Ok(0)) => return Ok(()),
                Ok(result) => result?,
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
            };
            let length = buffer.len();
            let ends = self.answer(&mut session, &mut connection.stream, &mut buffer, &mut replies).await?;
            if ends == CommandOutcome::Close {
                return end(connection.stream).await;
            }
            // A command that is not complete keeps the deadline that it got with its first byte.
            if buffer.is_empty() {
                deadline = Instant::now() + options.idle_time;
            } else if !had_bytes || buffer.len() < length {
                deadline = Instant::now() + options.head_time;
            }
        }
    }

    /// Answers all commands in `buffer`, and removes them.
    async fn answer(
        &self,
        session: &mut RespSession<'_>,
        stream: &mut ListenerStream,
        buffer: &mut Vec<u8>,
        replies: &mut Vec<u8>,
    ) -> io::Result<CommandOutcome> {
        let mut waiting = Vec::new();
        let mut done = 0;
        let mut outcome = CommandOutcome::Continue;
        while outcome == CommandOutcome::Continue {
            match decode(&buffer[done..]) {
                Ok(Decoded::Command(arguments, length)) => {
                    if session.is_ordered(&arguments) && !waiting.is_empty() {
                        write_replies(stream, session, replies, &mut waiting).await?;
                    }
                    outcome = session.execute(&arguments, replies, &mut waiting);
                    done += length;
                }
                Ok(Decoded::Incomplete) => break,
                Err(error) => {
                    encode::error(replies, &format!("ERR Protocol error: {error}"));
                    outcome = CommandOutcome::Close;
                }
            }
            if replies.len() > WRITE_BYTES || waiting.len() > WRITE_BYTES / 64 {
                write_replies(stream, session, replies, &mut waiting).await?;
            }
        }
        write_replies(stream, session, replies, &mut waiting).await?;
        buffer.drain(..done);
        // Room for the next read, also behind the beginning of a long command.
        buffer.reserve(READ_BYTES);
        if buffer.is_empty() && buffer.capacity() > 2 * LONGEST_COMMAND {
            *buffer = Vec::with_capacity(READ_BYTES);
        }
        Ok(outcome)
    }
}

/// Ends a connection. What the client sends meanwhile is read for a moment: if it were left unread, the kernel would reset the
/// connection, and the client might not receive the last reply.
async fn end(mut stream: ListenerStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut unread = vec![0; READ_BYTES];
    let discard = async {
        let mut discarded = 0;
        while discarded < WRITE_BYTES {
            match stream.read(&mut unread).await {
                Ok(0) | Err(_) => return,
                Ok(length) => discarded += length,
            }
        }
    };
    let _ = timeout(LINGER_TIME, discard).await;
    Ok(())
}

/// Writes `replies`, each of `waiting` at its place.
async fn write_replies(
    stream: &mut ListenerStream,
    session: &RespSession<'_>,
    replies: &mut Vec<u8>,
    waiting: &mut Vec<WaitingReply<'_>>,
) -> io::Result<()> {
    if !waiting.is_empty() {
        let ready = std::mem::take(replies);
        let mut from = 0;
        for reply in waiting.drain(..) {
            replies.extend_from_slice(&ready[from..reply.place]);
            from = reply.place;
            reply.write(session.version, replies).await;
        }
        replies.extend_from_slice(&ready[from..]);
    }
    if !replies.is_empty() {
        let written = async {
            stream.write_all(replies).await?;
            stream.flush().await
        };
        timeout(WRITE_TIME, written).await.map_err(|_| io::ErrorKind::TimedOut)??;
        replies.clear();
        replies.shrink_to(WRITE_BYTES);
    }
    Ok(())
}
