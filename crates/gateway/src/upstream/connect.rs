//! New connections to servers, in clear or over TLS.

use super::pool::UpstreamConnection;
use super::stream::{UpstreamStream, WriteClosed};
use crate::settings::{UpstreamAddress, UpstreamScheme};
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

/// The size limit of a response head.
const MOST_HEAD_BYTES: usize = 64 << 10;

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("cannot connect: {0}")]
    Io(#[from] io::Error),
    #[error("connect timeout")]
    Timeout,
    #[error("HTTP handshake failed: {0}")]
    Handshake(#[from] hyper::Error),
}

impl ConnectError {
    /// Whether this machine lacks a resource, which says nothing about the server.
    pub(crate) fn is_local(&self) -> bool {
        /// `ENFILE` and `EMFILE`.
        const TOO_MANY_FILES: [i32; 2] = [23, 24];
        let Self::Io(error) = self else { return false };
        matches!(error.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::OutOfMemory)
            || error.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code))
    }
}

/// Makes connections to servers.
#[derive(Clone)]
pub(crate) struct UpstreamConnector {
    tls: Option<Arc<ClientConfig>>,
    http: http1::Builder,
}

impl std::fmt::Debug for UpstreamConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamConnector").field("tls", &self.tls.is_some()).finish_non_exhaustive()
    }
}

impl UpstreamConnector {
    /// `tls` is required if any server has an `https` address.
    pub(crate) fn new(tls: Option<Arc<ClientConfig>>) -> Self {
        let mut http = http1::Builder::new();
        // Most requests are only a head: one plain write is cheaper than a vectored one.
        http.writev(false).max_header_size(MOST_HEAD_BYTES).max_buf_size(2 * MOST_HEAD_BYTES);
        Self { tls, http }
    }

    pub(crate) async fn connect(
        &self,
        address: &UpstreamAddress,
        timeout: Duration,
    ) -> Result<UpstreamConnection, ConnectError> {
        let connecting = async {
            let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
            stream.set_nodelay(true)?;
            let write_closed = WriteClosed::default();
            let stream = UpstreamStream::new(stream, write_closed.clone());
            match address.scheme {
                UpstreamScheme::Http => self.handshake(stream, write_closed).await,
                UpstreamScheme::Https => {
                    let config = self.tls.clone().ok_or_else(|| io::Error::other("TLS is not set up"))?;
                    let name = ServerName::try_from(address.host.clone()).map_err(io::Error::other)?;
                    let stream = TlsConnector::from(config).connect(name, stream).await?;
                    self.handshake(stream, write_closed).await
                }
            }
        };
        tokio::time::timeout(timeout, connecting).await.unwrap_or(Err(ConnectError::Timeout))
    }

    async fn handshake<S>(
        &self,
        stream: S,
        write_closed: WriteClosed,
    ) -> Result<UpstreamConnection, ConnectError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) = self.http.handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "upstream connection failed");
            }
        });
        Ok(UpstreamConnection::new(sender, write_closed))
    }
}

/// TLS with the root certificates of this machine.
pub(crate) fn native_tls() -> Result<ClientConfig, rustls::Error> {
    let mut roots = rustls::RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "cannot load some of the system's root certificates");
    }
    roots.add_parsable_certificates(found.certs);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
