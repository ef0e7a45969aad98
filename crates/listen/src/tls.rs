//! Server certificates from files.

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tollgate_limiter::file;

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate cannot be read.
    #[error("cannot read a certificate from {}: {source}", path.display())]
    Certificate {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        source: PemFileError,
    },
    /// The private key cannot be read.
    #[error("cannot read a private key from {}: {source}", path.display())]
    Key {
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        source: PemFileError,
    },
    /// The key does not match the certificate, or cannot be used with it.
    #[error("the key in {} does not match the certificate in {}: {source}", key.display(), certificate.display())]
    Unusable {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
}

/// Why a PEM file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PemFileError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Its content is not PEM.
    #[error(transparent)]
    Pem(#[from] pem::Error),
    /// It has no certificate.
    #[error("no -----BEGIN CERTIFICATE----- in it")]
    NoCertificate,
}

/// A certificate chain and its key, from PEM files. They can be replaced while connections are open: open connections keep the old
/// certificate, new ones get the new one.
#[derive(Debug)]
pub struct ServerCertificate {
    certificate: PathBuf,
    key: PathBuf,
    current: ArcSwap<CertifiedKey>,
}

impl ServerCertificate {
    /// Reads both files.
    pub fn open(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Arc<Self>, TlsError> {
        let (certificate, key) = (certificate.into(), key.into());
        let current = certified_key(&certificate, &key, file::read(&certificate), file::read(&key))?;
        Ok(Arc::new(Self { certificate, key, current: ArcSwap::from_pointee(current) }))
    }

    /// The files: the certificate's and the key's.
    pub fn files(&self) -> [&Path; 2] {
        [&self.certificate, &self.key]
    }

    /// Replaces both with the content of their files. On an error the old ones stay in force.
    pub fn replace(
        &self,
        certificate: io::Result<Vec<u8>>,
        key: io::Result<Vec<u8>>,
    ) -> Result<(), TlsError> {
        let new = certified_key(&self.certificate, &self.key, certificate, key)?;
        self.current.store(Arc::new(new));
        Ok(())
    }

    /// TLS with this certificate; HTTP/2 is offered before HTTP/1.1.
    pub fn server_config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, TlsError> {
        let mut config = ServerConfig::builder_with_provider(crypto_provider())
            .with_safe_default_protocol_versions()
            .map_err(|source| unusable(&self.certificate, &self.key, source))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(CertificateResolver(Arc::clone(self))));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// Gives each new connection the certificate in force.
#[derive(Debug)]
struct CertificateResolver(Arc<ServerCertificate>);

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.current.load_full())
    }
}

/// Named here, so that nothing depends on the provider that is installed for the process.
fn crypto_provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn certified_key(
    certificate: &Path,
    key: &Path,
    certificate_pem: io::Result<Vec<u8>>,
    key_pem: io::Result<Vec<u8>>,
) -> Result<CertifiedKey, TlsError> {
    let chain = parse_certificates(certificate_pem)
        .map_err(|source| TlsError::Certificate { path: certificate.to_owned(), source })?;
    let private = parse_key(key_pem).map_err(|source| TlsError::Key { path: key.to_owned(), source })?;
    CertifiedKey::from_der(chain, private, &crypto_provider())
        .map_err(|source| unusable(certificate, key, source))
}

fn parse_certificates(pem: io::Result<Vec<u8>>) -> Result<Vec<CertificateDer<'static>>, PemFileError> {
    let certificates = CertificateDer::pem_slice_iter(&pem?).collect::<Result<Vec<_>, _>>()?;
    if certificates.is_empty() { Err(PemFileError::NoCertificate) } else { Ok(certificates) }
}

fn parse_key(pem: io::Result<Vec<u8>>) -> Result<PrivateKeyDer<'static>, PemFileError> {
    Ok(PrivateKeyDer::from_pem_slice(&pem?)?)
}

fn unusable(certificate: &Path, key: &Path, source: rustls::Error) -> TlsError {
    TlsError::Unusable { certificate: certificate.to_owned(), key: key.to_owned(), source }
}
