//! The tests of the shared store, as one binary.

#![allow(clippy::unwrap_used, clippy::panic)] // A test that cannot go on should say so at once.

#[path = "../../../limiter/tests/suite/conformance.rs"]
mod conformance;
mod log;
mod on_redis;
mod script;
mod shared;

use conformance::setting;
