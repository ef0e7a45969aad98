//! After a change of protocol: bytes in both directions, until one side ends or both are silent.

use crate::body::{AnswerBody, Lease};
use crate::forward::Answer;
use crate::headers;
use crate::refusal::Refused;
use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::{Instant, sleep_until};
use tollgate_http::ReservedHeaders;
use tollgate_http::layer::SharedPermit;

/// How often a tunnel is looked at in an idle time: it ends between one and one and a quarter idle times after its last
/// byte.
const LOOKS: u32 = 4;

/// Two connections that became one.
pub(crate) struct Tunnel {
    /// The server counts as busy until the end; its connection is not used again.
    pub(crate) lease: Lease,
    /// And so does the client.
    pub(crate) place: Option<SharedPermit>,
    pub(crate) idle_time: Duration,
    pub(crate) until: Option<Instant>,
}

impl Tunnel {
    /// Grants the client what the server granted, and connects the two.
    pub(crate) fn open(
        self,
        client: OnUpgrade,
        mut answer: Response<Incoming>,
        reserved: &ReservedHeaders,
    ) -> Result<Answer, Refused> {
        let server = hyper::upgrade::on(&mut answer);
        let protocol =
            headers::remove_hop_by_hop(answer.headers_mut(), reserved).ok_or(Refused::BadAnswer)?;
        headers::put_upgrade(answer.headers_mut(), protocol);
        tokio::spawn(async move {
            let (client, server) = tokio::join!(client, server);
            if let (Ok(client), Ok(server)) = (client, server) {
                match carry(TokioIo::new(client), TokioIo::new(server), self.idle_time, self.until).await {
                    TunnelEnd::Closed(Ok(())) => {}
                    TunnelEnd::Closed(Err(error)) => tracing::debug!(%error, "a tunnel broke"),
                    TunnelEnd::Idle => tracing::debug!("a tunnel was closed: it was idle for too long"),
                    TunnelEnd::Over => tracing::debug!("a tunnel was closed: its total time is over"),
                }
            }
            drop((self.lease, self.place));
        });
        Ok(answer.map(|_| AnswerBody::Own(Full::new(Bytes::new()))))
    }
}

/// How a tunnel ends.
#[derive(Debug)]
enum TunnelEnd {
    Closed(io::Result<()>),
    Idle,
    Over,
}

/// Carries bytes in both directions.
async fn carry<C, S>(client: C, server: S, idle_time: Duration, until: Option<Instant>) -> TunnelEnd
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let moves = AtomicU32::new(0);
    let mut client = CountedReads { stream: client, moves: &moves };
    let mut server = CountedReads { stream: server, moves: &moves };
    let over = async {
        match until {
            Some(until) => sleep_until(until).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        copied = copy_bidirectional(&mut client, &mut server) => TunnelEnd::Closed(copied.map(|_| ())),
        () = idle(&moves, idle_time) => TunnelEnd::Idle,
        () = over => TunnelEnd::Over,
    }
}

/// Waits until nothing has moved for so long.
async fn idle(moves: &AtomicU32, time: Duration) {
    let every = (time / LOOKS).max(Duration::from_millis(1));
    let (mut seen, mut quiet_looks) = (moves.load(Ordering::Relaxed), 0);
    while quiet_looks < LOOKS {
        tokio::time::sleep(every).await;
        let now = moves.load(Ordering::Relaxed);
        quiet_looks = if now == seen { quiet_looks + 1 } else { 0 };
        seen = now;
    }
}

/// A stream that counts what is read. What is written to one side was read from the other.
struct CountedReads<'m, S> {
    stream: S,
    moves: &'m AtomicU32,
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedReads<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if polled.is_ready() {
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedReads<'_, S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    const IDLE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_ends_when_nothing_moves_in_either_direction() {
        let ((mut client, near), (far, mut server)) = (duplex(64), duplex(64));
        let tunnel = tokio::spawn(carry(near, far, IDLE, None));
        let start = Instant::now();
        for direction in 0..10 {
            tokio::time::sleep(IDLE - Duration::from_secs(1)).await;
            let (from, to) =
                if direction % 2 == 0 { (&mut client, &mut server) } else { (&mut server, &mut client) };
            from.write_all(b"x").await.unwrap();
            assert_eq!(to.read_u8().await.unwrap(), b'x');
        }
        let last = Instant::now();
        assert!(matches!(tunnel.await.unwrap(), TunnelEnd::Idle));
        assert!((IDLE..=IDLE * 5 / 4).contains(&last.elapsed()), "{:?}", last.elapsed());
        assert!(start.elapsed() > IDLE * 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_ends_when_its_total_time_is_over() {
        let ((mut client, near), (far, mut server)) = (duplex(64), duplex(64));
        let until = Instant::now() + IDLE * 3;
        let tunnel = tokio::spawn(carry(near, far, IDLE, Some(until)));
        while client.write_all(b"x").await.is_ok() && server.read_u8().await.is_ok() {
            tokio::time::sleep(Duration::from_secs(7)).await;
        }
        assert!(matches!(tunnel.await.unwrap(), TunnelEnd::Over));
    }
}
