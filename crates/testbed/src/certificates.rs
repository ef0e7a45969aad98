//! Certificates for tests.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// A certificate authority, and a server certificate for `localhost` and 127.0.0.1, as PEM.
#[derive(Clone, Debug)]
pub struct TestCertificates {
    /// The authority's certificate.
    pub authority: String,
    /// The server's certificate.
    pub certificate: String,
    /// The server's key.
    pub key: String,
}

impl TestCertificates {
    /// Generates a new authority and certificate.
    pub fn generate() -> Self {
        let mut authority = CertificateParams::default();
        // OpenSSL takes a certificate whose issuer has its own name for one that signed itself.
        authority.distinguished_name.push(DnType::CommonName, "Tollgate test authority");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(authority, key).expect("a certificate");
        let key = KeyPair::generate().expect("a key");
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let server = CertificateParams::new(names).expect("two good names");
        let certificate = server.signed_by(&key, &authority).expect("a certificate");
        Self { authority: authority.pem(), certificate: certificate.pem(), key: key.serialize_pem() }
    }
}
