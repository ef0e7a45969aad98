//! The engine. [`Limiter::check`] takes a request and answers a decision; every door calls it, and nothing
//! else decides.

mod clock;
mod limiter;
mod memo;
mod memory;
mod names;
mod policy;

pub use clock::{Clock, ManualClock};
pub use limiter::{Decision, Limiter};
pub use memory::{MemoryStore, MemoryUse};
pub use names::Names;
pub use policy::Terms;
pub use tollgate_core::decision::{Invalid, Outcome, Standing};
pub use tollgate_core::request::{Method, Request};
