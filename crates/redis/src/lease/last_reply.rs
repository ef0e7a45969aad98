//! The last reply of the store about a key, and what can be decided from it without a call.

use tollgate_core::algorithm::LimitStep;
use tollgate_core::lending::StoredState;
use tollgate_core::limit::Meter;
use tollgate_core::script::RequestStatus;
use tollgate_core::time::{BootTime, StoreTime};

/// Other nodes spend and return tokens: while the store is available, a reply is used for no longer.
const USED_FOR_US: u64 = 250_000;

/// The last reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastReply {
    said: ReplyContent,
    /// The time at the store when it replied.
    store_time: StoreTime,
    /// When the call was sent, by this node's clock. At least as early as the reply, so the store's time is
    /// never assumed to be earlier than it is, and no request is refused for longer than the store would.
    sent: BootTime,
    /// How long the reply took. A retry time that is promised is later by that much: the store's time may be earlier than is
    /// assumed, and a call at the promised time finds what it needs also if it is on its way for less.
    took_us: u64,
}

/// When a call was sent, and its reply received.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallTimes {
    pub(super) sent: BootTime,
    pub(super) received: BootTime,
}

#[derive(Clone, Copy, Debug)]
enum ReplyContent {
    /// The state itself.
    Account(StoredState),
    /// A log refused this cost; the log stays at the store.
    LogRefused { cost: u32, standing: RequestStatus },
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
    pub(super) fn of_account(account: StoredState, store_time: StoreTime, call: CallTimes) -> Self {
        Self::new(ReplyContent::Account(account), store_time, call)
    }

    pub(super) fn of_log(cost: u32, standing: RequestStatus, store_time: StoreTime, call: CallTimes) -> Self {
        Self::new(ReplyContent::LogRefused { cost, standing }, store_time, call)
    }

    fn new(said: ReplyContent, store_time: StoreTime, CallTimes { sent, received }: CallTimes) -> Self {
        Self { said, store_time, sent, took_us: received.since(sent) }
    }

    /// The time at the store, as far as is known at `now`.
    pub(super) fn store_time(&self, now: BootTime) -> StoreTime {
        self.store_time + now.since(self.sent)
    }

    /// Whether the reply of the store at `store_time` to a call of `sent` replaces this one: it is later, or the call was
    /// sent when this one was not used any more. Then the store's clock has stepped back, or its time was wrong.
    pub(super) fn is_replaced_by(&self, store_time: StoreTime, sent: BootTime) -> bool {
        self.store_time <= store_time || !self.is_current(sent)
    }

    fn is_current(&self, now: BootTime) -> bool {
        now.since(self.sent) < USED_FOR_US
    }

    /// How many tokens are missing at the store at `now`, apart from those that are lent: none missing means that
    /// the refill waits for what is lent. `None` for limits that do not refill.
    pub(super) fn missing(&self, meter: &Meter, now: BootTime) -> Option<u32> {
        let (ReplyContent::Account(account), Some(bucket)) = (&self.said, meter.bucket()) else {
            return None;
        };
        let store_time = self.store_time(now);
        let account = moved(account, meter, store_time);
        let there = account.available(meter, store_time).saturating_add(account.lent.total());
        Some(bucket.capacity.saturating_sub(there))
    }

    /// What is left at the store and until nothing is used, as far as is known at `now`.
    pub(super) fn look(&self, meter: &Meter, now: BootTime) -> (u32, u64) {
        let elapsed_us = now.since(self.sent);
        match &self.said {
            ReplyContent::Account(account) => {
                let store_time = self.store_time(now);
                moved(account, meter, store_time).remaining_and_reset(meter, store_time)
            }
            ReplyContent::LogRefused { standing, .. } => {
                (standing.remaining, standing.reset_after_us.saturating_sub(elapsed_us))
            }
        }
    }

    /// What is known about a request of `cost` at `now`, as long as the reply is used.
    pub(super) fn recall(&self, meter: &Meter, cost: u32, now: BootTime) -> RecalledVerdict {
        match self.is_current(now) {
            true => self.recall_at_any_age(meter, cost, now),
            false => RecalledVerdict::Unknown,
        }
    }

    /// The same for a store that cannot be asked: a refusal holds until its own retry time.
    pub(super) fn recall_at_any_age(&self, meter: &Meter, cost: u32, now: BootTime) -> RecalledVerdict {
        match self.recall_at_latest(meter, cost, now) {
            RecalledVerdict::Refused(step) => {
                let retry_after_us = step.retry_after_us.saturating_add(self.took_us);
                RecalledVerdict::Refused(LimitStep { retry_after_us, ..step })
            }
            other => other,
        }
    }

    /// The same, by the latest time that it may be at the store.
    fn recall_at_latest(&self, meter: &Meter, cost: u32, now: BootTime) -> RecalledVerdict {
        let elapsed_us = now.since(self.sent);
        match &self.said {
            ReplyContent::Account(account) => {
                let store_time = self.store_time(now);
                let mut step = moved(account, meter, store_time).step(meter, store_time, cost);
                if !step.admitted && account.lent.total() == 0 {
                    return RecalledVerdict::Refused(step);
                }
                let then = account.step(meter, self.store_time, cost);
                if then.admitted {
                    return RecalledVerdict::Unknown;
                }
                // Here lent tokens may hold back the refill for ever: what is reported of them is known to the store only. So
                // a refusal ends when it was promised to end.
                step.retry_after_us = step.retry_after_us.min(then.retry_after_us.saturating_sub(elapsed_us));
                if step.admitted || step.retry_after_us == 0 {
                    RecalledVerdict::WasRefused(then)
                } else {
                    RecalledVerdict::Refused(step)
                }
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
fn moved(account: &StoredState, meter: &Meter, store_time: StoreTime) -> StoredState {
    let mut account = *account;
    if account.lent.total() > 0 {
        account.apply_reports(meter, store_time, &[]);
    }
    account
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::algorithm::Algorithm;
    use tollgate_core::lending::LentTokens;
    use tollgate_core::limit::{Limit, LimitSize};
    use tollgate_core::rate::{Rate, SECOND_US};

    const STORE_US: u64 = 1_700_000_000_000_000;

    fn store(us: u64) -> StoreTime {
        StoreTime::from_us(us)
    }

    fn boot(us: u64) -> BootTime {
        BootTime::from_us(us)
    }

    fn at_once(us: u64) -> CallTimes {
        CallTimes { sent: boot(us), received: boot(us) }
    }

    /// A bucket of 10 and 1 token in 100 ms is empty at the store 20 ms after the call was sent. The reply takes 30 ms.
    #[test]
    fn a_request_at_the_promised_time_finds_its_token_however_long_its_way_is() {
        const FORTH_US: u64 = 20_000;
        const BACK_US: u64 = 30_000;
        let size = LimitSize { capacity: Some(10), rate: Rate::per(10, SECOND_US), window_us: None };
        for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::Gcra] {
            let limit = Limit::new("a", algorithm, size).unwrap();
            let mut account = StoredState::default();
            account.take_as_lent(limit.meter(), store(STORE_US), 10);
            account.lent = LentTokens::default();
            let call = CallTimes { sent: boot(0), received: boot(FORTH_US + BACK_US) };
            let reply = LastReply::of_account(account, store(STORE_US), call);
            for asked_us in [FORTH_US + BACK_US, 80_000, 99_999] {
                let RecalledVerdict::Refused(step) = reply.recall(limit.meter(), 1, boot(asked_us)) else {
                    panic!("{algorithm:?} at {asked_us}")
                };
                let promised_us = asked_us + step.retry_after_us;
                // The token is there 100 ms after the call was charged; a call that is on its way for no time finds it.
                assert_eq!(promised_us, FORTH_US + BACK_US + 100_000, "{algorithm:?} at {asked_us}");
                let store_time = store(STORE_US + promised_us - FORTH_US);
                assert!(account.step(limit.meter(), store_time, 1).admitted, "{algorithm:?} at {asked_us}");
            }
        }
    }

    #[test]
    fn a_reply_from_the_future_is_replaced_once_it_is_not_used() {
        let reply = LastReply::of_account(StoredState::default(), store(STORE_US), at_once(1_000));
        let table = [
            (STORE_US, 1_000, true),
            (STORE_US + 1, 1_000, true),
            (STORE_US - 1, 1_000, false),
            (STORE_US - 1, 1_000 + USED_FOR_US - 1, false),
            (STORE_US - 1, 1_000 + USED_FOR_US, true),
        ];
        for (store_us, sent_us, is_replaced) in table {
            assert_eq!(
                reply.is_replaced_by(store(store_us), boot(sent_us)),
                is_replaced,
                "{store_us}, sent at {sent_us}"
            );
        }
    }

    #[test]
    fn a_refusal_ends_when_it_was_promised_although_tokens_are_lent() {
        let size = LimitSize { capacity: Some(10), rate: Rate::per(10, SECOND_US), window_us: None };
        let limit = Limit::new("a", Algorithm::TokenBucket, size).unwrap();
        let mut account = StoredState::default();
        account.apply_reports(limit.meter(), store(STORE_US), &[]);
        account.take_as_lent(limit.meter(), store(STORE_US), 10);
        let reply = LastReply::of_account(account, store(STORE_US), at_once(0));
        let recalled = |us| match reply.recall(limit.meter(), 1, boot(us)) {
            RecalledVerdict::Refused(step) => Some(step.retry_after_us),
            RecalledVerdict::WasRefused(_) => Some(0),
            RecalledVerdict::Unknown => None,
        };
        for (us, wait_us) in [(0, 100_000), (40_000, 60_000), (99_999, 1), (100_000, 0), (200_000, 0)] {
            assert_eq!(recalled(us), Some(wait_us), "after {us} µs");
        }
        assert_eq!(recalled(USED_FOR_US), None);
    }

    #[test]
    fn no_time_overflows() {
        let size = LimitSize { capacity: Some(10), rate: None, window_us: Some(60_000_000) };
        let reply = LastReply::of_account(StoredState::default(), store(STORE_US), at_once(0));
        for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| algorithm.is_leased()) {
            let limit = Limit::new("a", algorithm, size).unwrap();
            assert_eq!(reply.store_time(BootTime::MAX), StoreTime::MAX);
            assert_eq!(reply.look(limit.meter(), boot(1 << 52)), (10, 0));
            assert_eq!(reply.recall_at_any_age(limit.meter(), 1, boot(1 << 52)), RecalledVerdict::Unknown);
        }
    }
}
