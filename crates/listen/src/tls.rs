//! Certificates and keys from files.

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tollgate_limiter::file;

/// Why TLS cannot be spoken.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// No certificate.
    #[error("no certificate can be read from {}: {problem}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// No key.
    #[error("no private key can be read from {}: {problem}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Both, but not for each other.
    #[error("the key in {} does not fit the certificate in {}: {problem}", key.display(), certificate.display())]
    Together {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// A certificate chain and its key, from PEM files. They can be replaced while connections are open: those keep what they
/// began with, new ones get the new certificate.
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
        let current = certified(&certificate, &key, file::read(&certificate), file::read(&key))?;
        Ok(Arc::new(Self { certificate, key, current: ArcSwap::from_pointee(current) }))
    }

    /// The files: the certificate's and the key's.
    pub fn files(&self) -> [&Path; 2] {
        [&self.certificate, &self.key]
    }

    /// Replaces both with what stands in the files now. On an error everything stays as it is.
    pub fn replace(
        &self,
        certificate: io::Result<Vec<u8>>,
        key: io::Result<Vec<u8>>,
    ) -> Result<(), TlsError> {
        let new = certified(&self.certificate, &self.key, certificate, key)?;
        self.current.store(Arc::new(new));
        Ok(())
    }

    /// TLS with this certificate; HTTP/2 is offered before HTTP/1.1.
    pub fn server_config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, TlsError> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| self.unusable(&error))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(CertificateResolver(Arc::clone(self))));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    fn unusable(&self, error: &rustls::Error) -> TlsError {
        unusable(&self.certificate, &self.key, error)
    }
}

/// Gives each new connection the certificate of the moment.
#[derive(Debug)]
struct CertificateResolver(Arc<ServerCertificate>);

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.current.load_full())
    }
}

/// The provider is named here, so that nothing depends on which one was installed for the process.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn certified(
    certificate: &Path,
    key: &Path,
    certificates: io::Result<Vec<u8>>,
    private: io::Result<Vec<u8>>,
) -> Result<CertifiedKey, TlsError> {
    let chain = certificates.map_err(|error| error.to_string()).and_then(|pem| parse_certificates(&pem));
    let chain = chain.map_err(|problem| TlsError::Certificate { path: certificate.to_owned(), problem })?;
    let private = private
        .map_err(|error| error.to_string())
        .and_then(|pem| PrivateKeyDer::from_pem_slice(&pem).map_err(|error| error.to_string()));
    let private = private.map_err(|problem| TlsError::Key { path: key.to_owned(), problem })?;
    // Also an error if they are not for each other.
    CertifiedKey::from_der(chain, private, &provider()).map_err(|error| unusable(certificate, key, &error))
}

fn unusable(certificate: &Path, key: &Path, error: &rustls::Error) -> TlsError {
    let (certificate, key) = (certificate.to_owned(), key.to_owned());
    TlsError::Together { certificate, key, problem: error.to_string() }
}

fn parse_certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| error.to_string())?;
    if certificates.is_empty() {
        return Err("there is none in it; it begins with -----BEGIN CERTIFICATE-----".to_owned());
    }
    Ok(certificates)
}
