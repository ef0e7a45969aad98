//! The reverse proxy: our limits in front of upstreams.
//!
//! [`Gateway`] runs one thread for each core, each with its own listener, runtime and connections to
//! the upstreams, so that a request never leaves its core. `stack` shows the way of a request.

mod body;
mod client;
mod exchange;
mod forward;
mod gateway;
mod headers;
mod log;
mod probe;
mod refusal;
mod route;
mod scrub;
pub mod settings;
mod stack;
mod tunnel;
mod upstream;

pub use body::{AnswerBody, OutlivingBody, Received};
pub use forward::{Answer, Forwarder};
pub use gateway::{Gateway, GatewayError, Listen};
pub use log::{AccessLog, Logged};
pub use settings::Settings;

/// What the gateway can do for rules, with these identities.
pub fn open_door(identities: &tollgate_http::IdentityExtractor) -> tollgate_core::rules::OpenDoor {
    identities.open_door("the gateway")
}
