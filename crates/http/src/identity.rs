//! The identities that rules count by, taken from requests.
//!
//! [`IdentityOptions`] name their sources; they are the `identity:` section of the settings. An [`IdentityExtractor`] is built from
//! them once. It finds the [`Caller`] of each request, from which the limiter's request is made.
//!
//! An identity that is missing or not verified is absent, and the limiter counts by the next one in the chain user → API key →
//! address. A request that names an identity twice is refused: the service may read the other one.

mod client_ip;
mod extractor;
mod forwarded;
mod jwt;
mod options;
mod redact;
mod source;

pub use client_ip::{ClientIpOptions, ForwardedHeader, IpNetwork};
pub(crate) use client_ip::{contains, last_hop};
pub use extractor::{Caller, IdentityExtractor};
pub(crate) use forwarded::address as written_address;
pub use jwt::{JwtAlgorithm, JwtOptions};
pub use options::{IdentityError, IdentityOptions, IdentityProblem, IdentitySources, TrustedHeader};
pub use redact::redacted;
pub use source::{ConfiguredHeader, IdentitySource};
