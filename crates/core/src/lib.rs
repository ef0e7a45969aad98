//! The pure heart of Tollgate.
//!
//! Here stand the [`algorithm`]s, the [`limit`]s that run them, the rules as people write them and as
//! they are compiled, and what a decision is. Nothing in this crate reads a clock, does I/O, awaits or
//! draws a random number: time and seeds are parameters.

pub mod algorithm;
pub mod decision;
pub mod descriptor;
pub mod diagnostic;
pub mod document;
pub mod grant;
pub mod heartbeat;
pub mod import;
pub mod key;
pub mod lending;
pub mod limit;
pub mod path;
pub mod penalty;
pub mod rate;
pub mod request;
pub mod rules;
pub mod script;
pub mod state_address;
pub mod time;
pub mod virtual_store;
