//! The tests of the client layer, as one binary.

#![allow(clippy::unwrap_used, clippy::panic)] // A test that cannot go on should say so at once.

mod advice;
mod real;
mod retries;
mod server;
mod throttling;
