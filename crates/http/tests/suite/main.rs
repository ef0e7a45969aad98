//! The tests of what HTTP says, as one binary.

#![allow(clippy::unwrap_used, clippy::panic)] // A test that cannot go on should say so at once.

mod bodies;
#[allow(dead_code, reason = "the tests of the doors share it")]
mod client;
mod decisions;
mod headers;
mod serving;
