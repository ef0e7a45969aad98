//! The budget for retries: requests pay in, retries take out.

use crate::retry::RetrySettings;
use std::sync::atomic::{AtomicU64, Ordering};

/// One retry, in the thousandths that the budget counts in.
const RETRY: u64 = 1_000;

/// The retries that are available now.
#[derive(Debug)]
pub(crate) struct ClientRetryBudget {
    available: AtomicU64,
    max: u64,
    per_request: u64,
}

impl ClientRetryBudget {
    pub(crate) fn new(settings: &RetrySettings) -> Self {
        let max = u64::from(settings.budget_reserve) * RETRY;
        Self {
            available: AtomicU64::new(max),
            max,
            per_request: u64::from(settings.budget_percent) * RETRY / 100,
        }
    }

    /// Pays in for one request.
    pub(crate) fn earn(&self) {
        let add = |available: u64| Some(available.saturating_add(self.per_request).min(self.max));
        // The update cannot fail: `add` always returns a value.
        let _ = self.available.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Takes out one retry, and returns whether there was enough for it.
    pub(crate) fn try_spend(&self) -> bool {
        let take = |available: u64| available.checked_sub(RETRY);
        self.available.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_used_up_and_earned_again() {
        let budget = ClientRetryBudget::new(&RetrySettings { budget_reserve: 3, ..RetrySettings::default() });
        assert_eq!((0..10).filter(|_| budget.try_spend()).count(), 3);
        (0..4).for_each(|_| budget.earn());
        assert!(!budget.try_spend());
        budget.earn();
        assert!(budget.try_spend() && !budget.try_spend());
        (0..1_000).for_each(|_| budget.earn());
        assert_eq!((0..10).filter(|_| budget.try_spend()).count(), 3, "no more is saved than the reserve");
    }
}
