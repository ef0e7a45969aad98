//! What valid replies granted of one key, and what became of it.

use tollgate_core::lending::EPOCH_US;
use tollgate_core::time::BootTime;

/// Tokens of one key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GrantLedger {
    /// Of all calls.
    asked: u64,
    /// By valid replies.
    granted: u64,
    /// Spent on requests, reserved for them, or returned to the store.
    gone: u64,
    /// By then all of it has expired.
    expired: BootTime,
}

impl GrantLedger {
    pub(super) fn ask(&mut self, tokens: u64) {
        self.asked += tokens;
    }

    /// A valid reply to a call of `sent`.
    pub(super) fn grant(&mut self, tokens: u64, sent: BootTime) {
        self.granted += tokens;
        self.expired = self.expired.max(sent + 2 * EPOCH_US);
        assert!(self.granted <= self.asked, "more granted than asked for: {self:?}");
    }

    /// Spent without asking.
    pub(super) fn spend(&mut self, tokens: u64, now: BootTime) {
        assert!(now < self.expired, "spent at {now:?}: {self:?}");
        self.take(tokens);
    }

    /// They cannot be spent any more.
    pub(super) fn take(&mut self, tokens: u64) {
        self.gone += tokens;
        assert!(self.gone <= self.granted, "more spent and returned than granted: {self:?}");
    }

    /// They can be spent again.
    pub(super) fn put_back(&mut self, tokens: u64) {
        assert!(tokens <= self.gone, "{tokens} are put back: {self:?}");
        self.gone -= tokens;
    }

    /// What the book holds was granted and is not gone.
    pub(super) fn assert_covers(&self, held: u64) {
        assert!(self.gone + held <= self.granted, "{held} in hand: {self:?}");
    }
}
