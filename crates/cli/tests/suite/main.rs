//! The tests of the binary, run as people run it, as one binary.

#![allow(clippy::unwrap_used, clippy::panic)] // A test that cannot go on should say so at once.

mod client;
mod doors;
mod gateway;
mod program;
mod restarting;
mod rules;
mod secrets;
mod serving;
mod settings;
mod sharing;
mod simulate;
mod stopping;
mod watching;
