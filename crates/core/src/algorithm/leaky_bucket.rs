//! Leaky bucket as a policer.
//!
//! The inverse of the token bucket: a request of cost c adds c to the level of a bucket that leaks `amount` (r)
//! every `period` ticks (P); a request that would raise it above `capacity` (B) is rejected at once.
//!
//! `level' = max(0, level − Δ·r)` in fractions of 1/P; admit iff `level' + c·P ≤ B·P`, otherwise the wait
//! is `⌈(level' + c·P − B·P) / r⌉` ticks. With `tokens = B·P − level` this is the token bucket, step by step,
//! so its functions are used. The state is the room above the level, and not the level: a limit with a lower
//! capacity on the same key (an override, another version of the rule) would have to lower a level that is too high
//! for it, and so make room for the others.
//!
//! A worked example, capacity 3 and a leak of 2 per second (r = 1, P = 500,000 µs). Three requests at
//! t = 0 fill it. A fourth has to wait 500,000 µs; at 0.4 s the level is 2.2 and a request has
//! to wait the remaining 100,000 µs.

pub use super::token_bucket::step;
pub(crate) use super::token_bucket::{
    apply_reports, credit_lifetime_us, epoch, lifetime_us, re_anchor, unit,
};

/// The same in the script.
pub(crate) const SCRIPT: &str = include_str!("leaky_bucket.lua");
