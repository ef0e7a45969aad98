//! The only place that reads the calendar. All else goes by tokio's clock, which tests can move.

use std::time::SystemTime;

pub(crate) fn now() -> SystemTime {
    #[expect(
        clippy::disallowed_methods,
        reason = "this crate uses none of the others, so it has a clock of its own"
    )]
    SystemTime::now()
}
