//! The tests of the client layer, as one binary.

#![allow(clippy::unwrap_used, clippy::panic)] // A failed precondition ends the test.

mod real_server;
mod response_limits;
mod retries;
mod throttling;
mod virtual_server;
