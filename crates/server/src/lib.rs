//! The doors: protocols on the one side, [`Limiter::check`](tollgate_limiter::Limiter::check) on the other.
//!
//! A request's path: [`door`] finds the route and reads the body, [`question`] turns JSON into a
//! [`Request`](tollgate_limiter::Request), the limiter decides, and [`verdict`] writes the answer.

pub mod batch;
pub mod check;
pub mod door;
pub mod question;
pub mod ready;
pub mod verdict;

pub use door::{Door, open_door, run, service};
pub use ready::Readiness;
