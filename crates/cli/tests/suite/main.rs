//! The tests of the binary, run as people run it, as one binary.

#![allow(clippy::unwrap_used, clippy::panic)] // A test that cannot go on should say so at once.

mod certificates;
mod client;
mod doors;
mod gateway;
mod irregular;
mod last_good;
mod output;
mod program;
mod restarting;
mod rules;
mod secrets;
mod serving;
mod settings;
mod sharing;
mod signals;
mod simulate;
mod stopping;
mod watching;
