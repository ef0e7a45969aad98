//! The TLS handshake of a connection that was accepted.

use crate::listener_counters::ListenerCounters;
use crate::serve::ServerPhase;
use rustls::ServerConfig;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The stream after the handshake; none if it fails, takes longer than `longest`, or the server drains meanwhile. A failure is
/// counted before the connection is closed, so that a client that sees the end finds it in the metrics.
pub(crate) async fn accept_tls(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Arc<ServerConfig>,
    counters: &ListenerCounters,
    longest: Duration,
    phase: &mut watch::Receiver<ServerPhase>,
) -> Option<TlsStream<TcpStream>> {
    let mut handshake = pin!(TlsAcceptor::from(tls).accept(stream).into_fallible());
    let accepted = tokio::select! {
        biased;
        accepted = timeout(longest, handshake.as_mut()) => accepted,
        // A drain waits for requests only.
        _ = phase.changed() => return None,
    };
    match accepted {
        Ok(Ok(stream)) => {
            counters.record_handshake();
            Some(stream)
        }
        // The stream is bound to a name, or it would be closed here.
        Ok(Err((error, _stream))) => {
            counters.record_failed_handshake();
            tracing::debug!(%peer, %error, "TLS handshake failed");
            None
        }
        Err(_) => {
            counters.record_failed_handshake();
            tracing::debug!(%peer, "TLS handshake timeout");
            None
        }
    }
}
