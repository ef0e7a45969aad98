//! The tests of what HTTP says, as one binary.

#![allow(clippy::unwrap_used, clippy::panic)] // A test that cannot go on should say so at once.

mod bodies;
mod bypass;
#[allow(dead_code, reason = "the tests of the servers share it")]
mod client;
mod decisions;
mod exceeding;
mod forwarding;
mod frameworks;
mod gatehouse;
mod headers;
mod identities;
mod layering;
mod sharing;
mod status_codes;
mod tokens;
