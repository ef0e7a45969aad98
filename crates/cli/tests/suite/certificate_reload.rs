//! Reloading of certificates and JWT keys by a running gateway.

use crate::gateway::upstream;
use crate::process::{PATIENCE, TollgateProcess, tollgate};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use tollgate_testbed::{TestCertificates, wait_until};

const RULES: &str = "rules: [{ id: one, limit: 1000/h }]";

/// A folder with a certificate, its key and its authority.
pub struct CertificateFolder {
    folder: TempDir,
}

impl CertificateFolder {
    pub fn new() -> Self {
        let files = Self { folder: tempfile::tempdir().unwrap() };
        files.write(&TestCertificates::generate());
        files
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn replace(&self, name: &str, text: &str) {
        std::fs::write(self.path("new"), text).unwrap();
        std::fs::rename(self.path("new"), self.path(name)).unwrap();
    }

    fn write(&self, certificates: &TestCertificates) {
        self.replace("authority.pem", &certificates.authority);
        self.replace("key.pem", &certificates.key);
        self.replace("cert.pem", &certificates.certificate);
    }

    /// Replaces all of them by new ones.
    pub fn renew(&self) {
        self.write(&TestCertificates::generate());
    }

    /// Starts a gateway with TLS, and waits until its certificate is in force.
    pub fn gateway(&self, rules: &str) -> TollgateProcess {
        std::fs::write(self.path("rules.yaml"), rules).unwrap();
        let settings = format!(
            "rules: rules.yaml\ngateway_listen: 127.0.0.1:0\nupstream: http://{}\ngateway: {{ tls: {{ certificate: cert.pem, key: key.pem }} }}\n",
            upstream()
        );
        std::fs::write(self.path("tollgate.yaml"), settings).unwrap();
        let server = TollgateProcess::from(tollgate(["gateway", "--config"]).arg(self.path("tollgate.yaml")));
        server.wait_for_log("certificate in force");
        server
    }

    /// Opens a connection that trusts the authority in the folder.
    fn connect(&self, server: &TollgateProcess) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path("authority.pem")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream)
    }

    /// Sends a request over a new connection, and returns the certificate of the server.
    pub fn served_certificate(&self, server: &TollgateProcess) -> Vec<u8> {
        let mut stream = self.connect(server);
        get(&mut stream);
        peer_certificate(&stream)
    }
}

pub fn read_chain(path: &Path) -> Vec<u8> {
    CertificateDer::from_pem_file(path).unwrap().to_vec()
}

fn get(stream: &mut StreamOwned<ClientConnection, TcpStream>) {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"hello") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        seen.push(byte[0]);
    }
    assert!(seen.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&seen));
}

fn peer_certificate(stream: &StreamOwned<ClientConnection, TcpStream>) -> Vec<u8> {
    stream.conn.peer_certificates().unwrap()[0].to_vec()
}

#[test]
fn new_connections_get_the_new_certificate_and_open_ones_stay_open() {
    let files = CertificateFolder::new();
    let server = files.gateway(RULES);
    let mut old = files.connect(&server);
    get(&mut old);
    let first = peer_certificate(&old);
    assert_eq!(first, read_chain(&files.path("cert.pem")));
    for asked in [false, true] {
        files.write(&TestCertificates::generate());
        if asked {
            server.signal("HUP");
        }
        let new = read_chain(&files.path("cert.pem"));
        wait_until("the new certificate is shown", || {
            let mut stream = files.connect(&server);
            // Until the reload, the handshake fails: the client trusts only the new authority.
            stream.flush().is_ok() && peer_certificate(&stream) == new
        });
        get(&mut old);
        assert_eq!(peer_certificate(&old), first);
    }
}

#[test]
fn a_pair_that_does_not_match_is_not_used() {
    let files = CertificateFolder::new();
    let server = files.gateway(RULES);
    let (good, other) = (read_chain(&files.path("cert.pem")), TestCertificates::generate());
    let key = std::fs::read_to_string(files.path("key.pem")).unwrap();
    for (name, text, why) in [
        ("key.pem", other.key.as_str(), "does not match the certificate"),
        ("key.pem", "", "cannot read a private key from"),
        ("cert.pem", "no certificate", "cannot read a certificate from"),
    ] {
        let before = std::fs::read_to_string(files.path(name)).unwrap();
        files.replace(name, text);
        let line = server.wait_for_log("certificate reload failed; the previous certificate stays in force");
        assert!(line.contains("ERROR") && line.contains(why), "{line}");
        assert_eq!(files.served_certificate(&server), good, "{why}");
        files.replace(name, &before);
        server.wait_for_log("certificate in force");
    }
    assert_eq!(std::fs::read_to_string(files.path("key.pem")).unwrap(), key);
    assert_eq!(files.served_certificate(&server), good);
}

/// A token of ann, signed with this secret.
fn token(secret: &str) -> String {
    let claims = serde_json::json!({ "sub": "ann", "exp": 4_000_000_000_u64 });
    encode(&Header::new(Algorithm::HS256), &claims, &EncodingKey::from_secret(secret.as_bytes())).unwrap()
}

#[test]
fn tokens_are_verified_by_the_new_key_only() {
    let (one, two) =
        ("a first secret of thirty-two bytes, at least", "another secret of thirty-two bytes, at least");
    let files = CertificateFolder::new();
    std::fs::write(files.path("secret"), one).unwrap();
    std::fs::write(
        files.path("rules.yaml"),
        "rules: [{ id: ann, match: { user_pattern: ann }, limit: 1000/h }]",
    )
    .unwrap();
    let settings = format!(
        "rules: rules.yaml\ngateway_listen: 127.0.0.1:0\nupstream: {}\nidentity: {{ user: {{ jwt: sub }}, jwt: {{ algorithm: HS256, secret_file: secret }} }}\n",
        upstream()
    );
    std::fs::write(files.path("tollgate.yaml"), settings).unwrap();
    let server = TollgateProcess::from(tollgate(["gateway", "--config"]).arg(files.path("tollgate.yaml")));
    server.wait_for_log("JWT keys in force");
    let mut client = server.client();
    let mut is_ann = |secret: &str| {
        client.send(&format!(
            "GET / HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {}\r\n\r\n",
            token(secret)
        ));
        client.reply().header("x-ratelimit-limit") == "1000"
    };
    assert_eq!((is_ann(one), is_ann(two)), (true, false));
    files.replace("secret", two);
    server.wait_for_log("JWT keys in force");
    assert_eq!((is_ann(one), is_ann(two)), (false, true), "a cached verification does not survive");
    files.replace("secret", "short");
    let line = server.wait_for_log("JWT key reload failed; the previous keys stay in force");
    assert!(line.contains("ERROR") && line.contains("at least 32 bytes"), "{line}");
    assert!(is_ann(two));
    files.replace("secret", one);
    server.signal("HUP");
    server.wait_for_log("JWT keys in force");
    assert_eq!((is_ann(one), is_ann(two)), (true, false));
}

/// A change would be noticed without the signal, so nothing is changed here.
#[test]
fn sighup_reads_certificates_and_keys_again() {
    let files = CertificateFolder::new();
    std::fs::write(files.path("secret"), "a first secret of thirty-two bytes, at least").unwrap();
    let settings = format!(
        "gateway_listen: 127.0.0.1:0\nupstream: {}\ngateway: {{ tls: {{ certificate: cert.pem, key: key.pem }} }}\nidentity: {{ user: {{ jwt: sub }}, jwt: {{ algorithm: HS256, secret_file: secret }} }}\n",
        upstream()
    );
    std::fs::write(files.path("tollgate.yaml"), settings).unwrap();
    let server = TollgateProcess::from(tollgate(["gateway", "--config"]).arg(files.path("tollgate.yaml")));
    server.wait_for_log("rules in force");
    for unchanged in ["unchanged=false", "unchanged=true", "unchanged=true"] {
        // In either order: each is read by a thread of its own.
        let mut lines = [server.wait_for_log(" in force"), server.wait_for_log(" in force")];
        lines.sort_by_key(|line| line.contains("JWT keys in force"));
        assert!(lines[0].contains("certificate in force") && lines[0].contains(unchanged), "{lines:?}");
        assert!(lines[1].contains("JWT keys in force") && lines[1].contains(unchanged), "{lines:?}");
        server.signal("HUP");
    }
}
