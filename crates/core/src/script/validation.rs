//! Checks an answer against its question.
//!
//! What a store answers comes from outside: another program, a proxy in between, a damaged state. A node must not
//! spend more than it asked for, nor compute with instants that overflow, whatever arrives. An answer that cannot
//! be true is an error of that one call.

use super::{ChargeCall, ChargeReply, LogStatus, ReplyError, ReplyState, ScriptCall, ScriptReply};
use crate::lending::{EPOCH_US, StoredState};
use crate::limit::Meter;

/// Later instants than this, in the year 2112, are not exact in a script.
pub(crate) const LATEST_US: u64 = 1 << 52;
/// Clocks step back a little: a state may lie so far ahead of its limit's own lifetime.
const AHEAD_US: u64 = 2 * EPOCH_US;
/// The same in epochs.
const AHEAD_EPOCHS: u64 = 3;

impl ScriptReply {
    /// The same answer, if it can be one to `ask`.
    pub(super) fn validated(self, ask: &ScriptCall) -> Result<Self, ReplyError> {
        if self.now_us == 0 || self.now_us >= LATEST_US {
            return Err(ReplyError::Impossible("a time out of range"));
        }
        if self.admitted.iter().zip(&ask.runs).any(|(passing, run)| *passing > run.repeats) {
            return Err(ReplyError::Impossible("more requests passing than were sent"));
        }
        let all_pass = self.admitted.iter().zip(&ask.runs).all(|(passing, run)| *passing == run.repeats);
        for (charge, answer) in ask.charges.iter().zip(&self.charges) {
            if answer.counted.iter().zip(&self.admitted).any(|(counted, passing)| counted > passing) {
                return Err(ReplyError::Impossible("more requests counted than passed"));
            }
            if answer.lent > charge.prefetch.want || (answer.lent > 0 && !all_pass) {
                return Err(ReplyError::Impossible("more tokens lent than were asked for"));
            }
            match &answer.state {
                ReplyState::Stored(account) => {
                    check_account(account, &charge.meter, self.now_us)?;
                    self.check_lent(ask, charge, answer, account)?;
                }
                ReplyState::Log(standings) => {
                    for standing in standings {
                        check_standing(standing, &charge.meter)?;
                    }
                }
            }
        }
        self.check_refusals(ask)?;
        Ok(self)
    }

    /// A request that did not pass was refused by a limit that still has no room for it: nothing comes in during a
    /// call. The same goes for one that passed without being counted. Waits and remainders are worked out from the
    /// states, and a request must not be told that it passes where the store has taken nothing for it.
    fn check_refusals(&self, ask: &ScriptCall) -> Result<(), ReplyError> {
        for (number, (run, passing)) in ask.runs.iter().zip(&self.admitted).enumerate() {
            let mut is_explained = *passing == run.repeats;
            for (charge, answer) in ask.charges.iter().zip(&self.charges) {
                if charge.enforced {
                    is_explained = is_explained || !answer.has_room(charge, number, run.cost, self.now_us);
                } else if answer.counted.get(number).is_some_and(|counted| counted < passing)
                    && answer.has_room(charge, number, run.cost, self.now_us)
                {
                    return Err(ReplyError::Impossible("a request not counted that there is room for"));
                }
            }
            if !is_explained {
                return Err(ReplyError::Impossible("a request refused that there is room for"));
            }
        }
        Ok(())
    }

    /// What a call has lent is noted beside the bucket.
    fn check_lent(
        &self,
        ask: &ScriptCall,
        charge: &ChargeCall,
        answer: &ChargeReply,
        account: &StoredState,
    ) -> Result<(), ReplyError> {
        if charge.meter.bucket().is_none() {
            return Ok(());
        }
        let counted = if charge.enforced { &self.admitted } else { &answer.counted };
        let held = match charge.as_lent {
            true => counted
                .iter()
                .zip(&ask.runs)
                .map(|(count, run)| u64::from(*count) * u64::from(run.cost))
                .sum(),
            false => 0,
        };
        if held + u64::from(answer.lent) > u64::from(account.lent.current) {
            return Err(ReplyError::Impossible("tokens lent that are not noted"));
        }
        Ok(())
    }
}

impl ChargeReply {
    /// Whether one more request of the run `number`, each of which costs `cost`, would pass.
    fn has_room(&self, charge: &ChargeCall, number: usize, cost: u32, now_us: u64) -> bool {
        match &self.state {
            ReplyState::Stored(account) => charge.meter.step(account.cell, now_us, cost).admitted,
            ReplyState::Log(standings) => {
                standings.get(number).is_none_or(|standing| standing.retry_after_us == 0)
            }
        }
    }
}

fn check_account(account: &StoredState, meter: &Meter, now_us: u64) -> Result<(), ReplyError> {
    let latest_us = now_us + 2 * meter.lifetime_us() + AHEAD_US;
    if account.cell.is_some_and(|cell| cell.instant_us > latest_us) {
        return Err(ReplyError::Impossible("a state that lies too far ahead"));
    }
    let lent = &account.lent;
    if lent.total() > 0 {
        let (epoch, present) = (u64::from(lent.epoch), now_us / EPOCH_US);
        if meter.bucket().is_none() {
            return Err(ReplyError::Impossible("tokens lent of a window"));
        }
        if epoch < present {
            return Err(ReplyError::Impossible("an epoch that is over"));
        }
        if epoch > present + AHEAD_EPOCHS {
            return Err(ReplyError::Impossible("an epoch that lies too far ahead"));
        }
    }
    match lent.current.checked_add(lent.previous) {
        Some(_) => Ok(()),
        None => Err(ReplyError::Impossible("more tokens lent than there can be")),
    }
}

fn check_standing(standing: &LogStatus, meter: &Meter) -> Result<(), ReplyError> {
    // After a step back of the clock, entries lie up to a window ahead.
    let longest_us = 2 * meter.lifetime_us() + AHEAD_US;
    if standing.remaining > meter.quota()
        || standing.retry_after_us > longest_us
        || standing.reset_after_us > longest_us
    {
        return Err(ReplyError::Impossible("a log that stands as none can"));
    }
    Ok(())
}
