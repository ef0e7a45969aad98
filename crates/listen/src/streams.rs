//! The accept loop for protocols other than HTTP: the caller reads and writes the bytes.
//!
//! Connections are accepted, limited, encrypted and drained as those of [`serve()`](crate::serve()). What a connection may
//! hold, and for how long, is up to its protocol.

use crate::serve::{AdmittedConnection, ServerPhase, drain, next_connection, set_backlog};
use crate::tls_handshake::accept_tls;
use crate::{ListenerSetup, ServeOptions};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{self, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::server::TlsStream;

/// A connection of [`serve_streams`].
#[derive(Debug)]
pub struct StreamConnection {
    /// The bytes.
    pub stream: ListenerStream,
    /// The client's address.
    pub peer: SocketAddr,
    /// When the connection has to end.
    pub drain: DrainSignal,
}

/// Tells a connection when the server drains.
#[derive(Debug)]
pub struct DrainSignal(watch::Receiver<ServerPhase>);

impl DrainSignal {
    /// Resolves when the server drains: the connection ends after what it has read.
    pub async fn begun(&mut self) {
        // An error means that the server is gone.
        let _ = self.0.wait_for(|phase| *phase != ServerPhase::Serving).await;
    }
}

/// The stream of a connection, with or without TLS.
#[derive(Debug)]
pub enum ListenerStream {
    /// Without TLS.
    Plain(TcpStream),
    /// With TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for ListenerStream {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ListenerStream {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Serves until `shutdown`, then drains. `handle` serves one connection to its end. Of `options`, the number of connections,
/// the time of a TLS handshake (that of a head) and the grace period apply. Returns the number of connections that were
/// still open when the grace period ended.
pub async fn serve_streams<F>(
    listener: TcpListener,
    setup: ListenerSetup,
    handle: impl Fn(StreamConnection) -> F + Send + Sync + 'static,
    shutdown: impl Future<Output = ()>,
    options: ServeOptions,
) -> usize
where
    F: Future<Output = ()> + Send + 'static,
{
    set_backlog(&listener);
    let slots = Arc::new(Semaphore::new(options.most_connections as usize));
    let (phase, watched) = watch::channel(ServerPhase::Serving);
    let mut shutdown = pin!(shutdown);
    let handle = Arc::new(handle);
    loop {
        let admitted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            admitted = next_connection(&listener, &slots, &setup) => admitted,
        };
        let (handle, tls, mut phase) = (Arc::clone(&handle), setup.tls.clone(), watched.clone());
        tokio::spawn(async move {
            let AdmittedConnection { stream, address, permits } = admitted;
            let stream = match tls {
                None => ListenerStream::Plain(stream),
                Some(tls) => {
                    let accepted = accept_tls(
                        stream,
                        address,
                        tls,
                        permits.open.counters(),
                        options.head_time,
                        &mut phase,
                    );
                    let Some(stream) = accepted.await else { return };
                    ListenerStream::Tls(Box::new(stream))
                }
            };
            let served =
                handle(StreamConnection { stream, peer: address, drain: DrainSignal(phase.clone()) });
            tokio::select! {
                biased;
                () = served => {}
                // The grace period is over.
                _ = phase.wait_for(|phase| *phase == ServerPhase::Stopped) => {}
            }
        });
    }
    drop(listener);
    drain(&phase, &slots, &options).await
}
