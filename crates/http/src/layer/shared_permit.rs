//! A place among the requests in flight, for those that work on a request.

use std::sync::Arc;
use std::time::Duration;
use tollgate_limiter::Permit;

/// The place of a request among those in flight, as an extension of the request if a rule counts it there
/// (`algorithm: concurrency`).
///
/// The layer lets it go with the response: when its body has ended, or its future or its body is dropped because the
/// client has gone. Work that goes on without the client, such as a task that a handler has spawned, is counted for as
/// long as it keeps a clone of this.
#[derive(Clone, Debug)]
pub struct SharedPermit(Arc<Permit>);

impl SharedPermit {
    pub(super) fn new(permit: Permit) -> Self {
        Self(Arc::new(permit))
    }

    /// The longest that the request counts, whatever holds it.
    pub fn timeout(&self) -> Duration {
        self.0.timeout()
    }
}
