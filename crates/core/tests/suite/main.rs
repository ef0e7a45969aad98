//! The tests of the core as one binary: it links once, and its modules run in parallel.

#![allow(clippy::unwrap_used, clippy::panic)] // A test that cannot go on should say so at once.

mod laws;
mod limits;
mod oracle;
mod sample;
mod worked_examples;
