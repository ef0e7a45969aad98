//! The errors of the throttled client.

use std::fmt;
use std::time::Duration;

/// Why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleError<E> {
    /// The request was not sent: it would have had to wait for longer than the settings allow.
    Throttled(Throttled),
    /// The inner client failed.
    Client(E),
}

/// A request that was not sent, because the server has stated that it would refuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttled {
    /// How long it would have had to wait.
    pub retry_after: Duration,
}

impl<E> From<E> for ThrottleError<E> {
    fn from(error: E) -> Self {
        Self::Client(error)
    }
}

impl fmt::Display for Throttled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not sent: the server admits no request for another {:?}", self.retry_after)
    }
}

impl std::error::Error for Throttled {}

impl<E: fmt::Display> fmt::Display for ThrottleError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Throttled(throttled) => throttled.fmt(f),
            Self::Client(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for ThrottleError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Throttled(_) => None,
            Self::Client(error) => error.source(),
        }
    }
}
