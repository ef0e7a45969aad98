//! Bytes to and from a server: TCP, TLS over it, or a unix socket.

use super::super::url::{ServerAddress, StoreUrl};
use super::OpenError;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tollgate_limiter::file;

/// A stream of any kind.
pub(super) trait ServerStream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> ServerStream for S {}

/// The trusted authorities. Read once: they are files, and a reconnection must not wait for a disk.
pub(super) struct TlsTrust(TlsConnector);

impl std::fmt::Debug for TlsTrust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsTrust")
    }
}

impl TlsTrust {
    /// Trusts the authorities in the file that `url` names, or else the system's.
    pub(super) fn new(url: &StoreUrl) -> Result<Self, OpenError> {
        let refused = |problem: String, hint: &str| OpenError {
            address: url.to_string(),
            problem,
            hint: hint.to_owned(),
        };
        let roots = match &url.ca {
            Some(file) => authorities(file).map_err(|error| {
                let problem = format!("the authorities in {} cannot be used: {error}", file.display());
                refused(
                    problem,
                    "name a file of certificates in PEM form, as in rediss://host?ca=/etc/ca.pem",
                )
            })?,
            None => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    let problem = "the system trusts no authority".to_owned();
                    return Err(refused(problem, "install ca-certificates, or name a file: ?ca=/etc/ca.pem"));
                }
                roots
            }
        };
        // The provider is named here, so that nothing depends on the default of the process.
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(format!("TLS cannot be used: {error}"), "use redis:// without TLS"))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }
}

fn authorities(path: &Path) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&file::read(path)?) {
        let certificate = certificate.map_err(|error| io::Error::other(format!("{error:?}")))?;
        roots.add(certificate).map_err(io::Error::other)?;
    }
    if roots.is_empty() { Err(io::Error::other("there is no certificate in it")) } else { Ok(roots) }
}

/// Opens a stream to a server.
pub(super) async fn open(
    address: &ServerAddress,
    tls: Option<&TlsTrust>,
) -> io::Result<Box<dyn ServerStream>> {
    let (host, port) = match address {
        ServerAddress::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
        ServerAddress::Tcp(host, port) => (host, *port),
    };
    let stream = TcpStream::connect((host.as_str(), port)).await?;
    stream.set_nodelay(true)?;
    let Some(TlsTrust(connector)) = tls else { return Ok(Box::new(stream)) };
    let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
    Ok(Box::new(connector.connect(name, stream).await?))
}
