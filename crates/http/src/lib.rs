//! Rate limits for HTTP services: a [tower layer](RateLimitLayer) for axum, hyper and tonic, and what it is made of.
//!
//! The layer extracts the identities of a request (API key, user, address, …), asks a [`Limiter`](tollgate_limiter::Limiter), and
//! calls the service behind it or responds with 429. It depends on neither Redis nor TLS.
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Empty;
//! use std::convert::Infallible;
//! use std::sync::Arc;
//! use tollgate_http::RateLimitLayer;
//! use tollgate_limiter::{Clock, Limiter, MemoryStore};
//! use tower::{Layer, ServiceExt, service_fn};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let limiter = Limiter::new(MemoryStore::new(64 << 20), Clock::system());
//! let loaded = tollgate_core::rules::load("rules.yaml", "rules: [{ id: api, limit: 2/min }]").unwrap();
//! limiter.install(loaded.rules, loaded.lists).unwrap();
//!
//! let hello = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) });
//! let service = RateLimitLayer::new(Arc::new(limiter)).layer(hello);
//!
//! for (status, remaining) in [(200, "1"), (200, "0"), (429, "0")] {
//!     let request = Request::get("/orders").header("x-api-key", "sk_1").body(()).unwrap();
//!     let response = service.clone().oneshot(request).await.unwrap();
//!     assert_eq!(response.status(), status);
//!     assert_eq!(response.headers()["x-ratelimit-remaining"], remaining);
//! }
//! # });
//! ```
//!
//! # What matters
//!
//! | | |
//! |---|---|
//! | [`RateLimitLayer`] | the layer; [`layer`] has its details |
//! | [`IdentityOptions`], [`IdentityExtractor`] | where identities come from: headers, query, cookies, JWT claims, the address behind trusted proxies |
//! | [`HeaderOptions`] | which headers a response has: `X-RateLimit-*`, `RateLimit`, `Retry-After` |
//! | [`layer::SharedPermit`] | counts work that outlives the response (`algorithm: concurrency`) |
//!
//! Servers that are no tower services use the parts: [`path`] and [`host`] for canonical forms, [`endpoint`], [`response`] and
//! [`HttpError`] for whole responses, [`forward_auth`] for requests that a proxy describes, [`grpc`] for gRPC statuses, [`ReservedHeaders`] for what a client must not send.
//!
//! Every header name is written in [`headers`], and every status code in [`body`], [`response`] and [`grpc`].
//!
//! # Features
//!
//! `jwt` verifies tokens (`identity: jwt:`). Without it, settings that need tokens are an [`IdentityError`].

pub mod body;
pub mod endpoint;
pub mod error;
pub mod forward_auth;
pub mod grpc;
pub mod headers;
pub mod host;
pub mod identity;
pub mod layer;
pub mod origin;
pub mod path;
pub mod reserved_headers;
pub mod response;

pub use error::HttpError;
pub use forward_auth::{DenyStatus, ForwardAuthOptions};
pub use headers::{HeaderOptions, ResetFormat, UnavailableStatus};
pub use identity::{Caller, IdentityError, IdentityExtractor, IdentityOptions};
pub use layer::{PeerAddr, RateLimit, RateLimitLayer};
pub use reserved_headers::{HeaderNameKind, ReservedHeaders};
pub use response::FullResponse;
