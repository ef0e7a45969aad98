//! The accept loop of Tollgate's servers: from a TCP listener and a service to a server that drains.
//!
//! [`serve()`] accepts connections, speaks HTTP/1.1 or HTTP/2 over TCP or TLS, and calls one hyper service for each
//! connection. [`ConnectionLimits`] bounds what one client address may hold, [`MinRate`] says how slow a client may be, and
//! [`Framing::Strict`] refuses requests whose end is ambiguous.

mod connection;
mod connection_activity;
mod connection_limits;
mod connection_signal;
mod framing;
mod http2_streams;
mod min_rate;
mod observed_stream;
mod protocol;
mod refusal_fast_path;
mod request_body;
mod serve;
mod tls;

pub use connection_limits::{
    AddressVerdict, ConnectionLimitOptions, ConnectionLimits, ConnectionRefusal, CountedConnection,
    address_prefix,
};
pub use framing::parse_content_length;
pub use min_rate::{MinRate, PeerWait, RateWindow, SendLimits};
pub use refusal_fast_path::{RefusalFastPath, RepeatedRequest};
pub use request_body::read_body;
pub use serve::{ConnectionService, Framing, ListenerSetup, Peer, Protocols, ServeOptions, serve};
pub use tls::{PemFileError, ServerCertificate, TlsError};
