//! The shared store on real servers: what it decides, what it costs, and what becomes of it when things break.
//!
//! Each fault comes once, or as often as `TOLLGATE_ROUNDS` says:
//! `TOLLGATE_ROUNDS=5 cargo test -p tollgate-redis --release shared`.

mod clock_steps;
mod conformance;
mod disconnects;
mod doubted_clocks;
mod emergency;
mod errors;
mod exactness;
mod expiring;
mod faults;
mod fleet;
mod freshness;
mod grants;
mod heartbeats;
mod hostile;
mod in_flight;
mod moving;
mod node;
mod one_timeout;
mod outage;
mod parts;
mod penalties;
mod permissions;
mod replicas;
mod resets;
mod revoked_permissions;
mod several;
mod shapes;
mod slow_links;
mod spans;
mod timing;
mod together;
mod versions;
