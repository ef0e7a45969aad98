//! Real servers and bad networks, for tests and measurements.
//!
//! Everything here panics when something is wrong: a test that cannot have its servers has failed.

#![expect(clippy::panic, reason = "a test that cannot have its servers has failed")]

pub mod bypass;
mod clock;
mod cluster;
mod path_server;
mod ports;
mod proxy;
mod redis;
mod sentinel;
mod tls;
mod upstream;
mod wait;
mod wire;
mod witness;

pub use cluster::Cluster;
pub use path_server::{PathServer, Program};
pub use proxy::{Mode, Proxy, Rewrites, Unsteady};
pub use redis::Server;
pub use sentinel::Sentinels;
pub use tls::Certificates;
pub use upstream::{Seen, Upstream};
pub use wait::{PATIENCE, eventually, wait_until};
pub use wire::{read_head, read_line};
pub use witness::Witness;
