//! The gateway over real sockets, as one binary.

#![allow(clippy::unwrap_used, clippy::panic)] // A test that cannot continue fails at once.

mod access_log;
mod bodies;
mod bypass;
mod client_gone;
mod connection_limits;
mod drain;
mod early_responses;
mod ejection;
mod failures;
mod fixture;
mod forwarding;
mod headers;
mod http2;
mod idle_connections;
mod limits;
mod metrics;
mod path_readings;
mod raw_client;
mod raw_upstream;
mod refusal_fast_path;
mod repeated_refusals;
mod reserved_headers;
mod retry_storm;
mod slow_clients;
mod smuggling;
mod tls;
mod upgrades;
