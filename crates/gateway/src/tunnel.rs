//! Tunnels: after an upgrade, bytes are copied in both directions until one side closes, both are idle, or the deadline
//! has passed.

use crate::access_log::RequestTrace;
use crate::body::GatewayBody;
use crate::forward::GatewayResponse;
use crate::forward_error::ForwardError;
use crate::headers;
use crate::metrics::ThreadCounters;
use crate::upstream::pool::PooledConnection;
use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::{Instant, sleep_until};
use tollgate_http::ReservedHeaders;
use tollgate_http::layer::SharedPermit;

/// How often a tunnel is inspected per idle time. It ends between one and one and a quarter idle times after its last
/// byte.
const INSPECTIONS: u32 = 4;

/// A client connection and an upstream connection after an upgrade.
pub(crate) struct Tunnel {
    /// Counts as in flight at the server until the tunnel ends; the connection is not reused.
    pub(crate) connection: PooledConnection,
    /// Held until the tunnel ends.
    pub(crate) permit: Option<SharedPermit>,
    /// Its log entry is written when the tunnel ends.
    pub(crate) trace: Option<Arc<RequestTrace>>,
    pub(crate) counters: Arc<ThreadCounters>,
    pub(crate) idle_time: Duration,
    pub(crate) deadline: Option<Instant>,
}

impl Tunnel {
    /// Responds to the client as the server did, and starts copying when both connections are upgraded.
    pub(crate) fn open(
        self,
        client: OnUpgrade,
        mut response: Response<Incoming>,
        reserved: &ReservedHeaders,
    ) -> Result<GatewayResponse, ForwardError> {
        let server = hyper::upgrade::on(&mut response);
        let protocol = headers::remove_hop_by_hop(response.headers_mut(), reserved);
        headers::put_upgrade(response.headers_mut(), protocol.ok_or(ForwardError::InvalidResponse)?);
        tokio::spawn(async move {
            let (client, server) = tokio::join!(client, server);
            if let (Ok(client), Ok(server)) = (client, server) {
                let (client, server) = (TokioIo::new(client), TokioIo::new(server));
                let traffic = TunnelTraffic::default();
                let end = copy_until_end(client, server, self.idle_time, self.deadline, &traffic).await;
                let received = traffic.from_client.load(Ordering::Relaxed);
                let sent = traffic.from_server.load(Ordering::Relaxed);
                self.counters.record_received(received);
                self.counters.record_sent(sent);
                if let Some(trace) = &self.trace {
                    trace.record_received(received);
                    trace.record_tunneled(sent);
                }
                match end {
                    TunnelEnd::Closed(Ok(())) => {}
                    TunnelEnd::Closed(Err(error)) => tracing::debug!(%error, "tunnel failed"),
                    TunnelEnd::Idle => tracing::debug!("idle timeout: tunnel closed"),
                    TunnelEnd::Deadline => tracing::debug!("total timeout: tunnel closed"),
                }
            }
            drop((self.connection, self.permit, self.trace));
        });
        Ok(response.map(|_| GatewayBody::Own(Full::new(Bytes::new()))))
    }
}

/// The bytes that were read from each side.
#[derive(Debug, Default)]
struct TunnelTraffic {
    from_client: AtomicU64,
    from_server: AtomicU64,
}

/// Why a tunnel ended.
#[derive(Debug)]
enum TunnelEnd {
    Closed(io::Result<()>),
    Idle,
    Deadline,
}

/// Copies bytes in both directions.
async fn copy_until_end<C, S>(
    client: C,
    server: S,
    idle_time: Duration,
    deadline: Option<Instant>,
    traffic: &TunnelTraffic,
) -> TunnelEnd
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let reads = AtomicU32::new(0);
    let mut client = CountedReads { stream: client, reads: &reads, bytes: &traffic.from_client };
    let mut server = CountedReads { stream: server, reads: &reads, bytes: &traffic.from_server };
    let past_deadline = async {
        match deadline {
            Some(deadline) => sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        copied = copy_bidirectional(&mut client, &mut server) => TunnelEnd::Closed(copied.map(|_| ())),
        () = idle(&reads, idle_time) => TunnelEnd::Idle,
        () = past_deadline => TunnelEnd::Deadline,
    }
}

/// Waits until nothing was read for `time`.
async fn idle(reads: &AtomicU32, time: Duration) {
    let every = (time / INSPECTIONS).max(Duration::from_millis(1));
    let (mut seen, mut idle_inspections) = (reads.load(Ordering::Relaxed), 0);
    while idle_inspections < INSPECTIONS {
        tokio::time::sleep(every).await;
        let now = reads.load(Ordering::Relaxed);
        idle_inspections = if now == seen { idle_inspections + 1 } else { 0 };
        seen = now;
    }
}

/// A stream that counts reads. What is written to one side was read from the other.
struct CountedReads<'r, S> {
    stream: S,
    reads: &'r AtomicU32,
    bytes: &'r AtomicU64,
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedReads<'_, S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if polled.is_ready() {
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add((buffer.filled().len() - before) as u64, Ordering::Relaxed);
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    const IDLE: Duration = Duration::from_secs(60);

    async fn copied(client: DuplexStream, server: DuplexStream, deadline: Option<Instant>) -> TunnelEnd {
        copy_until_end(client, server, IDLE, deadline, &TunnelTraffic::default()).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_ends_when_both_directions_are_idle() {
        let ((mut client, near), (far, mut server)) = (duplex(64), duplex(64));
        let tunnel = tokio::spawn(copied(near, far, None));
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
    async fn a_tunnel_ends_at_its_deadline() {
        let ((mut client, near), (far, mut server)) = (duplex(64), duplex(64));
        let deadline = Instant::now() + IDLE * 3;
        let tunnel = tokio::spawn(copied(near, far, Some(deadline)));
        while client.write_all(b"x").await.is_ok() && server.read_u8().await.is_ok() {
            tokio::time::sleep(Duration::from_secs(7)).await;
        }
        assert!(matches!(tunnel.await.unwrap(), TunnelEnd::Deadline));
    }
}
