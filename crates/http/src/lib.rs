//! Rate limits for HTTP services: what a limiter needs to know of HTTP, and HTTP of a decision.
//!
//! For requests, [`identity`] finds the identities, [`path`] and [`host`] bring path and host into one form. For responses there
//! are [`headers`], bodies and whole [`response`]s. [`layer`] puts a limiter in front of any tower service.
//!
//! Header names stand in [`headers`] and status codes in [`body`] and [`grpc`], and nowhere else.

pub mod body;
pub mod error;
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
pub use headers::{HeaderOptions, ResetFormat, UnavailableStatus};
pub use identity::{Caller, IdentityError, IdentityExtractor, IdentityOptions};
pub use layer::{PeerAddr, RateLimit, RateLimitLayer};
pub use reserved_headers::{HeaderNameKind, ReservedHeaders};
pub use response::FullResponse;
