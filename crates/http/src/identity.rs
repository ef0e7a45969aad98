//! Who a request is from: the identities that rules count by, taken from what a request carries.
//!
//! [`IdentityOptions`] say where to look, and are the `identity:` section of the settings. [`IdentityExtractor`]
//! are made of them once; for each request they find a [`Caller`], which lends its names to the engine.
//!
//! An identity that is missing or cannot be proven is absent, and the engine counts by the next in the chain
//! user → API key → address. What is said twice is refused: whoever stands behind might read the other one.

mod caller;
mod client_ip;
mod forwarded;
mod jwt;
mod options;
mod redact;
mod source;

pub use caller::{Caller, IdentityExtractor};
pub use client_ip::{ClientIpOptions, ForwardedHeader, IpNetwork};
pub use jwt::{JwtAlgorithm, JwtOptions};
pub use options::{IdentityError, IdentityOptions, IdentitySources, TrustedHeader};
pub use redact::redacted;
pub use source::{ConfiguredHeader, IdentitySource};
