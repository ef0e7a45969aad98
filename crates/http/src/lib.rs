//! What a limiter needs to know of HTTP, and HTTP of a decision.
//!
//! On the way in, [`identity`] finds who asks, [`path`] what for and [`host`] of whom, in one spelling. On the way out there are
//! [`headers`], bodies and whole [`answer`]s. [`layer`] puts a limiter in front of any tower service, and
//! [`serve`](mod@serve) is the accept loop of the doors.
//!
//! Header names stand in [`headers`] and status codes in [`answer`] and [`grpc`], and nowhere else.

pub mod answer;
pub mod body;
pub mod fault;
pub mod grpc;
pub mod headers;
pub mod host;
pub mod identity;
pub mod layer;
pub mod origin;
pub mod path;
pub mod read;
pub mod reserved;
pub mod serve;

pub use answer::Answer;
pub use fault::Fault;
pub use headers::{HeaderOptions, Reset, UnavailableStatus};
pub use identity::{Caller, Identities, IdentityError, IdentityOptions};
pub use layer::{PeerAddr, RateLimit, RateLimitLayer};
pub use reserved::{NameKind, ReservedNames};
pub use serve::{Entrance, Peer, ServeOptions, serve};
