//! Checks an answer against its question.
//!
//! What a store answers comes from outside: another program, a proxy in between, a damaged state. A node must not
//! spend more than it asked for, nor compute with instants that overflow, whatever arrives. An answer that cannot
//! be true is an error of that one call.

use super::{Answer, AnsweredState, Ask, ChargeAnswer, ChargeAsk, LogStanding, Unreadable};
use crate::lending::{Account, EPOCH_US};
use crate::limit::Meter;

/// Later instants than this, in the year 2112, are not exact in a script.
const LATEST_US: u64 = 1 << 52;
/// Clocks step back a little: a state may lie so far ahead of its limit's own lifetime.
const AHEAD_US: u64 = 2 * EPOCH_US;
/// The same in epochs.
const AHEAD_EPOCHS: u64 = 3;

impl Answer {
    /// The same answer, if it can be one to `ask`.
    pub(super) fn validated(self, ask: &Ask) -> Result<Self, Unreadable> {
        if self.now_us == 0 || self.now_us >= LATEST_US {
            return Err(Unreadable::Impossible("a time out of range"));
        }
        if self.passing.iter().zip(&ask.runs).any(|(passing, run)| *passing > run.repeats) {
            return Err(Unreadable::Impossible("more requests passing than were sent"));
        }
        let all_pass = self.passing.iter().zip(&ask.runs).all(|(passing, run)| *passing == run.repeats);
        for (charge, answer) in ask.charges.iter().zip(&self.charges) {
            if answer.counted.iter().zip(&self.passing).any(|(counted, passing)| counted > passing) {
                return Err(Unreadable::Impossible("more requests counted than passed"));
            }
            if answer.lends > charge.prefetch.want || (answer.lends > 0 && !all_pass) {
                return Err(Unreadable::Impossible("more tokens lent than were asked for"));
            }
            match &answer.state {
                AnsweredState::Account(account) => {
                    check_account(account, &charge.meter, self.now_us)?;
                    self.check_lent(ask, charge, answer, account)?;
                }
                AnsweredState::Log(standings) => {
                    for standing in standings {
                        check_standing(standing, &charge.meter)?;
                    }
                }
            }
        }
        Ok(self)
    }

    /// What a call has lent is noted beside the bucket.
    fn check_lent(
        &self,
        ask: &Ask,
        charge: &ChargeAsk,
        answer: &ChargeAnswer,
        account: &Account,
    ) -> Result<(), Unreadable> {
        if charge.meter.bucket().is_none() {
            return Ok(());
        }
        let counted = if charge.enforced { &self.passing } else { &answer.counted };
        let held = match charge.holds {
            true => counted
                .iter()
                .zip(&ask.runs)
                .map(|(count, run)| u64::from(*count) * u64::from(run.cost))
                .sum(),
            false => 0,
        };
        if held + u64::from(answer.lends) > u64::from(account.lent.current) {
            return Err(Unreadable::Impossible("tokens lent that are not noted"));
        }
        Ok(())
    }
}

fn check_account(account: &Account, meter: &Meter, now_us: u64) -> Result<(), Unreadable> {
    let latest_us = now_us + 2 * meter.lifetime_us() + AHEAD_US;
    if account.cell.is_some_and(|cell| cell.instant_us > latest_us) {
        return Err(Unreadable::Impossible("a state that lies too far ahead"));
    }
    let lent = &account.lent;
    if lent.total() > 0 && u64::from(lent.epoch) > now_us / EPOCH_US + AHEAD_EPOCHS {
        return Err(Unreadable::Impossible("an epoch that lies too far ahead"));
    }
    match lent.current.checked_add(lent.previous) {
        Some(_) => Ok(()),
        None => Err(Unreadable::Impossible("more tokens lent than there can be")),
    }
}

fn check_standing(standing: &LogStanding, meter: &Meter) -> Result<(), Unreadable> {
    // After a step back of the clock, entries lie up to a window ahead.
    let longest_us = 2 * meter.lifetime_us() + AHEAD_US;
    if standing.remaining > meter.quota()
        || standing.retry_after_us > longest_us
        || standing.reset_after_us > longest_us
    {
        return Err(Unreadable::Impossible("a log that stands as none can"));
    }
    Ok(())
}
