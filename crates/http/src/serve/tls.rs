//! Certificates and keys from files.

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

/// TLS with the certificate chain and the key in these PEM files; HTTP/2 is offered before HTTP/1.1.
pub fn tls_from_files(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let certificates = read_certificates(certificate)
        .map_err(|problem| TlsError::Certificate { path: certificate.to_owned(), problem })?;
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| TlsError::Key { path: key.to_owned(), problem: error.to_string() })?;
    let together = |error: rustls::Error| TlsError::Together {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        problem: error.to_string(),
    };
    // The provider is named here, so that nothing depends on who installed which for the process.
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(together)?
        .with_no_client_auth()
        .with_single_cert(certificates, private)
        .map_err(together)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())?;
    let certificates = read.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    if certificates.is_empty() {
        return Err("there is none in it; it begins with -----BEGIN CERTIFICATE-----".to_owned());
    }
    Ok(certificates)
}
