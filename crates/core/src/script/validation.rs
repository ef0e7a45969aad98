//! Validates a reply against its call.
//!
//! A reply comes from outside: another program, a proxy in between, a damaged state. Whatever it is, a node must not
//! spend more than it asked for, nor compute with instants that overflow. An invalid reply is an error of that one call.

use super::{ChargeCall, ChargeReply, ReplyError, ReplyState, RequestStatus, ScriptCall, ScriptReply};
use crate::lending::{EPOCH_US, StoredState};
use crate::limit::Meter;
use crate::time::StoreTime;

/// Later instants than this, in the year 2112, are not exact in a script.
pub(crate) const LATEST_US: u64 = 1 << 52;
/// After a small step back of the clock, a state may lie so far ahead besides the lifetime of its limit.
const AHEAD_US: u64 = 2 * EPOCH_US;
/// The same in epochs.
const AHEAD_EPOCHS: u64 = 3;

impl ScriptReply {
    /// The same reply, if it can be one to `call`.
    pub(super) fn validated(self, call: &ScriptCall) -> Result<Self, ReplyError> {
        if self.now == StoreTime::default() || self.now >= StoreTime::from_us(LATEST_US) {
            return Err(ReplyError::Impossible("a time out of range"));
        }
        if self.admitted.iter().zip(&call.runs).any(|(admitted, run)| *admitted > run.repeats) {
            return Err(ReplyError::Impossible("more requests admitted than sent"));
        }
        let all_admitted =
            self.admitted.iter().zip(&call.runs).all(|(admitted, run)| *admitted == run.repeats);
        for (charge, reply) in call.charges.iter().zip(&self.charges) {
            if reply.counted.iter().zip(&self.admitted).any(|(counted, admitted)| counted > admitted) {
                return Err(ReplyError::Impossible("more requests counted than admitted"));
            }
            if reply.lent > charge.prefetch.want || (reply.lent > 0 && !all_admitted) {
                return Err(ReplyError::Impossible("more tokens lent than requested"));
            }
            match &reply.state {
                ReplyState::Stored(state) => {
                    check_state(state, &charge.meter, self.now)?;
                    self.check_lent(call, charge, reply, state)?;
                }
                ReplyState::Log(statuses) => {
                    for status in statuses {
                        check_log_status(status, &charge.meter)?;
                    }
                }
            }
        }
        self.check_refusals(call)?;
        Ok(self)
    }

    /// A request is refused by a limit that still has no room for it after the call, because nothing is refilled during a
    /// call. The same goes for one that was admitted without being counted. Waits and remainders are computed from the
    /// states, and no request may be admitted by a state from which the store has taken nothing for it.
    fn check_refusals(&self, call: &ScriptCall) -> Result<(), ReplyError> {
        for (number, (run, admitted)) in call.runs.iter().zip(&self.admitted).enumerate() {
            let mut is_explained = *admitted == run.repeats;
            for (charge, reply) in call.charges.iter().zip(&self.charges) {
                if charge.enforced {
                    is_explained = is_explained || !reply.has_room(charge, number, run.cost, self.now);
                } else if reply.counted.get(number).is_some_and(|counted| counted < admitted)
                    && reply.has_room(charge, number, run.cost, self.now)
                {
                    return Err(ReplyError::Impossible(
                        "a request not counted although there is room for it",
                    ));
                }
            }
            if !is_explained {
                return Err(ReplyError::Impossible("a request refused although there is room for it"));
            }
        }
        Ok(())
    }

    /// What a call has lent is part of the state.
    fn check_lent(
        &self,
        call: &ScriptCall,
        charge: &ChargeCall,
        reply: &ChargeReply,
        state: &StoredState,
    ) -> Result<(), ReplyError> {
        if charge.meter.bucket().is_none() {
            return Ok(());
        }
        let counted = if charge.enforced { &self.admitted } else { &reply.counted };
        let taken_as_lent = match charge.as_lent {
            true => counted
                .iter()
                .zip(&call.runs)
                .map(|(count, run)| u64::from(*count) * u64::from(run.cost))
                .sum(),
            false => 0,
        };
        if taken_as_lent + u64::from(reply.lent) > u64::from(state.lent.current) {
            return Err(ReplyError::Impossible("lent tokens missing in the state"));
        }
        Ok(())
    }
}

impl ChargeReply {
    /// Whether one more request of the run `number`, each of which costs `cost`, would be admitted.
    fn has_room(&self, charge: &ChargeCall, number: usize, cost: u32, now: StoreTime) -> bool {
        match &self.state {
            ReplyState::Stored(state) => charge.meter.step(state.cell, now, cost).admitted,
            ReplyState::Log(statuses) => statuses.get(number).is_none_or(|status| status.retry_after_us == 0),
        }
    }
}

fn check_state(state: &StoredState, meter: &Meter, now: StoreTime) -> Result<(), ReplyError> {
    let latest = now + 2 * meter.lifetime_us() + AHEAD_US;
    if state.cell.is_some_and(|cell| cell.instant > latest) {
        return Err(ReplyError::Impossible("a state too far in the future"));
    }
    let lent = &state.lent;
    if lent.total() > 0 {
        let (epoch, present) = (u64::from(lent.epoch), now.as_us() / EPOCH_US);
        if meter.bucket().is_none() {
            return Err(ReplyError::Impossible("lent tokens in the state of a window"));
        }
        if epoch < present {
            return Err(ReplyError::Impossible("an epoch that has ended"));
        }
        if epoch > present + AHEAD_EPOCHS {
            return Err(ReplyError::Impossible("an epoch too far in the future"));
        }
    }
    match lent.current.checked_add(lent.previous) {
        Some(_) => Ok(()),
        None => Err(ReplyError::Impossible("more lent tokens than can be counted")),
    }
}

fn check_log_status(status: &RequestStatus, meter: &Meter) -> Result<(), ReplyError> {
    // After a step back of the clock, entries lie up to a window ahead.
    let longest_us = 2 * meter.lifetime_us() + AHEAD_US;
    if status.remaining > meter.quota()
        || status.retry_after_us > longest_us
        || status.reset_after_us > longest_us
    {
        return Err(ReplyError::Impossible("a log status out of range"));
    }
    Ok(())
}
