//! A small HTTP client for a control plane: whole replies up to a bound, and streams of events.
//!
//! Each request has a connection of its own. Errors and `Debug` never show the token.

mod event_stream;

pub use event_stream::{EventStream, ServerEvent};

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONNECTION, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tollgate_limiter::file;

/// The largest body of a reply: a rule text in JSON, each character escaped.
const MOST_REPLY_BYTES: usize = 2 * file::MOST_BYTES as usize + (1 << 20);
/// For a new connection, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// For a whole exchange.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(30);

/// A client of one control plane. Clones are cheap.
#[derive(Clone)]
pub struct HttpClient(Arc<HttpTarget>);

struct HttpTarget {
    tls: Option<TlsConnector>,
    host: String,
    port: u16,
    /// What is sent as `Host`.
    authority: HeaderValue,
    /// What stands before each path, without a slash at the end.
    base: String,
    token: Option<HeaderValue>,
}

/// A request to the control plane.
#[derive(Clone, Debug)]
pub struct HttpCall {
    /// The method.
    pub method: Method,
    /// The path and the query.
    pub path: String,
    /// More headers than those that every request has.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// The reply of the control plane.
#[derive(Clone, Debug)]
pub struct HttpReply {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum HttpClientError {
    /// The address cannot be used.
    #[error(
        "`{url}` is not the address of a control plane: {problem}\n  hint: write it as in http://127.0.0.1:9090"
    )]
    Url {
        /// The address, without a password.
        url: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The token cannot be sent.
    #[error("the token has characters that cannot be sent; it is one line of letters, digits and `_`")]
    Token,
    /// The trusted authorities cannot be read.
    #[error("the trusted certificates cannot be used: {0}")]
    Trust(io::Error),
    /// There is no connection.
    #[error("cannot connect to {address}: {error}")]
    Connect {
        /// The address.
        address: String,
        /// The cause.
        error: io::Error,
    },
    /// The exchange failed.
    #[error("no reply from {address}: {problem}")]
    Exchange {
        /// The address.
        address: String,
        /// The cause.
        problem: String,
    },
}

impl HttpCall {
    /// A request without a body.
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), headers: HeaderMap::new(), body: Bytes::new() }
    }

    /// The request with a header.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// The request with a body.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HttpClient").field(&self.address()).finish()
    }
}

impl HttpClient {
    /// A client of the control plane at `url`, such as `https://control.example:9090`. It sends `token` as a bearer
    /// token. For TLS it trusts the certificates in the file `ca`, else those of the system. May read files.
    pub fn new(url: &str, token: Option<&str>, ca: Option<&Path>) -> Result<Self, HttpClientError> {
        let problem = |problem| HttpClientError::Url { url: without_userinfo(url), problem };
        let uri: Uri = url.parse().map_err(|_| problem("it is no URL"))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(problem("it must begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| problem("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(problem("it must not contain a user or a password"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(problem("it has no host"));
        }
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let authority =
            HeaderValue::from_str(authority.as_str()).map_err(|_| problem("its host is invalid"))?;
        if uri.query().is_some() {
            return Err(problem("it must not have a query"));
        }
        let base = uri.path().trim_end_matches('/').to_owned();
        let token = token.map(bearer).transpose()?;
        let tls = is_tls.then(|| connector(ca)).transpose().map_err(HttpClientError::Trust)?;
        Ok(Self(Arc::new(HttpTarget { tls, host, port, authority, base, token })))
    }

    /// The host and the port.
    pub fn address(&self) -> String {
        let HttpTarget { host, port, .. } = &*self.0;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// The URL, as it names the control plane in messages.
    pub fn url(&self) -> String {
        let scheme = if self.0.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{}", self.address(), self.0.base)
    }

    /// Sends a request and reads the whole reply, whatever its status.
    pub async fn send(&self, call: HttpCall) -> Result<HttpReply, HttpClientError> {
        let exchange = async {
            let (response, _connection) = self.exchange(call).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MOST_REPLY_BYTES).collect().await;
            let body = body.map_err(|error| self.failed(error.to_string()))?.to_bytes();
            Ok(HttpReply { status: head.status, headers: head.headers, body })
        };
        timeout(EXCHANGE_TIMEOUT, exchange).await.unwrap_or_else(|_| Err(self.late()))
    }

    /// Opens a stream of server-sent events.
    pub async fn events(&self, path: &str) -> Result<EventStream, HttpClientError> {
        let call = HttpCall::new(Method::GET, path)
            .with_header(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let opened = timeout(EXCHANGE_TIMEOUT, self.exchange(call)).await;
        let (response, connection) = opened.unwrap_or_else(|_| Err(self.late()))?;
        if !response.status().is_success() {
            return Err(self.failed(format!("it answered {}", response.status())));
        }
        Ok(EventStream::new(response.into_body(), connection))
    }

    async fn exchange(
        &self,
        call: HttpCall,
    ) -> Result<(Response<Incoming>, ClientConnection), HttpClientError> {
        let HttpCall { method, path, headers, body } = call;
        let mut request = Request::new(Full::new(body));
        let target = format!("{}{path}", self.0.base);
        *request.uri_mut() = target.parse().map_err(|_| self.failed(format!("`{path}` is no path")))?;
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        request.headers_mut().insert(HOST, self.0.authority.clone());
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        if let Some(token) = &self.0.token {
            request.headers_mut().insert(AUTHORIZATION, token.clone());
        }
        let connected = timeout(CONNECT_TIMEOUT, self.connect()).await;
        let stream = connected.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut)));
        let stream = stream.map_err(|error| HttpClientError::Connect { address: self.address(), error })?;
        let failed = |error: hyper::Error| self.failed(error.to_string());
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let driver = tokio::spawn(async move {
            // The exchange sees the error too.
            let _ = connection.await;
        });
        let connection = ClientConnection(driver.abort_handle());
        Ok((sender.send_request(request).await.map_err(failed)?, connection))
    }

    async fn connect(&self) -> io::Result<Box<dyn ClientStream>> {
        let HttpTarget { tls, host, port, .. } = &*self.0;
        let stream = TcpStream::connect((host.as_str(), *port)).await?;
        stream.set_nodelay(true)?;
        let Some(connector) = tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
        Ok(Box::new(connector.connect(name, stream).await?))
    }

    fn failed(&self, problem: String) -> HttpClientError {
        HttpClientError::Exchange { address: self.address(), problem }
    }

    fn late(&self) -> HttpClientError {
        self.failed(format!("none within {EXCHANGE_TIMEOUT:?}"))
    }
}

/// Ends its connection when it is dropped.
#[derive(Debug)]
struct ClientConnection(AbortHandle);

impl Drop for ClientConnection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A stream with or without TLS.
trait ClientStream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> ClientStream for S {}

fn bearer(token: &str) -> Result<HeaderValue, HttpClientError> {
    let is_valid = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let value = HeaderValue::from_str(&format!("Bearer {token}")).ok().filter(|_| is_valid);
    let mut value = value.ok_or(HttpClientError::Token)?;
    value.set_sensitive(true);
    Ok(value)
}

/// An address as it may be shown.
fn without_userinfo(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 <= at => format!("{}***{}", &url[..scheme + 3], &url[at..]),
        (None, Some(at)) => format!("***{}", &url[at..]),
        _ => url.to_owned(),
    }
}

fn connector(ca: Option<&Path>) -> io::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            for certificate in CertificateDer::pem_slice_iter(&file::read(path)?) {
                let certificate = certificate.map_err(|error| io::Error::other(format!("{error:?}")))?;
                roots.add(certificate).map_err(io::Error::other)?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err(io::Error::other("there is none"));
    }
    // The provider is named here, so that nothing depends on the default of the process.
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_and_shown_without_passwords() {
        for (url, address, base) in [
            ("http://127.0.0.1:9090", "127.0.0.1:9090", ""),
            ("http://control", "control:80", ""),
            ("http://[::1]:9090/", "[::1]:9090", ""),
            ("http://edge/tollgate/", "edge:80", "/tollgate"),
        ] {
            let client = HttpClient::new(url, Some("secret_token"), None).unwrap();
            assert_eq!((client.address().as_str(), client.0.base.as_str()), (address, base));
            assert!(!format!("{client:?}").contains("secret_token"));
        }
        for (url, problem) in [
            ("127.0.0.1:9090", "it must begin with http:// or https://"),
            ("ftp://host", "it must begin with http:// or https://"),
            ("http://user:hunter2@host", "it must not contain a user or a password"),
            ("http://host/?a=b", "it must not have a query"),
            ("not a url", "it is no URL"),
        ] {
            let error = HttpClient::new(url, None, None).unwrap_err().to_string();
            assert!(error.contains(problem) && !error.contains("hunter2"), "{error}");
        }
        for token in ["", "two words", "line\n", "ü"] {
            let error = HttpClient::new("http://host", Some(token), None).unwrap_err();
            assert!(matches!(error, HttpClientError::Token), "{token:?}: {error}");
        }
    }
}
