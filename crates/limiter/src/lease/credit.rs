//! Tokens taken ahead: what of them is left, what was spent, and what the store has to be told.

use smallvec::SmallVec;
use tollgate_core::lending::Report;

/// What a node holds of one limit of one client.
#[derive(Clone, Debug, Default)]
pub(super) struct Credit {
    /// The newest first. A lot lives for two epochs at most, so there are never more.
    lots: [Lot; 2],
    /// What is to be reported of lots that are gone, and of tokens that came to nothing.
    reports: SmallVec<[Report; 2]>,
}

/// Tokens taken in one epoch.
#[derive(Clone, Copy, Debug, Default)]
struct Lot {
    epoch: u32,
    left: u32,
    /// Spent, and not reported yet.
    spent: u32,
    deadline_us: u64,
}

/// Which lots a request was paid from, so that it can be undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Paid([(u32, u32); 2]);

impl Credit {
    /// What can be spent at `now_us`.
    #[inline]
    pub(super) fn left(&self, now_us: u64) -> u32 {
        self.lots.iter().filter(|lot| lot.deadline_us > now_us).map(|lot| lot.left).sum()
    }

    /// Spends `cost`, which must be there; the older lot first, for it dies first.
    #[inline]
    pub(super) fn spend(&mut self, cost: u32, now_us: u64) -> Paid {
        let mut paid = Paid::default();
        let mut due = cost;
        for (lot, paid) in self.lots.iter_mut().zip(&mut paid.0).rev() {
            if lot.deadline_us > now_us {
                let part = due.min(lot.left);
                lot.left -= part;
                lot.spent += part;
                due -= part;
                *paid = (lot.epoch, part);
            }
        }
        debug_assert_eq!(due, 0, "looked before");
        paid
    }

    /// Takes back what a request paid that came to nothing.
    pub(super) fn undo(&mut self, paid: Paid) {
        for (epoch, part) in paid.0.into_iter().filter(|(_, part)| *part > 0) {
            match self.lots.iter_mut().find(|lot| lot.epoch == epoch && lot.spent >= part) {
                Some(lot) => {
                    lot.spent -= part;
                    lot.left += part;
                }
                // The store knows already that it was spent: it is brought back like any other.
                None => self.report(Report { epoch, refunded: part, ..Report::default() }),
            }
        }
    }

    /// Takes in what was lent in `epoch`, to be spent before `deadline_us`.
    pub(super) fn grant(&mut self, epoch: u32, tokens: u32, deadline_us: u64) {
        if tokens == 0 {
            return;
        }
        if let Some(lot) = self.lots.iter_mut().find(|lot| lot.epoch == epoch && lot.deadline_us > 0) {
            lot.left += tokens;
            // Both are early guesses of the one instant at which the epoch is forgotten, or the window ends.
            lot.deadline_us = lot.deadline_us.max(deadline_us);
            return;
        }
        // Two epochs later the older lot is dead: the store has forgotten it as well. If it is not, then this
        // answer comes so late that it is the one to forget.
        let [newer, older] = &mut self.lots;
        if older.deadline_us < deadline_us {
            *older = Lot { epoch, left: tokens, spent: 0, deadline_us };
        }
        if newer.deadline_us < older.deadline_us {
            std::mem::swap(newer, older);
        }
    }

    /// Whether anything is left that dies before `dies_us`.
    pub(super) fn holds(&self, dies_us: u64) -> bool {
        self.lots.iter().any(|lot| lot.left > 0 && lot.deadline_us <= dies_us)
    }

    /// Lets go of what is left of all that dies before `dies_us`.
    pub(super) fn bring_back(&mut self, dies_us: u64) {
        for index in 0..self.lots.len() {
            let lot = &mut self.lots[index];
            if lot.left > 0 && lot.deadline_us <= dies_us {
                let report = Report { epoch: lot.epoch, returned: lot.left, ..Report::default() };
                lot.left = 0;
                self.report(report);
            }
        }
    }

    /// Adds to what the store will be told.
    pub(super) fn report(&mut self, report: Report) {
        if report.spent == 0 && report.returned == 0 && report.refunded == 0 {
            return;
        }
        match self.reports.iter_mut().find(|known| known.epoch == report.epoch) {
            Some(known) => {
                known.spent += report.spent;
                known.returned += report.returned;
                known.refunded += report.refunded;
            }
            None => self.reports.push(report),
        }
    }

    /// What the store has to be told now. Of tokens that are dead it needs no word: it has forgotten them.
    pub(super) fn reports(&mut self, now_us: u64) -> SmallVec<[Report; 2]> {
        for index in 0..self.lots.len() {
            let lot = &mut self.lots[index];
            if lot.deadline_us <= now_us {
                *lot = Lot::default();
                continue;
            }
            let report = Report { epoch: lot.epoch, spent: lot.spent, ..Report::default() };
            lot.spent = 0;
            self.report(report);
        }
        std::mem::take(&mut self.reports)
    }

    /// What was spent and the store still believes to be lent.
    pub(super) fn untold(&self, now_us: u64) -> u32 {
        let lots = self.lots.iter().filter(|lot| lot.deadline_us > now_us).map(|lot| lot.spent);
        lots.chain(self.reports.iter().map(|report| report.spent)).fold(0, u32::saturating_add)
    }

    /// What was taken for requests that came to nothing, and is on its way back.
    pub(super) fn refunded(&self) -> u64 {
        self.reports.iter().map(|report| u64::from(report.refunded)).sum()
    }

    /// Whether something is on its way back.
    pub(super) fn brings_back(&self) -> bool {
        self.reports.iter().any(|report| report.returned > 0 || report.refunded > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: u64 = 1_000;

    #[test]
    fn the_older_lot_is_spent_first_and_an_undo_restores_both() {
        let mut credit = Credit::default();
        credit.grant(7, 3, LATER);
        credit.grant(8, 5, 2 * LATER);
        let paid = credit.spend(4, 0);
        assert_eq!(paid, Paid([(8, 1), (7, 3)]));
        assert_eq!(credit.left(0), 4);
        credit.undo(paid);
        assert_eq!(credit.left(0), 8);
        assert!(credit.reports(0).is_empty());
    }

    #[test]
    fn what_is_reported_and_then_undone_is_refunded() {
        let mut credit = Credit::default();
        credit.grant(7, 3, LATER);
        let paid = credit.spend(2, 0);
        assert_eq!(credit.reports(0).as_slice(), [Report { epoch: 7, spent: 2, ..Report::default() }]);
        credit.undo(paid);
        assert_eq!(credit.reports(0).as_slice(), [Report { epoch: 7, refunded: 2, ..Report::default() }]);
        assert_eq!(credit.left(0), 1);
    }

    #[test]
    fn dead_credit_cannot_be_spent() {
        let mut credit = Credit::default();
        credit.grant(7, 3, LATER);
        assert_eq!(credit.left(LATER - 1), 3);
        assert_eq!(credit.left(LATER), 0);
        assert!(credit.reports(LATER).is_empty());
        assert_eq!(credit.left(0), 0, "a dead lot is gone");
    }
}
