//! A part of the book under one lock: the leases of some clients, and their flights.
//!
//! What can be decided here is decided here; the rest is [`asking`], [`answering`] and [`tending`].

mod answering;
mod asking;
mod tending;

use super::flight::Flight;
use super::lease::{Lease, Local, Timing};
use super::rounds::Rounds;
use super::{Charged, Settings};
use crate::lease::credit::Paid;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Keys are keyed hashes already.
pub(super) type ByKey<T> = HashMap<u64, T, rapidhash::fast::RandomState>;

#[derive(Debug)]
pub(super) struct Page<W> {
    leases: ByKey<Lease>,
    /// Those that hold credit that could be missed, or have something to tell: the others need nothing from a
    /// tick.
    busy: Rounds,
    /// When those that nobody uses are looked for again.
    sweep_us: u64,
    flights: ByKey<Flight<W>>,
    most_leases: usize,
}

impl<W> Page<W> {
    pub(super) fn new(most_leases: usize) -> Self {
        Self {
            leases: ByKey::default(),
            busy: Rounds::default(),
            sweep_us: 0,
            flights: ByKey::default(),
            most_leases,
        }
    }

    pub(super) fn leases(&self) -> usize {
        self.leases.len()
    }

    /// What can be said about `charge` under the rules of this number; and notes that it was asked for.
    pub(super) fn look(
        &mut self,
        charge: &Charged<'_>,
        cost: u32,
        rules: u32,
        now_us: u64,
        settings: &Settings,
    ) -> Local {
        let Some(lease) = self.asked_for(charge, cost, rules, now_us, settings) else { return Local::Ask };
        lease.look(charge.meter, cost, now_us, settings)
    }

    /// The same, and pays for it if there is credit.
    #[inline]
    pub(super) fn look_and_spend(
        &mut self,
        charge: &Charged<'_>,
        cost: u32,
        rules: u32,
        now_us: u64,
        settings: &Settings,
    ) -> Local {
        let Some(lease) = self.asked_for(charge, cost, rules, now_us, settings) else { return Local::Ask };
        let local = lease.look(charge.meter, cost, now_us, settings);
        if let Local::Spend(_) = local {
            lease.credit.spend(cost, now_us);
        }
        local
    }

    /// The lease that `charge` is about, if there is room for it.
    #[inline]
    fn asked_for(
        &mut self,
        charge: &Charged<'_>,
        cost: u32,
        rules: u32,
        now_us: u64,
        settings: &Settings,
    ) -> Option<&mut Lease> {
        let room = self.leases.len() < self.most_leases;
        let lease = match self.leases.entry(charge.key) {
            Entry::Occupied(lease) => lease.into_mut(),
            Entry::Vacant(free) if room => {
                free.insert(Lease::new(charge.meter, Timing::new(charge.leasing, settings), now_us))
            }
            Entry::Vacant(_) => return None,
        };
        let known_as = (rules, std::ptr::from_ref(charge.meter) as usize);
        if lease.known_as != known_as {
            lease.known_as = known_as;
            follow(&mut self.busy, lease, charge, settings);
        }
        lease.pace.note(cost, now_us);
        lease.used_us = now_us;
        Some(lease)
    }

    pub(super) fn spend(&mut self, key: u64, cost: u32, now_us: u64) -> Paid {
        self.leases.get_mut(&key).map_or(Paid::default(), |lease| lease.credit.spend(cost, now_us))
    }

    pub(super) fn undo(&mut self, key: u64, paid: Paid) {
        if let Some(lease) = self.leases.get_mut(&key) {
            lease.credit.undo(paid);
            note_busy(&mut self.busy, key, lease);
        }
    }
}

/// The rules have changed: the limit of this lease may have other numbers, and its rule may lease otherwise.
#[cold]
#[inline(never)]
fn follow(busy: &mut Rounds, lease: &mut Lease, charge: &Charged<'_>, settings: &Settings) {
    let timing = Timing::new(charge.leasing, settings);
    if lease.is_busy && timing.interval_us != lease.timing.interval_us {
        busy.leave(charge.key, lease.timing.interval_us());
        busy.join(charge.key, timing.interval_us());
    }
    lease.timing = timing;
    if lease.meter != *charge.meter {
        lease.adopt(charge.meter);
        note_busy(busy, charge.key, lease);
    }
}

/// The next tick has to look at this one.
fn note_busy(busy: &mut Rounds, key: u64, lease: &mut Lease) {
    if !lease.is_busy {
        lease.is_busy = true;
        busy.join(key, lease.timing.interval_us());
    }
}
