//! A retry budget: retries are limited to a share of the requests.
//!
//! Retries of all clients at once would keep a failing server down. So each request earns a fifth of a retry, with a
//! reserve of ten for quiet times.

use std::sync::atomic::{AtomicU32, Ordering};

/// The cost of a retry; a request earns 1.
const RETRY_COST: u32 = 5;
const RESERVE: u32 = 10 * RETRY_COST;

/// The budget of one upstream; shared by all threads.
#[derive(Debug)]
pub(crate) struct RetryBudget(AtomicU32);

impl Default for RetryBudget {
    fn default() -> Self {
        Self(AtomicU32::new(RESERVE))
    }
}

impl RetryBudget {
    /// Adds what a request earns.
    pub(crate) fn deposit(&self) {
        let balance = self.0.load(Ordering::Relaxed);
        // It is nearly always full. Two threads that both see one missing may overfill it by one, which is harmless.
        if balance < RESERVE {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes the cost of a retry; false if there is not enough left.
    pub(crate) fn withdraw(&self) -> bool {
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |balance| balance.checked_sub(RETRY_COST))
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_the_requests_may_be_retried() {
        let budget = RetryBudget::default();
        let reserve = (0..100).filter(|_| budget.withdraw()).count();
        assert_eq!(reserve, 10);
        let retried = (0..1_000).filter(|_| {
            budget.deposit();
            budget.withdraw()
        });
        assert_eq!(retried.count(), 200);
    }
}
