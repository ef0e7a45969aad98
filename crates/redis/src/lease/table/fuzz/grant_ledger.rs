//! What valid replies granted of one key, and what became of it.
//!
//! Tokens that are spent without a call are matched against grants that are alive at that time, so that expired grants
//! cannot cover what was spent twice. The grants of one epoch expire together: each reply only guesses the instant.

use std::collections::BTreeMap;
use tollgate_core::lending::EPOCH_US;
use tollgate_core::limit::Meter;
use tollgate_core::time::{BootTime, StoreTime};

/// Credit never lives longer. What is older is not told apart any more.
const REMEMBERED_US: u64 = 5 * EPOCH_US;

/// The epoch in which tokens were taken, under windows of this length if they are counted apart from others. A log is one
/// list for windows of any length, and its epochs are instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GrantEpoch {
    span_us: Option<u64>,
    epoch: u32,
}

impl GrantEpoch {
    pub(super) fn new(meter: &Meter, epoch: u32) -> Self {
        let span_us = meter.window().filter(|_| !meter.is_log()).map(|window| window.span_us());
        Self { span_us, epoch }
    }
}

/// When tokens expire that were taken with a call of `sent`, at `store_time` there.
pub(super) fn expiry(meter: &Meter, sent: BootTime, store_time: StoreTime) -> BootTime {
    let left_us = |length_us: u64| length_us - store_time.as_us() % length_us;
    sent + match meter.window() {
        Some(window) => left_us(window.span_us()).min(EPOCH_US),
        None => EPOCH_US + left_us(EPOCH_US),
    }
}

/// Which grants can have covered tokens: those that are later in the order of [`GrantLedger::balance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cover(u64);

impl Cover {
    /// Grants that expire after `now`.
    fn alive_at(now: BootTime) -> Self {
        Self(now.as_us().saturating_mul(2).saturating_add(1))
    }

    /// Grants that expire at `expires`, or later.
    fn expiring_from(expires: BootTime) -> Self {
        Self(expires.as_us().saturating_mul(2).saturating_sub(1))
    }

    /// What is granted until `expires` covers all that is earlier in the order.
    fn granted_until(expires: BootTime) -> Self {
        Self(expires.as_us().saturating_mul(2))
    }
}

/// The tokens of one epoch.
#[derive(Clone, Copy, Debug, Default)]
struct EpochGrants {
    tokens: u64,
    expires: BootTime,
}

/// Tokens of one key.
#[derive(Clone, Debug, Default)]
pub(super) struct GrantLedger {
    /// Of all calls.
    asked: u64,
    /// By valid replies.
    granted: u64,
    grants: BTreeMap<GrantEpoch, EpochGrants>,
    /// By expiry what was granted, less what is spent on requests, reserved for them, or returned to the store. Summed up
    /// from the end it is never negative: at each place, what comes later covers all that needs it.
    balance: BTreeMap<Cover, i64>,
    /// Everything before this is one entry.
    remembered_from: Cover,
}

impl GrantLedger {
    pub(super) fn ask(&mut self, tokens: u64) {
        self.asked += tokens;
    }

    /// A valid reply, that arrived at `now`. Its tokens expire at `expires`, and the others of the epoch with them if
    /// that is later.
    pub(super) fn grant(&mut self, tokens: u64, epoch: GrantEpoch, expires: BootTime, now: BootTime) {
        self.forget_before(BootTime::from_us(now.as_us().saturating_sub(REMEMBERED_US)));
        self.granted += tokens;
        assert!(self.granted <= self.asked, "more granted than asked for: {self:?}");
        let known = self.grants.entry(epoch).or_default();
        let before = *known;
        *known = EpochGrants { tokens: before.tokens + tokens, expires: before.expires.max(expires) };
        let after = *known;
        self.add(Cover::granted_until(before.expires), -(before.tokens as i64));
        self.add(Cover::granted_until(after.expires), after.tokens as i64);
    }

    /// Spent without asking.
    pub(super) fn spend(&mut self, tokens: u64, now: BootTime) -> Cover {
        self.take_from(Cover::alive_at(now), tokens)
    }

    /// Tokens of this epoch cannot be spent any more, however late that turns out.
    pub(super) fn take(&mut self, tokens: u64, epoch: GrantEpoch) -> Cover {
        let cover = self.cover_of(epoch);
        self.take_from(cover, tokens)
    }

    /// They can be spent again.
    pub(super) fn put_back(&mut self, tokens: u64, cover: Cover) {
        self.add(cover, tokens as i64);
        assert!(self.rest() <= self.granted as i64, "{tokens} are put back: {self:?}");
    }

    pub(super) fn cover_of(&self, epoch: GrantEpoch) -> Cover {
        self.grants.get(&epoch).map_or(Cover::default(), |grants| Cover::expiring_from(grants.expires))
    }

    /// What the book holds was granted and is not gone.
    pub(super) fn assert_covers(&self, held: u64) {
        assert!(held as i64 <= self.rest(), "{held} in hand: {self:?}");
    }

    fn take_from(&mut self, cover: Cover, tokens: u64) -> Cover {
        self.add(cover, -(tokens as i64));
        let mut spare = 0;
        for (at, change) in self.balance.iter().rev() {
            spare += change;
            assert!(spare >= 0, "{tokens} taken from {cover:?}, not granted by {at:?}: {self:?}");
        }
        cover
    }

    /// What was granted and is not gone, expired or not.
    fn rest(&self) -> i64 {
        self.balance.values().sum()
    }

    fn add(&mut self, at: Cover, tokens: i64) {
        let at = if at < self.remembered_from { Cover::default() } else { at };
        *self.balance.entry(at).or_default() += tokens;
    }

    fn forget_before(&mut self, time: BootTime) {
        self.remembered_from = self.remembered_from.max(Cover::granted_until(time));
        let remembered = self.balance.split_off(&self.remembered_from);
        let forgotten: i64 = std::mem::replace(&mut self.balance, remembered).values().sum();
        self.add(Cover::default(), forgotten);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn at(seconds: u64) -> BootTime {
        BootTime::from_us(seconds * 1_000_000)
    }

    fn epoch(epoch: u32) -> GrantEpoch {
        GrantEpoch { span_us: None, epoch }
    }

    /// Ten tokens of the first epoch until the third second, and ten of the second until the fifth.
    fn two_grants() -> GrantLedger {
        let mut ledger = GrantLedger::default();
        ledger.ask(20);
        ledger.grant(10, epoch(1), at(3), at(0));
        ledger.grant(10, epoch(2), at(5), at(1));
        ledger
    }

    fn assert_caught(ledger: &GrantLedger, use_of: impl FnOnce(&mut GrantLedger) -> Cover) {
        let mut ledger = ledger.clone();
        assert!(catch_unwind(AssertUnwindSafe(|| use_of(&mut ledger))).is_err(), "not caught: {ledger:?}");
    }

    #[test]
    fn an_expired_grant_covers_nothing() {
        let mut ledger = two_grants();
        ledger.spend(10, at(4));
        assert_caught(&ledger, |ledger| ledger.spend(1, at(4)));
        ledger.take(10, epoch(1));
        assert_caught(&ledger, |ledger| ledger.take(1, epoch(1)));
    }

    #[test]
    fn returned_tokens_cover_nothing() {
        let mut ledger = two_grants();
        let cover = ledger.take(10, epoch(2));
        assert_caught(&ledger, |ledger| ledger.spend(1, at(4)));
        ledger.put_back(1, cover);
        ledger.spend(1, at(4));
        assert_caught(&ledger, |ledger| ledger.spend(1, at(4)));
    }

    #[test]
    fn the_tokens_of_an_epoch_expire_together() {
        let mut ledger = two_grants();
        ledger.ask(1);
        ledger.grant(1, epoch(1), at(4), at(2));
        ledger.spend(21, at(3));
        assert_caught(&ledger, |ledger| ledger.spend(1, at(3)));
        // Long after, nothing is left of any of them.
        ledger.ask(1);
        ledger.grant(1, epoch(9), at(99), at(98));
        ledger.spend(1, at(98));
        assert_caught(&ledger, |ledger| ledger.take(1, epoch(1)));
    }
}
