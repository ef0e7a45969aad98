//! How many requests may be sent again: a share of those that were sent once.
//!
//! When a server fails, everybody retries, and the retries are what keeps it down. So each request that is
//! sent earns a fifth of a retry, and a few are in hand for quiet times.

use std::sync::atomic::{AtomicU32, Ordering};

const COST: u32 = 5;
/// Ten retries.
const MOST: u32 = 10 * COST;

/// What is left to spend on retries.
#[derive(Debug)]
pub(crate) struct Budget(AtomicU32);

impl Default for Budget {
    fn default() -> Self {
        Self(AtomicU32::new(MOST))
    }
}

impl Budget {
    /// A request was sent.
    pub(crate) fn earn(&self) {
        let now = self.0.load(Ordering::Relaxed);
        // Full nearly always. Two threads that both see one missing may overfill it by one, which is no harm.
        if now < MOST {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a retry may be sent.
    pub(crate) fn spend(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| now.checked_sub(COST)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_the_requests_may_be_retried() {
        let budget = Budget::default();
        let in_hand = (0..100).filter(|_| budget.spend()).count();
        assert_eq!(in_hand, 10);
        let retried = (0..1_000).filter(|_| {
            budget.earn();
            budget.spend()
        });
        assert_eq!(retried.count(), 200);
    }
}
