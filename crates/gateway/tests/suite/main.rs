//! The gateway over real sockets, as one binary.

#![allow(clippy::unwrap_used, clippy::panic)] // A test that cannot go on should say so at once.

mod bodies;
mod bypass;
mod crowd;
mod drain;
mod early;
mod failures;
mod forwarding;
mod hammering;
mod headers;
mod http2;
mod idle;
mod in_flight;
mod limits;
mod provoked;
mod raw;
mod readings;
mod refusal_fast_path;
mod scrubbing;
mod setting;
mod slow;
mod smuggling;
mod tls;
mod upgrades;
mod wire;
