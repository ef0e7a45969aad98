//! The tests of `tollgate-http`, as one binary.

#![allow(clippy::unwrap_used, clippy::panic)] // A test that cannot go on should say so at once.

mod bodies;
mod bypass;
#[allow(dead_code, reason = "the tests of the servers share it")]
mod client;
mod decisions;
mod forward_auth;
mod forwarding;
mod frameworks;
mod headers;
mod identities;
mod layering;
mod limited_service;
mod over_limit;
mod shared_store;
mod status_codes;
mod tokens;
