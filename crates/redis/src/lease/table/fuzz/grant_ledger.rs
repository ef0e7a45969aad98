//! What valid answers granted of one key, and what became of it.

use tollgate_core::lending::EPOCH_US;

/// Tokens of one key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GrantLedger {
    /// Of all calls.
    asked: u64,
    /// By valid answers.
    granted: u64,
    /// Spent on requests, reserved for them, or returned to the store.
    gone: u64,
    /// By then all of it is dead.
    dead_us: u64,
}

impl GrantLedger {
    pub(super) fn ask(&mut self, tokens: u64) {
        self.asked += tokens;
    }

    /// A valid answer to a call of `sent_us`.
    pub(super) fn grant(&mut self, tokens: u64, sent_us: u64) {
        self.granted += tokens;
        self.dead_us = self.dead_us.max(sent_us + 2 * EPOCH_US);
        assert!(self.granted <= self.asked, "more granted than asked for: {self:?}");
    }

    /// Spent without asking.
    pub(super) fn spend(&mut self, tokens: u64, now_us: u64) {
        assert!(now_us < self.dead_us, "spent at {now_us}: {self:?}");
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
