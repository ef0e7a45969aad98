//! GCRA, the generic cell rate algorithm: the limit of a bucket as one timestamp.
//!
//! The *theoretical arrival time* (TAT) is the instant at which everything that was admitted has drained. Each
//! admitted request adds c emission intervals of P/r ticks to it; a request is admitted if the TAT is then at
//! most B intervals ahead. With B = 1 (`burst: 0`) requests are strictly spaced.
//!
//! The equivalence to the buckets is exact: what is owed, `(TAT − now)·r`, counted in 1/P token, *is* the leaky
//! bucket's level, and `B·P − owed` is the token bucket's. So the state is kept as tokens, and the functions are those
//! of the token bucket; a test compares them with a TAT. A TAT alone is a time, and means other tokens under other
//! numbers: on a key that an override or two versions of a rule share, the limit with the slower rate would take many
//! times its cost, and one with a lower capacity would have to lower a TAT that is too far ahead for it, and so return
//! what others had spent.
//!
//! A worked example, 10 per second with burst 0 (B = 1, r = 1, P = 100,000 µs). A request at t = 0 sets
//! the TAT to 100,000. One at 30,000 has to wait 70,000 µs; at 99,999 it is still rejected, at
//! 100,000 it is admitted.

pub use super::token_bucket::step;
pub(crate) use super::token_bucket::{
    apply_reports, credit_lifetime_us, epoch, lifetime_us, re_anchor, unit,
};

/// The same in the script.
pub(crate) const SCRIPT: &str = include_str!("gcra.lua");
