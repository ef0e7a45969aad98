//! The tests of the accept loop, as one binary.

#![allow(clippy::unwrap_used, clippy::panic)] // A test that cannot go on should say so at once.

#[allow(dead_code, reason = "the tests of the check API share it")]
#[path = "../../../http/tests/suite/client.rs"]
mod client;
mod serving;
