//! The doors of a Tollgate node: protocols through which callers ask the [`Limiter`](tollgate_limiter::Limiter)
//! for decisions.
//!
//! There is one door so far, [`HttpDoor`]: `POST /v1/check`, `POST /v1/check/batch`, `GET /healthz` and
//! `GET /readyz`. [`serve_http`] runs it on a listener, [`describe_door`] tells the rule compiler what it supports,
//! and [`Readiness`] is what `/readyz` reports.
//!
//! A request passes these files in order: `http_door.rs` (route, origin check, body), `check.rs` or `batch.rs`,
//! [`check_request`] (JSON to [`Request`](tollgate_limiter::Request)), the limiter, and [`check_response`] (decision
//! to JSON).
//!
//! ```
//! use std::sync::Arc;
//! use tollgate_http::HeaderOptions;
//! use tollgate_limiter::{Clock, Limiter, MemoryStore};
//! use tollgate_listen::ServeOptions;
//! use tollgate_server::{HttpDoor, Readiness, serve_http};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let limiter = Limiter::new(MemoryStore::new(1 << 20), Clock::system());
//! let loaded = tollgate_core::rules::load("rules.yaml", "rules: [{ id: all, limit: 100/min }]").unwrap();
//! limiter.install(loaded.rules, loaded.lists);
//!
//! let readiness = Arc::new(Readiness::default());
//! readiness.set_rules_installed();
//! let door = HttpDoor { limiter: Arc::new(limiter), headers: HeaderOptions::default(), readiness };
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let shutdown = async {}; // A signal, in a real server.
//! let cut_connections = serve_http(listener, Arc::new(door), shutdown, ServeOptions::default()).await;
//! assert_eq!(cut_connections, 0);
//! # std::io::Result::Ok(()) })?;
//! # std::io::Result::Ok(())
//! ```

pub mod batch;
pub mod check;
pub mod check_request;
pub mod check_response;
mod http_door;
mod json_error;
mod readiness;

pub use http_door::{HttpDoor, describe_door, serve_http};
pub use readiness::{NotReady, Readiness};
