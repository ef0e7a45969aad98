//! The tests of the engine, as one binary.

#![allow(clippy::unwrap_used, clippy::panic)] // A test that cannot go on should say so at once.

mod admission;
mod allocations;
mod conformance;
mod emergency;
mod grants;
mod hot_keys;
mod invalid;
mod ledger;
mod longest_wait;
mod memory;
mod metrics;
mod observation;
mod parts;
mod penalties;
mod reference;
mod reload;
mod threads;
mod traffic_samples;

use conformance::{clients, setting};
