//! The gateway: a reverse proxy that forwards the requests which rate limits admit.
//!
//! [`Gateway::start`] runs it, with [`GatewaySettings`] (routes, upstreams, headers, body limits), the limits as a
//! [`RateLimitLayer`](tollgate_http::RateLimitLayer), and [`ListenSettings`]. It has one thread per core, each with its own
//! listener, runtime and upstream connections, so that a request never leaves its core.
//!
//! ```no_run
//! use std::sync::Arc;
//! use tollgate_gateway::settings::{GatewaySettings, UpstreamSettings};
//! use tollgate_gateway::{Gateway, ListenSettings};
//! use tollgate_http::RateLimitLayer;
//! use tollgate_limiter::{Clock, Limiter, MemoryStore};
//! use tollgate_listen::{ListenerSetup, ServeOptions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Limiter::new(MemoryStore::new(1 << 24), Clock::system());
//! let loaded = tollgate_core::rules::load("rules.yaml", "rules: [{ id: all, limit: 100/min }]").unwrap();
//! limiter.install(loaded.rules, loaded.lists).unwrap();
//! let limits = RateLimitLayer::new(Arc::new(limiter));
//!
//! let upstream = UpstreamSettings::new("api", vec!["http://127.0.0.1:3000".parse()?]);
//! let listen = ListenSettings {
//!     address: ([127, 0, 0, 1], 8000).into(),
//!     threads: 2,
//!     options: ServeOptions::default(),
//!     setup: ListenerSetup::default(),
//!     log: None,
//! };
//! let gateway = Gateway::start(&GatewaySettings::to(upstream), &limits, &listen)?;
//! // Later: finish the requests in flight, then stop.
//! gateway.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! A request passes these files in order:
//!
//! 1. `gateway.rs` starts the threads that accept it.
//! 2. `stack.rs` builds the service of a connection: the scrubber, the limits, the forwarder. Responses are counted
//!    (`metrics.rs`) and the access log is written (`access_log.rs`) here, both with `measured_body.rs`.
//! 3. `scrub.rs` removes headers that a client must not send. `request_id.rs` gives the request its id.
//! 4. `forward.rs` finds the route (`route_table.rs`) and prepares the request (`headers.rs`, `client_address.rs`).
//! 5. `exchange.rs` selects a server (`upstream.rs`), takes a connection (`upstream/pool.rs`), sends the request
//!    (`exchange/attempt.rs`), and retries where that is safe.
//! 6. `body.rs` forwards the response, `body/upload.rs` the request body; `tunnel.rs` takes over after an upgrade, and
//!    `client_gone.rs` after a disconnect. `forward_error.rs` is the response to a request that was not forwarded.

mod access_log;
mod body;
mod client_address;
mod client_gone;
mod exchange;
mod forward;
mod forward_error;
mod forwarding_state;
mod gateway;
mod headers;
mod measured_body;
mod metrics;
mod request_id;
mod route_table;
mod scrub;
pub mod settings;
mod stack;
mod tunnel;
mod upstream;

pub use access_log::AccessLog;
pub use gateway::{Gateway, GatewayError, ListenSettings};
pub use route_table::UnknownUpstream;
pub use settings::GatewaySettings;
