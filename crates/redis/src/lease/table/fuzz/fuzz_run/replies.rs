//! What comes back for a call, and what must follow from it.

use super::super::LeaseFuzzCoverage;
use super::super::grant_ledger::{GrantEpoch, expiry};
use super::{FuzzRun, FuzzWaiter};
use crate::lease::table::{Executed, StoreCall, Verdict};
use std::collections::BTreeMap;
use tollgate_core::key::StateKey;
use tollgate_core::script::{ReplyState, ScriptReply};

/// Replies that may be given again.
const MOST_OLD: usize = 16;

/// A waiter of a call, and whether the reply lets its request pass.
struct ExpectedVerdict {
    id: usize,
    passes: bool,
}

impl FuzzRun<'_> {
    /// Something comes back for a call, or nothing does.
    pub(super) fn deliver(&mut self) {
        if self.out.is_empty() {
            return;
        }
        let index = self.choices.below(self.out.len());
        let kind = self.choices.below(20);
        if kind == 0 {
            return self.time_out_call(index);
        }
        let call = self.out.swap_remove(index);
        let (store_time, mut told) = (self.store_time(), self.store_time());
        let bytes = match kind {
            1 => return self.fail(call, Executed::No),
            2 => return self.fail(call, Executed::Maybe),
            3..=6 => {
                let mut bytes = self.honest(&call);
                let mut time = told.as_us().to_be_bytes()[1..].to_vec();
                match self.choices.below(4) {
                    0 => self.choices.damage(&mut time),
                    _ => self.choices.damage(&mut bytes),
                }
                told = tollgate_core::script::read_time(&time).unwrap_or_default();
                bytes
            }
            7 => self.choices.noise(),
            8 if !self.old.is_empty() => self.old[self.choices.below(self.old.len())].clone(),
            9 if !self.out.is_empty() => {
                // What another call would be answered.
                let other = &self.out[self.choices.below(self.out.len())];
                let answer = self.store.clone().charge(&other.client, &other.ask, store_time);
                answer.encode(&other.ask)
            }
            _ => {
                let bytes = self.honest(&call);
                LeaseFuzzCoverage::note(&self.met.honest);
                let answer = ScriptReply::decode(&call.ask, told, &bytes);
                let answer = answer.unwrap_or_else(|why| panic!("an honest answer: {why}"));
                return self.accept(call, &answer);
            }
        };
        match ScriptReply::decode(&call.ask, told, &bytes) {
            Ok(answer) => {
                LeaseFuzzCoverage::note(&self.met.believed);
                self.accept(call, &answer);
            }
            Err(_) => {
                LeaseFuzzCoverage::note(&self.met.invalid);
                self.fail(call, Executed::Maybe);
            }
        }
    }

    /// The store does what it is asked for, and says so.
    fn honest(&mut self, call: &StoreCall<FuzzWaiter>) -> Vec<u8> {
        let answer = self.store.charge(&call.client, &call.ask, self.store_time());
        let bytes = answer.encode(&call.ask);
        if self.old.len() == MOST_OLD {
            self.old.remove(0);
        }
        self.old.push(bytes.clone());
        bytes
    }

    fn time_out_call(&mut self, index: usize) {
        let waiters = self.waiters(&self.out[index]);
        if !waiters.is_empty() {
            LeaseFuzzCoverage::note(&self.met.late);
        }
        self.table.time_out(&mut self.out[index]);
        self.hear_failure(&waiters);
    }

    /// The call fails: its own waiters hear so, and those behind it, and no other.
    pub(super) fn fail(&mut self, call: StoreCall<FuzzWaiter>, executed: Executed) {
        let waiters = self.waiters(&call);
        if executed == Executed::No {
            for (item, charge) in call.charges.iter().zip(&call.ask.charges) {
                for report in &charge.reports {
                    let ledger = self.ledger(item.key);
                    let cover = ledger.cover_of(GrantEpoch::new(&charge.meter, report.epoch));
                    ledger.put_back(report.returned.into(), cover);
                }
            }
        }
        self.table.fail(call, executed);
        self.hear_failure(&waiters);
    }

    fn waiters(&self, call: &StoreCall<FuzzWaiter>) -> Vec<usize> {
        call.waiters().map(|seat| seat.id).collect()
    }

    fn hear_failure(&mut self, waiters: &[usize]) {
        let told = std::mem::take(&mut *self.told.borrow_mut());
        assert!(told.len() >= waiters.len(), "a waiter of the call has not heard");
        assert!(told.iter().zip(waiters).all(|((id, ..), waiter)| id == waiter));
        for (id, verdict, is_received) in told {
            assert_eq!(verdict, Verdict::Failed);
            assert_eq!(
                self.seats[id].group_key, self.seats[waiters[0]].group_key,
                "a waiter of another group"
            );
            self.record_verdict(id, verdict, is_received, None);
        }
    }

    /// A valid reply arrives.
    fn accept(&mut self, call: StoreCall<FuzzWaiter>, answer: &ScriptReply) {
        let epochs = self.note_grants(&call, answer);
        let expected = self.expect(&call, answer, &epochs);
        let group_key = expected.first().map(|expected| self.seats[expected.id].group_key.clone());
        let next = self.table.apply_reply(call, answer, self.now);
        let told = std::mem::take(&mut *self.told.borrow_mut());
        assert!(told.len() >= expected.len(), "a waiter of the call has not heard");
        for (ExpectedVerdict { id, passes }, (told, verdict, _)) in expected.iter().zip(&told) {
            let Verdict::Served { steps, .. } = verdict else { panic!("answered, and failed") };
            let position = &self.seats[*id];
            let is_passed = self.requests[position.request].is_passed(position.group, steps);
            assert_eq!((told, is_passed), (id, *passes), "what a waiter is told is what the answer says");
        }
        for (position, (id, verdict, is_received)) in told.into_iter().enumerate() {
            assert_eq!(Some(&self.seats[id].group_key), group_key.as_ref(), "a waiter of another group");
            // Those behind the call spend credit.
            let taken = (position < expected.len()).then_some(&epochs);
            self.record_verdict(id, verdict, is_received, taken);
        }
        next.into_iter().for_each(|call| self.send(call));
    }

    /// Returns the epoch in which the call has taken tokens of each key: after a step back of the store's clock, the one
    /// under which the store counts what is lent.
    fn note_grants(
        &mut self,
        call: &StoreCall<FuzzWaiter>,
        answer: &ScriptReply,
    ) -> BTreeMap<StateKey, GrantEpoch> {
        let mut epochs = BTreeMap::new();
        for ((item, charge), found) in call.charges.iter().zip(&call.ask.charges).zip(&answer.charges) {
            let counted = if charge.enforced { &answer.admitted } else { &found.counted };
            let tokens = |counts: &[u32]| -> u64 {
                let runs = call.ask.runs.iter().zip(counts);
                runs.map(|(run, count)| u64::from(*count) * u64::from(run.cost)).sum()
            };
            let needed: Vec<u32> = call.ask.runs.iter().map(|run| run.repeats).collect();
            let granted = tokens(counted) + u64::from(found.lent);
            let asked = tokens(&needed) + u64::from(charge.prefetch.want);
            assert!(granted <= asked, "{granted} granted, {asked} asked for");
            if found.lent > 0 {
                LeaseFuzzCoverage::note(&self.met.lent);
            }
            let epoch = match &found.state {
                ReplyState::Stored(state) if state.lent.total() > 0 => state.lent.epoch,
                _ => item.meter.epoch(answer.now),
            };
            let (epoch, now) = (GrantEpoch::new(&item.meter, epoch), self.now);
            let expires = expiry(&item.meter, call.sent, answer.now);
            self.ledger(item.key).grant(granted, epoch, expires, now);
            epochs.insert(item.key, epoch);
        }
        epochs
    }

    /// What the waiters of the call are to hear. What a policy has let pass is spent; so is what cannot be returned.
    fn expect(
        &mut self,
        call: &StoreCall<FuzzWaiter>,
        answer: &ScriptReply,
        epochs: &BTreeMap<StateKey, GrantEpoch>,
    ) -> Vec<ExpectedVerdict> {
        let mut expected = Vec::new();
        let mut waiters = call.waiters.iter();
        let is_allowed = !call.charges.iter().any(|charge| charge.enforced && charge.denies_on_failure);
        for (number, run) in call.ask.runs.iter().enumerate() {
            for (position, waiting) in (0..run.repeats).zip(&mut waiters) {
                let passes = position < answer.admitted[number];
                let is_used = match &waiting.waiter {
                    Some(seat) => {
                        expected.push(ExpectedVerdict { id: seat.id, passes });
                        if !seat.is_gone.get() {
                            continue;
                        }
                        false
                    }
                    None => is_allowed,
                };
                let charges = call.charges.iter().zip(&call.ask.charges).zip(&answer.charges);
                for ((item, charge), found) in charges.filter(|_| passes) {
                    let is_counted = found.counted.get(number).is_none_or(|counted| position < *counted);
                    let is_returnable = charge.as_lent || item.meter.bucket().is_none();
                    if is_counted && (is_used || !is_returnable) {
                        self.ledger(item.key).take(waiting.cost.into(), epochs[&item.key]);
                    }
                }
            }
        }
        expected
    }
}
