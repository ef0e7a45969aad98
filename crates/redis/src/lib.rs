//! The shared store: Redis or Valkey, standalone, with Sentinel, or as a Cluster.
//!
//! From the inside out: a [`connection`] is one connection, a [`shard`] is one primary with its [`breaker`],
//! [`servers`] know which shard serves which key. A server passes the [`self_test`] first, which tries all
//! [`permissions`] that are needed; later failures are counted and logged by [`errors`]. On top of them, the
//! [`lease`]s decide what they can on this node, [`dispatch`] sends what they ask, many clients in one call ([`lane`]), and
//! [`fleet`] counts the nodes that share the store; the [`census`] keeps that count on disk.

mod breaker;
mod connection;
mod dispatch;
mod errors;
mod fleet;
mod handle;
mod in_flight_slots;
pub mod lease;
mod node_count;
pub mod permissions;
mod self_test;
mod servers;
mod shard;
mod shard_clock;
mod shard_queue;
mod store;
mod take;
mod url;
mod verdict_channel;

pub use connection::OpenError;
pub use errors::StoreErrorKind;
pub use fleet::{NodeAddress, NodeDescription};
pub use shard_clock::{ClockChange, ShardClock};
pub use store::{RedisSettings, RedisStore, ShardState};
pub use url::{StoreUrl, StoreUrlError};

pub(crate) use store::StoreCore;
pub(crate) use verdict_channel::{VerdictReceiver, VerdictSender};
