//! What HTTP needs to know of a decision: its headers, its bodies, and the loop that serves them.
//!
//! Header names stand in [`headers`] and status codes in [`answer`], and nowhere else.

pub mod answer;
pub mod body;
pub mod fault;
pub mod grpc;
pub mod headers;
pub mod identity;
pub mod layer;
pub mod path;
pub mod read;
pub mod serve;

pub use answer::Answer;
pub use fault::Fault;
pub use headers::{HeaderOptions, Reset};
pub use identity::{Caller, Identities, IdentityError, IdentityOptions};
pub use layer::{PeerAddr, RateLimit, RateLimitLayer};
pub use serve::{ServeOptions, serve};
