//! The messages and the service of Envoy's API, generated from `proto/` by `build.rs`.

#![allow(missing_docs, clippy::all, clippy::panic, clippy::unwrap_used, unreachable_pub)]

mod generated {
    include!(concat!(env!("OUT_DIR"), "/rls_proto.rs"));
}

pub use generated::envoy::config::core::v3::HeaderValue as HeaderText;
pub use generated::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
pub use generated::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
pub use generated::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
pub use generated::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit as CurrentLimit,
};
pub use generated::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
pub use generated::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
pub use generated::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
pub use generated::envoy::r#type::v3::RateLimitUnit;

/// The descriptors of all messages, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/rls_descriptors.bin"));
