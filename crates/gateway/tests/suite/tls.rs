//! TLS to clients and to servers.

use crate::fixture::{self, Pair};
use crate::raw_client::RawClient;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tollgate_listen::ServerCertificate;
use tollgate_testbed::TestCertificates;

pub struct Files {
    folder: TempDir,
    pub certificates: TestCertificates,
}

impl Files {
    pub fn new() -> Self {
        let (folder, certificates) = (tempfile::tempdir().unwrap(), TestCertificates::generate());
        std::fs::write(folder.path().join("cert.pem"), &certificates.certificate).unwrap();
        std::fs::write(folder.path().join("key.pem"), &certificates.key).unwrap();
        Self { folder, certificates }
    }

    pub async fn pair(&self) -> Pair {
        let path = |name: &str| self.folder.path().join(name);
        let certificate = ServerCertificate::open(path("cert.pem"), path("key.pem")).unwrap();
        let tls = certificate.server_config().unwrap();
        Pair::listening(|listen| {
            listen.setup.tls = Some(tls);
            listen.options.head_time = Duration::from_millis(500);
        })
        .await
    }

    /// A client that offers these protocols.
    pub async fn connect(&self, pair: &Pair, alpn: &[&[u8]]) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.certificates.authority.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        let stream = TcpStream::connect(pair.gateway.address()).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }
}

#[tokio::test]
async fn http1_over_tls() {
    let files = Files::new();
    let pair = files.pair().await;
    for alpn in [&[][..], &[&b"http/1.1"[..]]] {
        let mut client = RawClient::over(files.connect(&pair, alpn).await);
        for _ in 0..3 {
            assert_eq!(client.get("/").await.body, "hello");
        }
        assert_eq!(pair.server.last().header("x-forwarded-proto"), "https");
    }
}

#[tokio::test]
async fn connections_without_tls_are_closed() {
    let files = Files::new();
    let pair = files.pair().await;
    for said in ["GET / HTTP/1.1\r\nHost: test\r\n\r\n", ""] {
        let mut client = pair.client().await;
        client.send(said).await;
        let rest = client.closed().await;
        assert!(!rest.starts_with(b"HTTP"), "{rest:?}");
    }
    assert!(pair.server.seen().is_empty());
}

#[test]
fn invalid_certificate_files_are_reported() {
    let (files, others) = (Files::new(), Files::new());
    let path = |name: &str| files.folder.path().join(name);
    std::fs::write(path("empty.pem"), "").unwrap();
    let other_key = others.folder.path().join("key.pem");
    for (certificate, key, expected) in [
        (path("no.pem"), path("key.pem"), "cannot read a certificate from"),
        (path("empty.pem"), path("key.pem"), "no -----BEGIN CERTIFICATE----- in it"),
        (path("cert.pem"), path("no.pem"), "cannot read a private key from"),
        (path("cert.pem"), path("cert.pem"), "cannot read a private key from"),
        (path("cert.pem"), other_key, "does not match the certificate"),
    ] {
        let error = ServerCertificate::open(&certificate, &key).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn server_certificates_are_verified() {
    // A certificate of an authority that this machine does not trust.
    let files = Files::new();
    let secure = files.pair().await;
    let mut upstream = fixture::at([]);
    upstream.addresses =
        vec![format!("https://localhost:{}", secure.gateway.address().port()).parse().unwrap()];
    let gateway = fixture::start(&tollgate_gateway::GatewaySettings::to(upstream));
    let mut client = RawClient::connect(gateway.address()).await;
    assert_eq!(client.get("/").await.status, 502);
    assert!(secure.server.seen().is_empty());
}
