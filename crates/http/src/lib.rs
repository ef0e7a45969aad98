//! What HTTP needs to know of a decision: its headers, its bodies, and the loop that serves them.
//!
//! Header names stand in [`headers`] and status codes in [`answer`], and nowhere else.

pub mod answer;
pub mod body;
pub mod fault;
pub mod headers;
pub mod read;
pub mod serve;

pub use answer::Answer;
pub use fault::Fault;
pub use headers::{HeaderOptions, Reset};
pub use serve::{Entrance, Peer, ServeOptions, serve, serve_at};
