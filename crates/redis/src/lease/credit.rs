//! Tokens taken in advance: left, reserved and spent ones, and those to be reported to the store.

use smallvec::SmallVec;
use tollgate_core::lending::LeaseReport;
use tollgate_core::script::MOST_PARTS;
use tollgate_core::time::BootTime;
use tollgate_limiter::Passed;

/// Epochs that reports wait for. A log looks for a returned request among as many entries; what is older than the newest
/// of these counts as spent.
const MOST_REPORTS: usize = 64;
const _: () = assert!(MOST_REPORTS <= MOST_PARTS);

/// What a node holds of one limit of one client.
#[derive(Clone, Debug, Default)]
pub(super) struct Credit {
    /// The newest first. A lot lives for two epochs at most, so there are never more.
    lots: [CreditLot; 2],
    /// Returned tokens that are not reported yet.
    returns: SmallVec<[LeaseReport; 2]>,
}

/// Tokens taken in one epoch.
#[derive(Clone, Copy, Debug, Default)]
struct CreditLot {
    epoch: u32,
    left: u32,
    /// Reserved by requests whose other limits are not decided yet.
    reserved: u32,
    /// Spent, and not reported yet.
    spent: u32,
    deadline: BootTime,
}

/// What the store has forgotten when a lot expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreForgets {
    /// That tokens were lent: those that are spent need no report any more.
    Spent,
    /// The same, and those that are returned come too late as well.
    Returned,
}

/// How many tokens of which epochs a request has reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reservation([(u32, u32); 2]);

impl Reservation {
    /// `tokens` that were taken at the store in `epoch`.
    pub(super) fn of(epoch: u32, tokens: u32) -> Self {
        Self([(epoch, tokens), (0, 0)])
    }

    /// The reports to the store if there is no lease.
    pub(super) fn reports(self, passed: Passed) -> SmallVec<[LeaseReport; 2]> {
        let parts = self.0.into_iter().filter(|(_, count)| *count > 0);
        let report = |(epoch, count)| match passed {
            Passed::Yes => LeaseReport { epoch, spent: count, returned: 0 },
            Passed::No => LeaseReport { epoch, spent: 0, returned: count },
        };
        parts.map(report).collect()
    }
}

impl Credit {
    /// What can be spent at `now`.
    #[inline]
    pub(super) fn left(&self, now: BootTime) -> u32 {
        let alive = self.lots.iter().filter(|lot| lot.deadline > now);
        alive.fold(0, |left, lot| left.saturating_add(lot.left))
    }

    /// Spends `cost`, which must be there; the older lot first, for it expires first.
    #[inline]
    pub(super) fn spend(&mut self, cost: u32, now: BootTime) {
        let mut due = cost;
        for lot in self.lots.iter_mut().rev().filter(|lot| lot.deadline > now) {
            let part = due.min(lot.left);
            lot.left -= part;
            lot.spent = lot.spent.saturating_add(part);
            due -= part;
        }
        debug_assert_eq!(due, 0, "looked before");
    }

    /// Reserves `cost`, which must be there, until [`Credit::commit`] or [`Credit::release`].
    pub(super) fn reserve(&mut self, cost: u32, now: BootTime) -> Reservation {
        let mut reservation = Reservation::default();
        let mut due = cost;
        for (lot, part) in self.lots.iter_mut().zip(&mut reservation.0).rev() {
            if lot.deadline > now {
                let count = due.min(lot.left);
                lot.left -= count;
                lot.reserved = lot.reserved.saturating_add(count);
                due -= count;
                *part = (lot.epoch, count);
            }
        }
        debug_assert_eq!(due, 0, "looked before");
        reservation
    }

    /// The request has passed: what it reserved is spent. A lot that is gone was spent as far as the store knows.
    pub(super) fn commit(&mut self, reservation: Reservation) {
        self.resolve(reservation, |lot, count| lot.spent = lot.spent.saturating_add(count));
    }

    /// The request has not passed: what it reserved is free again.
    pub(super) fn release(&mut self, reservation: Reservation) {
        self.resolve(reservation, |lot, count| lot.left = lot.left.saturating_add(count));
    }

    fn resolve(&mut self, reservation: Reservation, mut resolve: impl FnMut(&mut CreditLot, u32)) {
        for (epoch, count) in reservation.0.into_iter().filter(|(_, count)| *count > 0) {
            let known = self.lots.iter_mut().find(|lot| lot.epoch == epoch && lot.reserved >= count);
            if let Some(lot) = known {
                lot.reserved -= count;
                resolve(lot, count);
            }
        }
    }

    /// Takes back up to `tokens` that were spent and are not reported yet. Returns how many.
    pub(super) fn unspend(&mut self, tokens: u32, now: BootTime) -> u32 {
        let mut due = tokens;
        for lot in self.lots.iter_mut().filter(|lot| lot.deadline > now) {
            let part = due.min(lot.spent);
            lot.spent -= part;
            lot.left = lot.left.saturating_add(part);
            due -= part;
        }
        tokens - due
    }

    /// Adds what was lent in `epoch`, to be spent before `deadline`.
    pub(super) fn grant(&mut self, epoch: u32, tokens: u32, deadline: BootTime) {
        if tokens > 0
            && let Some(lot) = self.lot(epoch, deadline)
        {
            lot.left = lot.left.saturating_add(tokens);
        }
    }

    /// Adds what was taken as lent in `epoch` for a request whose other limits are not decided yet.
    pub(super) fn grant_reserved(&mut self, epoch: u32, tokens: u32, deadline: BootTime) -> Reservation {
        if let Some(lot) = self.lot(epoch, deadline) {
            lot.reserved = lot.reserved.saturating_add(tokens);
        }
        Reservation::of(epoch, tokens)
    }

    /// Adds what was taken as lent in `epoch`, and is spent.
    pub(super) fn grant_spent(&mut self, epoch: u32, tokens: u32, deadline: BootTime) {
        if let Some(lot) = self.lot(epoch, deadline) {
            lot.spent = lot.spent.saturating_add(tokens);
        }
    }

    /// The lot of `epoch`. Two epochs later the older lot is dead: the store has forgotten it as well. If it is not,
    /// then this reply comes so late that it is the one to forget.
    fn lot(&mut self, epoch: u32, deadline: BootTime) -> Option<&mut CreditLot> {
        let known = self.lots.iter().position(|lot| lot.epoch == epoch && lot.deadline > BootTime::default());
        if let Some(index) = known {
            let lot = &mut self.lots[index];
            // Both are early guesses of the one instant at which the epoch is forgotten, or the window ends.
            lot.deadline = lot.deadline.max(deadline);
            return Some(lot);
        }
        if self.lots[1].deadline >= deadline {
            return None;
        }
        self.lots[1] = CreditLot { epoch, deadline, ..CreditLot::default() };
        if self.lots[0].deadline < deadline {
            self.lots.swap(0, 1);
            return Some(&mut self.lots[0]);
        }
        Some(&mut self.lots[1])
    }

    /// Returns what a log counted for a request that has not passed.
    pub(super) fn add_returns(&mut self, reservation: Reservation) {
        reservation.reports(Passed::No).into_iter().for_each(|report| self.add(report));
    }

    /// Whether anything is left that expires before `expires`.
    pub(super) fn has_left(&self, expires: BootTime) -> bool {
        self.lots.iter().any(|lot| lot.left > 0 && lot.deadline <= expires)
    }

    /// Returns what is left of all that expires before `expires`.
    pub(super) fn give_back(&mut self, expires: BootTime) {
        for index in 0..self.lots.len() {
            let lot = &mut self.lots[index];
            if lot.left > 0 && lot.deadline <= expires {
                let report = LeaseReport { epoch: lot.epoch, returned: lot.left, ..LeaseReport::default() };
                lot.left = 0;
                self.add(report);
            }
        }
    }

    /// Adds a report to the next call.
    pub(super) fn add(&mut self, report: LeaseReport) {
        if report.spent == 0 && report.returned == 0 {
            return;
        }
        match self.returns.iter_mut().find(|known| known.epoch == report.epoch) {
            Some(known) => {
                known.spent = known.spent.saturating_add(report.spent);
                known.returned = known.returned.saturating_add(report.returned);
            }
            None => {
                if self.returns.len() == MOST_REPORTS {
                    self.returns.remove(0);
                }
                self.returns.push(report);
            }
        }
    }

    /// Restores a report that the store has not seen. Spent tokens are reported until their lot expires: after that the
    /// store has forgotten them, and a lease that waited to report them would never end. The same is true of tokens that are
    /// returned to a bucket, while a window or a log counts them until they are returned.
    pub(super) fn restore_report(&mut self, report: LeaseReport, forgets: StoreForgets) {
        let known =
            self.lots.iter_mut().find(|lot| lot.epoch == report.epoch && lot.deadline > BootTime::default());
        match known {
            Some(lot) => lot.spent = lot.spent.saturating_add(report.spent),
            None if forgets == StoreForgets::Returned => return,
            None => {}
        }
        self.add(LeaseReport { spent: 0, ..report });
    }

    /// The reports for a call now. Expired tokens are not reported: the store has forgotten them.
    pub(super) fn reports(&mut self, now: BootTime) -> SmallVec<[LeaseReport; 2]> {
        for index in 0..self.lots.len() {
            let lot = &mut self.lots[index];
            if lot.deadline <= now {
                *lot = CreditLot::default();
                continue;
            }
            let spent = std::mem::take(&mut lot.spent);
            let report = LeaseReport { epoch: lot.epoch, spent, ..LeaseReport::default() };
            self.add(report);
        }
        std::mem::take(&mut self.returns)
    }

    /// What was spent and the store still counts as lent.
    pub(super) fn unreported(&self, now: BootTime) -> u32 {
        let lots = self.lots.iter().filter(|lot| lot.deadline > now).map(|lot| lot.spent);
        lots.chain(self.returns.iter().map(|report| report.spent)).fold(0, u32::saturating_add)
    }

    /// All that can be spent at any time, or is yet to be returned.
    #[cfg(test)]
    pub(super) fn held(&self) -> u64 {
        let left = self.lots.iter().map(|lot| u64::from(lot.left));
        left.chain(self.returns.iter().map(|report| u64::from(report.returned))).sum()
    }

    /// Whether returned tokens wait to be reported.
    pub(super) fn has_returns(&self) -> bool {
        self.returns.iter().any(|report| report.returned > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: u64 = 1_000;

    fn at(us: u64) -> BootTime {
        BootTime::from_us(us)
    }

    #[test]
    fn the_older_lot_is_reserved_first_and_a_release_restores_both() {
        let mut credit = Credit::default();
        credit.grant(7, 3, at(LATER));
        credit.grant(8, 5, at(2 * LATER));
        let reservation = credit.reserve(4, at(0));
        assert_eq!(reservation, Reservation([(8, 1), (7, 3)]));
        assert_eq!(credit.left(at(0)), 4);
        credit.release(reservation);
        assert_eq!(credit.left(at(0)), 8);
        assert!(credit.reports(at(0)).is_empty());
    }

    #[test]
    fn reserved_tokens_are_reported_once_they_are_spent() {
        let mut credit = Credit::default();
        credit.grant(7, 3, at(LATER));
        let (passes, fails) = (credit.reserve(1, at(0)), credit.reserve(1, at(0)));
        assert!(credit.reports(at(0)).is_empty(), "nothing is spent yet");
        credit.commit(passes);
        credit.release(fails);
        assert_eq!(credit.reports(at(0)).as_slice(), [LeaseReport { epoch: 7, spent: 1, returned: 0 }]);
        assert_eq!(credit.left(at(0)), 2);
    }

    #[test]
    fn a_reservation_that_outlives_its_lot_changes_nothing() {
        let mut credit = Credit::default();
        credit.grant(7, 3, at(LATER));
        let (one, two) = (credit.reserve(1, at(0)), credit.reserve(2, at(0)));
        assert!(credit.reports(at(LATER)).is_empty());
        credit.grant(17, 2, at(11 * LATER));
        credit.grant(18, 2, at(12 * LATER));
        credit.commit(one);
        credit.release(two);
        assert_eq!(credit.left(at(10 * LATER)), 4);
        assert!(credit.reports(at(10 * LATER)).is_empty());
    }

    #[test]
    fn expired_credit_is_not_spent() {
        let mut credit = Credit::default();
        credit.grant(7, 3, at(LATER));
        assert_eq!(credit.left(at(LATER - 1)), 3);
        assert_eq!(credit.left(at(LATER)), 0);
        assert!(credit.reports(at(LATER)).is_empty());
        assert_eq!(credit.left(at(0)), 0, "a dead lot is gone");
    }

    #[test]
    fn spent_tokens_are_reported_again_only_until_their_lot_expires() {
        let mut credit = Credit::default();
        credit.grant(7, 3, at(LATER));
        credit.spend(2, at(0));
        let unseen = credit.reports(at(0));
        assert_eq!(unseen.as_slice(), [LeaseReport { epoch: 7, spent: 2, returned: 0 }]);
        unseen.into_iter().for_each(|report| credit.restore_report(report, StoreForgets::Spent));
        assert_eq!(credit.unreported(at(0)), 2);
        let unseen = credit.reports(at(0));
        assert_eq!(unseen.as_slice(), [LeaseReport { epoch: 7, spent: 2, returned: 0 }]);
        unseen.into_iter().for_each(|report| credit.restore_report(report, StoreForgets::Spent));
        assert_eq!(credit.unreported(at(LATER)), 0, "the store has forgotten it");
        assert!(credit.reports(at(LATER)).is_empty());
        credit.restore_report(LeaseReport { epoch: 3, spent: 5, returned: 1 }, StoreForgets::Spent);
        assert_eq!(credit.reports(at(0)).as_slice(), [LeaseReport { epoch: 3, spent: 0, returned: 1 }]);
    }

    #[test]
    fn tokens_are_returned_to_a_bucket_only_until_their_lot_expires() {
        for (forgets, is_kept) in [(StoreForgets::Returned, false), (StoreForgets::Spent, true)] {
            let mut credit = Credit::default();
            credit.grant(7, 3, at(LATER));
            credit.give_back(BootTime::MAX);
            let returned = [LeaseReport { epoch: 7, spent: 0, returned: 3 }];
            for now in [0, LATER - 1, LATER] {
                let unseen = credit.reports(at(now));
                assert_eq!(unseen.as_slice(), returned, "at {now}");
                unseen.into_iter().for_each(|report| credit.restore_report(report, forgets));
            }
            assert_eq!(credit.has_returns(), is_kept, "{forgets:?}");
        }
    }

    #[test]
    fn reports_that_are_never_seen_stay_bounded() {
        let mut credit = Credit::default();
        for epoch in 0..1_000 {
            credit.add(LeaseReport { epoch, spent: 0, returned: 1 });
        }
        let reports = credit.reports(at(0));
        assert_eq!(reports.len(), MOST_REPORTS);
        assert_eq!(reports.last().map(|report| report.epoch), Some(999), "the newest are kept");
    }

    #[test]
    fn no_grant_overflows() {
        let mut credit = Credit::default();
        credit.grant(7, u32::MAX, at(LATER));
        credit.grant(7, u32::MAX, at(LATER));
        credit.grant(8, u32::MAX, at(2 * LATER));
        assert_eq!(credit.left(at(0)), u32::MAX);
    }
}
