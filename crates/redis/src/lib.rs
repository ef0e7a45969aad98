//! Shares the limits of [`tollgate_limiter`] between nodes through Redis or Valkey: standalone, with Sentinel, or as a Cluster.
//!
//! Nodes with the same store enforce one limit together. A node takes tokens in advance ([`lease`]) and decides most checks
//! without a call; no limit is exceeded, whichever node a request reaches. While the store is unavailable, the failure
//! policy of each rule decides, and no decision waits longer than [`RedisSettings::timeout`].
//!
//! ```no_run
//! use tollgate_limiter::{Clock, FailureSettings, Limiter, MemoryStore};
//! use tollgate_redis::{RedisSettings, RedisStore};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let url = "redis://10.0.0.5:6379".parse()?;
//! let store = RedisStore::open(&url, RedisSettings::default(), Clock::system()).await?;
//! let limiter = Limiter::new(MemoryStore::new(64 << 20), Clock::system())
//!     .sharing(store.shared_store(), FailureSettings::default());
//! let loaded = tollgate_core::rules::load("rules.yaml", "rules: [{ id: api, limit: 100/min }]").unwrap();
//! limiter.install(loaded.rules, loaded.lists).unwrap();
//! // Keep `store` as long as `limiter` is used. At shutdown, return the credit of this node:
//! store.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! # What matters
//!
//! | | |
//! |---|---|
//! | [`RedisStore`] | the store; [`RedisStore::shared_store`] is what a limiter takes |
//! | [`RedisSettings`] | timeout, key prefix, fleet secret, leases |
//! | [`StoreUrl`] | the forms of a store's URL |
//! | [`OpenError`] | why a store cannot be used; a store that is unreachable is not an error |
//! | [`StoreObserver`] | what operators see of the store: shards, credit, the statuses of all nodes |
//! | [`StoreErrorKind`] | errors of the store, as they are counted |
//! | [`ControlChannel`] | script calls and messages of the control plane |
//! | [`permissions`] | the ACL permissions that the user of the store needs |
//! | [`lease`] | the lease algorithm, without I/O; `tollgate-simulate` runs it on virtual time |
//!
//! # Inside
//!
//! From the inside out: a `connection` to one server; a `shard` is one primary with its `breaker`; `servers` map keys to
//! shards and follow failovers. A server must pass the `self_test` before it is used. `dispatch` sends the calls of many
//! clients in one script call, through one `shard_queue` per shard. `fleet` sends heartbeats and counts the nodes, and
//! `node_count` keeps that number on disk.

mod breaker;
mod connection;
mod control_channel;
mod dispatch;
mod errors;
mod fleet;
mod grant_pools;
mod handle;
mod in_flight_slots;
mod key_states;
pub mod lease;
mod lease_clock;
mod metrics;
mod node_count;
pub mod permissions;
mod refunds;
mod reset_markers;
mod script_call;
mod self_test;
mod servers;
mod shard;
mod shard_clock;
mod shard_queue;
mod store;
mod store_observer;
mod take;
mod url;
mod verdict_channel;

pub use breaker::BreakerState;
pub use connection::OpenError;
pub use control_channel::{ControlChannel, ControlError, ControlScript, ControlSubscription, ControlValue};
pub use errors::StoreErrorKind;
pub use fleet::{NodeAddress, NodeDescription};
pub use shard_clock::{ClockChange, ShardClock};
pub use store::{RedisSettings, RedisStore, ShardState};
pub use store_observer::{FleetStatuses, ShardFigures, StoreObserver};
pub use url::{StoreUrl, StoreUrlError};

pub(crate) use store::StoreCore;
pub(crate) use verdict_channel::{VerdictReceiver, VerdictSender};
