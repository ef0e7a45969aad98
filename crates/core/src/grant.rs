//! The pool of a grant at a shared store: its key, the script that draws from it, and the reply.
//!
//! ```text
//! tg:grant:{grants}:7f3a…   40      the tokens that were drawn of the grant 7f3a…, until it expires
//! ```
//!
//! All pools are under one hash tag: a request may draw from several, all or none. They are few, and are asked for only
//! when a limit refuses a request.

/// The script.
pub const SCRIPT: &str = include_str!("grant.lua");

/// A pool that a request draws from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDraw {
    /// The id of the grant.
    pub id: String,
    /// The tokens of the pool.
    pub tokens: u64,
    /// When it expires, in microseconds since 1970.
    pub expires_us: u64,
}

/// Whether the tokens were drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrawOutcome {
    /// From all pools.
    Drawn,
    /// From none: the pool of this index has too few, or has expired.
    Empty(usize),
}

/// The key of the pool of the grant `id`.
pub fn pool_key(prefix: &str, id: &str) -> String {
    format!("{prefix}grant:{{grants}}:{id}")
}

/// The arguments of [`SCRIPT`] behind the keys of `pools`: `amount` is drawn, or returned if it is negative.
pub fn arguments(correction_us: i64, amount: i64, pools: &[PoolDraw]) -> Vec<Vec<u8>> {
    let mut arguments = vec![correction_us.to_string(), amount.to_string()];
    for pool in pools {
        arguments.extend([pool.tokens.to_string(), pool.expires_us.to_string()]);
    }
    arguments.into_iter().map(String::into_bytes).collect()
}

impl DrawOutcome {
    /// The outcome from the reply of [`SCRIPT`] about `pools` pools: 0, or the number of the pool that lacks tokens.
    pub fn read(reply: i64, pools: usize) -> Option<Self> {
        match usize::try_from(reply).ok()? {
            0 => Some(Self::Drawn),
            number if number <= pools => Some(Self::Empty(number - 1)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_reply_is_none() {
        let table = [
            (0, Some(DrawOutcome::Drawn)),
            (1, Some(DrawOutcome::Empty(0))),
            (2, Some(DrawOutcome::Empty(1))),
            (3, None),
            (-1, None),
            (i64::MAX, None),
        ];
        for (reply, outcome) in table {
            assert_eq!(DrawOutcome::read(reply, 2), outcome, "{reply}");
        }
    }
}
