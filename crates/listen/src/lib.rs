//! The HTTP accept loop of Tollgate's servers, for hyper services.
//!
//! [`serve()`] accepts connections from a TCP listener, with or without TLS, and answers HTTP/1.1 and HTTP/2 with one hyper
//! service for each connection. At shutdown it drains. Everything that a client can make it hold is bounded ([`ServeOptions`]).
//!
//! ```no_run
//! use http::{Request, Response};
//! use hyper::body::Incoming;
//! use hyper::service::service_fn;
//! use std::convert::Infallible;
//! use tollgate_listen::{ConnectionLimitOptions, ConnectionLimits, ListenerSetup, Peer, ServeOptions, serve};
//!
//! # async fn run() -> std::io::Result<()> {
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! let limits = Some(ConnectionLimits::new(ConnectionLimitOptions::default()));
//! let setup = ListenerSetup { limits, ..ListenerSetup::default() };
//! let connect = |_peer: Peer| {
//!     service_fn(async |_: Request<Incoming>| Ok::<_, Infallible>(Response::new("hello\n".to_owned())))
//! };
//! let shutdown = std::future::pending(); // A signal, in a real server.
//! let cut_connections = serve(listener, setup, connect, shutdown, ServeOptions::default()).await;
//! # Ok(())
//! # }
//! ```
//!
//! [`ConnectionLimits`] bounds the open connections of a client address, and refuses an address for a while after too many
//! refused requests in a row:
//!
//! ```
//! use tollgate_listen::{AddressVerdict, ConnectionLimitOptions, ConnectionLimits, ConnectionRefusal};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let options = ConnectionLimitOptions { most_rejections: 2, ..ConnectionLimitOptions::default() };
//! let limits = ConnectionLimits::new(options);
//! let client = "192.0.2.1".parse().unwrap();
//! let connection = limits.admit(client).unwrap().unwrap();
//! assert_eq!(connection.record_refusal(), AddressVerdict::Accepted);
//! assert_eq!(connection.record_refusal(), AddressVerdict::Refused);
//! assert_eq!(limits.admit(client).unwrap_err(), ConnectionRefusal::AddressRefused);
//! # });
//! ```
//!
//! # What matters
//!
//! | | |
//! |---|---|
//! | [`serve()`], [`ServeOptions`], [`ListenerSetup`] | the accept loop |
//! | [`serve_streams`], [`StreamConnection`] | the same for protocols other than HTTP |
//! | [`Peer`] | the client's end of a connection, for its service |
//! | [`ServerCertificate`] | TLS certificates that can be replaced while connections are open |
//! | [`ConnectionLimits`] | limits of each client address |
//! | [`ListenerCounters`] | connections and TLS handshakes, for metrics |
//! | [`Framing::Strict`] | refuses requests whose end is ambiguous (request smuggling) |
//! | [`MinRate`], [`SendLimits`], [`PeerWait`] | how slow a client may be |
//! | [`RefusalFastPath`] | answers repeated requests of a refused client before they are parsed |
//! | [`Readiness`], [`health_response`] | health endpoints |
//! | [`read_body`], [`discard_body`] | read a request body, bounded in size and time |

mod connection;
mod connection_activity;
mod connection_limits;
mod connection_signal;
mod framing;
mod http2_streams;
mod listener_counters;
mod min_rate;
mod observed_stream;
mod protocol;
mod readiness;
mod refusal_fast_path;
mod request_body;
mod serve;
mod streams;
mod tls;
mod tls_handshake;

pub use connection_limits::{
    AddressVerdict, ConnectionLimitOptions, ConnectionLimits, ConnectionRefusal, CountedConnection,
    address_prefix,
};
pub use framing::parse_content_length;
pub use listener_counters::ListenerCounters;
pub use min_rate::{MinRate, PeerWait, RateWindow, SendLimits};
pub use readiness::{NotReady, Readiness, health_response};
pub use refusal_fast_path::{RefusalFastPath, RefusedRepeat, RepeatedRequest};
pub use request_body::{DiscardedBody, discard_body, read_body};
pub use serve::{ConnectionService, Framing, ListenerSetup, Peer, Protocols, ServeOptions, serve};
pub use streams::{DrainSignal, ListenerStream, StreamConnection, serve_streams};
pub use tls::{PemFileError, ServerCertificate, TlsError};
