//! New connections to servers, in clear or over TLS.

use super::pool::Connection;
use super::stream::{Listening, UpstreamStream};
use crate::settings::{Address, Scheme};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("cannot connect: {0}")]
    Failed(#[from] io::Error),
    #[error("no connection came about in time")]
    TimedOut,
    #[error("cannot speak HTTP: {0}")]
    Handshake(#[from] hyper::Error),
}

impl ConnectError {
    /// This machine has run out of something, which says nothing about the server.
    pub(crate) fn is_local(&self) -> bool {
        const TOO_MANY_FILES: [i32; 2] = [23, 24];
        let Self::Failed(error) = self else { return false };
        matches!(error.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::OutOfMemory)
            || error.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code))
    }
}

/// Makes connections.
#[derive(Clone)]
pub(crate) struct Connector {
    tls: Option<Arc<ClientConfig>>,
    http: http1::Builder,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("tls", &self.tls.is_some()).finish_non_exhaustive()
    }
}

/// What heads of answers may take.
const MOST_HEAD_BYTES: usize = 64 << 10;

impl Connector {
    /// `tls` is needed if any server is spoken to over TLS.
    pub(crate) fn new(tls: Option<Arc<ClientConfig>>) -> Self {
        let mut http = http1::Builder::new();
        // Requests are mostly a head: one plain write is cheaper than a vectored one.
        http.writev(false).max_header_size(MOST_HEAD_BYTES).max_buf_size(2 * MOST_HEAD_BYTES);
        Self { tls, http }
    }

    pub(crate) async fn connect(
        &self,
        address: &Address,
        time: Duration,
    ) -> Result<Connection, ConnectError> {
        let connecting = async {
            let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
            stream.set_nodelay(true)?;
            let listening = Listening::default();
            let stream = UpstreamStream::new(stream, listening.clone());
            match address.scheme {
                Scheme::Http => self.speak(stream, listening).await,
                Scheme::Https => {
                    let config = self.tls.clone().ok_or_else(|| io::Error::other("TLS is not set up"))?;
                    let name = ServerName::try_from(address.host.clone()).map_err(io::Error::other)?;
                    self.speak(TlsConnector::from(config).connect(name, stream).await?, listening).await
                }
            }
        };
        tokio::time::timeout(time, connecting).await.unwrap_or(Err(ConnectError::TimedOut))
    }

    async fn speak<S>(&self, stream: S, listening: Listening) -> Result<Connection, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) = self.http.handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to an upstream broke");
            }
        });
        Ok(Connection::new(sender, listening))
    }
}

/// TLS with the certificates that this machine trusts.
pub(crate) fn native_tls() -> Result<ClientConfig, rustls::Error> {
    let mut roots = rustls::RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "some of this machine's certificates cannot be read");
    }
    roots.add_parsable_certificates(found.certs);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
