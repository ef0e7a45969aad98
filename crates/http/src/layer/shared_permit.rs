//! The permit of a request in flight.

use std::sync::Arc;
use std::time::Duration;
use tollgate_limiter::Permit;

/// The permit of a request that a rule counts as in flight (`algorithm: concurrency`): an extension of the request.
///
/// The layer drops its clone with the response: when the body has ended, or the future or the body is dropped because the client
/// has gone. Work that goes on without the client, such as a task that a handler has spawned, is counted for as long as it holds a
/// clone.
#[derive(Clone, Debug)]
pub struct SharedPermit(Arc<Permit>);

impl SharedPermit {
    pub(super) fn new(permit: Permit) -> Self {
        Self(Arc::new(permit))
    }

    /// The longest time for which the request counts.
    pub fn timeout(&self) -> Duration {
        self.0.timeout()
    }
}
