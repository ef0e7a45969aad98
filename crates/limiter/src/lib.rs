//! The engine. [`Limiter::check`] takes a request and answers a decision; every door calls it, and nothing
//! else decides.

mod abuse;
mod admission;
mod clock;
mod decision;
mod failure;
pub mod file;
mod lease;
mod limiter;
mod memo;
mod memory;
mod names;
mod pending;
mod policy;
mod redis;
mod refusal;
pub mod simulation;

pub use abuse::{AbuseCounts, AbuseSettings, HotKey, TemporaryDeny};
pub use admission::{Admission, Admit, Admitting, Flagged, Permit};
pub use clock::{Clock, ManualClock};
pub use decision::{Check, Decision};
pub use failure::{Emergency, FailureSettings};
pub use limiter::Limiter;
pub use memory::{MemoryStore, MemoryUse};
pub use names::Names;
pub use pending::Pending;
pub use policy::Terms;
pub use redis::{
    Node, NodeAddress, OpenError, RedisSettings, RedisStore, ShardState, StoreErrorKind, StoreUrl,
    StoreUrlError, permissions,
};
pub use tollgate_core::decision::{InvalidRequest, LimitStatus, Outcome};
pub use tollgate_core::request::{Method, Request};
