//! The only reader of the wall clock. Everything else uses tokio's clock, which tests can move.

use std::time::SystemTime;

pub(crate) fn now() -> SystemTime {
    #[expect(clippy::disallowed_methods, reason = "this crate does not depend on tollgate_limiter::Clock")]
    SystemTime::now()
}
