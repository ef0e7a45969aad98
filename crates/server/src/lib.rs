//! The doors of a Tollgate node: protocols through which callers ask the [`Limiter`](tollgate_limiter::Limiter)
//! for decisions.
//!
//! A door is a type in a file of its own, with `serve` to run it on a listener and `describe` to tell the rule compiler
//! what it supports. [`HttpDoor`] is `POST /v1/check`, `POST /v1/check/batch`, `GET /v1/auth`, `GET /healthz` and
//! `GET /readyz`, which reports the [`Readiness`] of the node. [`RespDoor`] is the Redis protocol, [`RlsDoor`] the
//! rate limit service of Envoy.
//!
//! An HTTP request passes these files in order: `http_door.rs` (route, origin check, body), `check.rs` or `batch.rs`,
//! [`check_request`] (JSON to [`Request`](tollgate_limiter::Request)), the limiter, and [`check_response`] (decision
//! to JSON). One of forward-auth passes `http_door.rs` and [`mod@auth`], which restores the original request and asks the
//! [`RateLimitLayer`](tollgate_http::RateLimitLayer). A Redis command passes [`resp_door`] (reads and writes),
//! [`mod@resp_door::decode`], `resp_door/session.rs`, `throttle.rs` or `rule_check.rs` beside it, and
//! [`resp_door::encode`]. A call of Envoy passes `rls_door/connection.rs`, [`rls_door`], [`rls_door::descriptors`] and
//! [`mod@rls_door::answer`].
//!
//! ```
//! use std::sync::Arc;
//! use tollgate_http::{ForwardAuthOptions, HeaderOptions};
//! use tollgate_limiter::{Clock, Limiter, MemoryStore};
//! use tollgate_server::{ForwardAuth, HttpDoor, Readiness};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let limiter = Limiter::new(MemoryStore::new(1 << 20), Clock::system());
//! let loaded = tollgate_core::rules::load("rules.yaml", "rules: [{ id: all, limit: 100/min }]").unwrap();
//! limiter.install(loaded.rules, loaded.lists).unwrap();
//!
//! let readiness = Arc::new(Readiness::default());
//! readiness.set_rules_installed();
//! let (limiter, headers) = (Arc::new(limiter), HeaderOptions::default());
//! let (identities, options) = (Arc::default(), ForwardAuthOptions::default());
//! let forward_auth = ForwardAuth::new(Arc::clone(&limiter), headers, identities, options);
//! let door = HttpDoor { limiter, headers, forward_auth, readiness };
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let shutdown = async {}; // A signal, in a real server.
//! let cut_connections = Arc::new(door).serve(listener, shutdown, HttpDoor::default_options()).await;
//! assert_eq!(cut_connections, 0);
//! # std::io::Result::Ok(()) })?;
//! # std::io::Result::Ok(())
//! ```

pub mod auth;
pub mod batch;
pub mod check;
pub mod check_request;
pub mod check_response;
mod http_door;
mod json_error;
pub mod resp_door;
pub mod rls_door;

pub use auth::ForwardAuth;
pub use http_door::HttpDoor;
pub use resp_door::RespDoor;
pub use rls_door::RlsDoor;
pub use tollgate_listen::{NotReady, Readiness};
