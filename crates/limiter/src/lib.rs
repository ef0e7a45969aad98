//! The engine. [`Limiter::check`] takes a request and answers a decision; every door calls it, and nothing
//! else decides.

mod abuse;
mod admission;
mod charge;
mod clock;
mod decision;
mod failure;
pub mod file;
mod limiter;
mod memo;
mod memory;
mod names;
mod pending;
mod policy;
mod prepare;
mod refusal;
mod shared_store;

pub use abuse::{AbuseCounts, AbuseSettings, HotKey, TemporaryDeny};
pub use admission::{Admission, Admit, Admitting, Flagged, Permit};
pub use charge::OwnedCharge;
pub use clock::{Clock, ManualClock};
pub use decision::{Check, Decision};
pub use failure::{Emergency, FailureSettings};
pub use limiter::Limiter;
pub use memory::{MemoryStore, MemoryUse};
pub use names::Names;
pub use pending::Pending;
pub use policy::Terms;
pub use shared_store::{
    Passed, PendingTake, SharedSlot, SharedStore, SharedTake, SlotFuture, SlotTaken, Steps, StoreUnavailable,
    TakeAnswers,
};
pub use tollgate_core::decision::{InvalidRequest, LimitStatus, Outcome};
pub use tollgate_core::request::{Method, Request};
