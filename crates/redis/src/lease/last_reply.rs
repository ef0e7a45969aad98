//! The last reply of the store about a key, and what can be decided from it without a call.

use tollgate_core::algorithm::LimitStep;
use tollgate_core::lending::StoredState;
use tollgate_core::limit::Meter;
use tollgate_core::script::LogStatus;

/// Other nodes spend and return tokens: while the store is available, a reply is used for no longer.
const BELIEVED_US: u64 = 250_000;

/// The last reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastReply {
    said: ReplyContent,
    /// The time at the store when it answered.
    store_us: u64,
    /// When it was asked, on this node's clock. At least as early as the answer, so the store's time is
    /// never assumed to be earlier than it is, and no request is refused for longer than the store would.
    sent_us: u64,
}

#[derive(Clone, Copy, Debug)]
enum ReplyContent {
    /// The state itself.
    Account(StoredState),
    /// A log refused this cost; the log stays at the store.
    LogRefused { cost: u32, standing: LogStatus },
}

/// What the last reply says about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecalledVerdict {
    /// The store would refuse it.
    Refused(LimitStep),
    /// The store refused it when it was asked, but it may pass by now.
    WasRefused(LimitStep),
    /// Nothing speaks against it.
    Unknown,
}

impl LastReply {
    pub(super) fn of_account(account: StoredState, store_us: u64, sent_us: u64) -> Self {
        Self { said: ReplyContent::Account(account), store_us, sent_us }
    }

    pub(super) fn of_log(cost: u32, standing: LogStatus, store_us: u64, sent_us: u64) -> Self {
        Self { said: ReplyContent::LogRefused { cost, standing }, store_us, sent_us }
    }

    /// The time at the store, as far as is known at `now_us`.
    pub(super) fn store_us(&self, now_us: u64) -> u64 {
        self.store_us.saturating_add(now_us.saturating_sub(self.sent_us))
    }

    /// Whether an answer that the store gave at `store_us` to a call of `sent_us` takes its place: it was given later, or
    /// asked for when this one was not believed any more. Then the store's clock has stepped back, or its time was wrong.
    pub(super) fn is_replaced_by(&self, store_us: u64, sent_us: u64) -> bool {
        self.store_us <= store_us || !self.is_believed(sent_us)
    }

    fn is_believed(&self, now_us: u64) -> bool {
        now_us.saturating_sub(self.sent_us) < BELIEVED_US
    }

    /// How many tokens are missing at the store at `now_us`, apart from those that are lent: none missing means that
    /// the refill waits for what is lent. `None` for limits that do not refill.
    pub(super) fn missing(&self, meter: &Meter, now_us: u64) -> Option<u32> {
        let (ReplyContent::Account(account), Some(bucket)) = (&self.said, meter.bucket()) else {
            return None;
        };
        let store_us = self.store_us(now_us);
        let account = moved(account, meter, store_us);
        let there = account.available(meter, store_us).saturating_add(account.lent.total());
        Some(bucket.capacity.saturating_sub(there))
    }

    /// What is left at the store and until nothing is used, as far as is known at `now_us`.
    pub(super) fn look(&self, meter: &Meter, now_us: u64) -> (u32, u64) {
        let elapsed_us = now_us.saturating_sub(self.sent_us);
        match &self.said {
            ReplyContent::Account(account) => {
                let store_us = self.store_us(now_us);
                moved(account, meter, store_us).remaining_and_reset(meter, store_us)
            }
            ReplyContent::LogRefused { standing, .. } => {
                (standing.remaining, standing.reset_after_us.saturating_sub(elapsed_us))
            }
        }
    }

    /// What is known about a request of `cost` at `now_us`, as long as the answer is believed.
    pub(super) fn recall(&self, meter: &Meter, cost: u32, now_us: u64) -> RecalledVerdict {
        match self.is_believed(now_us) {
            true => self.recall_at_any_age(meter, cost, now_us),
            false => RecalledVerdict::Unknown,
        }
    }

    /// The same for a store that cannot be asked: a refusal holds until its own retry time.
    pub(super) fn recall_at_any_age(&self, meter: &Meter, cost: u32, now_us: u64) -> RecalledVerdict {
        let elapsed_us = now_us.saturating_sub(self.sent_us);
        match &self.said {
            ReplyContent::Account(account) => {
                let store_us = self.store_us(now_us);
                let step = moved(account, meter, store_us).step(meter, store_us, cost);
                if !step.admitted {
                    return RecalledVerdict::Refused(step);
                }
                let then = account.step(meter, self.store_us, cost);
                if then.admitted { RecalledVerdict::Unknown } else { RecalledVerdict::WasRefused(then) }
            }
            ReplyContent::LogRefused { cost: refused, standing } if cost >= *refused => {
                let step = LimitStep {
                    admitted: false,
                    next: None,
                    remaining: standing.remaining,
                    retry_after_us: standing.retry_after_us.saturating_sub(elapsed_us),
                    reset_after_us: standing.reset_after_us.saturating_sub(elapsed_us),
                };
                if step.retry_after_us > 0 {
                    RecalledVerdict::Refused(step)
                } else {
                    RecalledVerdict::WasRefused(step)
                }
            }
            ReplyContent::LogRefused { .. } => RecalledVerdict::Unknown,
        }
    }
}

/// The account at a later time. Where nothing is lent, a step finds that out by itself.
fn moved(account: &StoredState, meter: &Meter, store_us: u64) -> StoredState {
    let mut account = *account;
    if account.lent.total() > 0 {
        account.apply_reports(meter, store_us, &[]);
    }
    account
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::algorithm::Algorithm;
    use tollgate_core::limit::{Limit, LimitSize};

    const STORE_US: u64 = 1_700_000_000_000_000;

    #[test]
    fn an_answer_from_the_future_gives_way_once_it_is_not_believed() {
        let reply = LastReply::of_account(StoredState::default(), STORE_US, 1_000);
        let table = [
            (STORE_US, 1_000, true),
            (STORE_US + 1, 1_000, true),
            (STORE_US - 1, 1_000, false),
            (STORE_US - 1, 1_000 + BELIEVED_US - 1, false),
            (STORE_US - 1, 1_000 + BELIEVED_US, true),
        ];
        for (store_us, sent_us, gives_way) in table {
            assert_eq!(reply.is_replaced_by(store_us, sent_us), gives_way, "{store_us}, sent at {sent_us}");
        }
    }

    #[test]
    fn no_time_overflows() {
        let size = LimitSize { capacity: Some(10), rate: None, window_us: Some(60_000_000) };
        let reply = LastReply::of_account(StoredState::default(), STORE_US, 0);
        for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.is_leased()) {
            let limit = Limit::new("a", algorithm, size).unwrap();
            assert_eq!(reply.store_us(u64::MAX), u64::MAX);
            assert_eq!(reply.look(limit.meter(), 1 << 52), (10, 0));
            assert_eq!(reply.recall_at_any_age(limit.meter(), 1, 1 << 52), RecalledVerdict::Unknown);
        }
    }
}
