//! The rate limiting engine of Tollgate: takes a request, returns a decision.
//!
//! ```
//! use tollgate_core::rules;
//! use tollgate_limiter::{Clock, Limiter, MemoryStore, Request};
//!
//! let loaded = rules::load("rules.yaml", "rules:\n  - { id: api, key: api_key, limit: 2/h }").unwrap();
//! let limiter = Limiter::new(MemoryStore::new(64 << 20), Clock::system());
//! limiter.install(loaded.rules, loaded.lists).unwrap();
//!
//! let request = Request { api_key: Some("a"), endpoint: "/v1/orders", ..Request::default() };
//! let allowed = || limiter.check(&request).unwrap().now().unwrap().allowed();
//! assert_eq!([allowed(), allowed(), allowed()], [true, true, false]);
//! ```
//!
//! - [`Limiter::check`] decides at once, or waits for a shared store. [`Limiter::admit`] also queues requests and counts
//!   them until they end: its [`Permit`] is held until then. [`Limiter::refuse`] only refuses, and spends nothing.
//! - [`MemoryStore`] is the embedded store. [`SharedStore`] is the trait of a store that nodes share.
//! - [`Decision`] is the answer, and [`LimitTerms`] the limit that decided.
//! - [`line_log::LineLog`] writes logs without making a caller wait; [`DecisionLog`] is the log of decisions.
//! - [`Limiter::tidy`] has to be called about ten times a second.

mod abuse;
mod admission;
mod charge;
mod client_identities;
mod clock;
mod counting;
mod decision;
mod decision_log;
mod emergency;
mod failure;
pub mod file;
mod grants;
mod key_states;
mod key_text;
mod limit_names;
mod limiter;
pub mod line_log;
mod memo;
mod memory;
pub mod metrics;
mod observe;
mod parts;
mod pending;
mod prepare;
mod refusal;
mod request_limit;
mod set_table;
mod shared_store;
mod snapshot;

pub use abuse::{AbuseCounts, AbuseSettings, HotKey, TemporaryDeny};
pub use admission::{Admission, AdmissionDelay, Admit, Admitting, Flagged, Permit};
pub use charge::OwnedCharge;
pub use client_identities::ClientIdentities;
pub use clock::{Clock, ManualClock};
pub use counting::Counting;
pub use decision::{Check, Decision};
pub use decision_log::{DecisionLog, DecisionLogSettings};
pub use emergency::Emergency;
pub use failure::FailureSettings;
pub use grants::{ActiveGrant, GrantBalance, MOST_GRANTS};
pub use key_states::{LimitReading, StateSource};
pub use key_text::{KeyDisplay, KeySecret, KeyText};
pub use limit_names::{LimitNames, LimitNamesFull};
pub use limiter::Limiter;
pub use memory::{MemoryStore, MemoryUse};
pub use observe::{ObservationSettings, TopKey, TopKeys, TopRest, TopRoute};
pub use parts::{InvalidPart, PartDecisions, PartsCheck, PendingParts, RequestPart, TokenOperation};
pub use pending::Pending;
pub use request_limit::{RequestLimit, is_request_limit};
pub use set_table::{LockedSetTable, SetTable};
pub use shared_store::{
    BalanceFuture, DrawFuture, Passed, PeekFuture, PendingTake, ResetFuture, SharedSlot, SharedStore,
    SharedTake, SlotFuture, SlotTaken, StateAnswer, StateQuestion, Steps, StoreUnavailable, TakeAnswers,
};
pub use snapshot::LimitTerms;
pub use tollgate_core::decision::{InvalidRequest, LimitStatus, Outcome};
pub use tollgate_core::grant::{DrawOutcome, PoolDraw};
pub use tollgate_core::request::{Door, Method, Request};
pub use tollgate_core::rules::EndpointScope;
pub use tollgate_core::script::RequestStatus;
