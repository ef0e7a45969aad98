//! The embedded store: the states of a node, in bounded memory, charged all or nothing over several limits.
//!
//! A state is 24 bytes in one of 1,024 shards, each behind its own lock and held for the length of a step.
//! The store is never swept as a whole: a new key removes a slot or two that are fresh again, and [`MemoryStore::tidy`]
//! sweeps a few shards at a time.
//!
//! At the memory cap only states that equal a fresh one are removed: a client cannot flush its own bucket by filling the
//! table. If there is no such state, new keys share the *overflow cells* of their address prefix, so that a flood from
//! one network does not deny new keys from others. A key that was charged again is kept for its whole time to full, a
//! key that was charged once only until it is fresh: a flood of single requests does not evict regular clients.

mod part_charges;
mod single_state;
mod slot;
mod slots;
mod table;

use crate::clock::Clock;
pub(crate) use part_charges::{PartCharge, step_of};
use slot::StateSlot;
use smallvec::SmallVec;
use spin::mutex::{SpinMutex, SpinMutexGuard};
use spin::relax::Yield;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use table::{MemoryBudget, StateTable};
use tollgate_core::algorithm::sliding_window_log;
use tollgate_core::algorithm::{LimitStep, StateCell};
use tollgate_core::decision::OutcomeFold;
use tollgate_core::rules::{CellKind, Charge};
use tollgate_core::time::{StoreTime, UnixTime};

const SHARD_BITS: u32 = 64 - slot::FINGERPRINT_BITS;
const SHARDS: usize = 1 << SHARD_BITS;
/// Shards for overflow cells.
const OVERFLOW_SHARDS: usize = 64;
/// The number of overflow cells of a limit.
pub(crate) const OVERFLOW_CELLS: u64 = 256;
/// The share of the memory that is reserved for fragmentation: one in so many.
const ALLOCATOR_SLACK: usize = 8;
/// The number of shards that one call of [`MemoryStore::tidy`] sweeps.
const TIDY_SHARDS: usize = 32;

/// The embedded store.
pub struct MemoryStore {
    shards: Box<[MemoryShard]>,
    budget: MemoryBudget,
    /// Without a cap: overflow cells are few, and needed when the other budget is exhausted.
    overflow_budget: MemoryBudget,
    next_to_tidy: AtomicUsize,
    overflowed: AtomicU64,
}

/// A shard on half a cache line. Its lock is held for about twenty nanoseconds, so a thread that finds it locked yields
/// and tries again.
#[repr(align(32))]
struct MemoryShard(SpinMutex<StateTable, Yield>);

/// The memory use of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// The number of states.
    pub states: usize,
    /// The bytes of their tables, without overflow cells.
    pub bytes: usize,
    /// The number of checks charged to an overflow cell because the cap was reached.
    pub overflowed: u64,
    /// The number of states that were removed because they equalled fresh ones.
    pub evicted: u64,
}

/// There is no memory for the state of this charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreFull {
    pub(crate) charge: usize,
}

impl MemoryStore {
    /// A store of at most `most_bytes`.
    pub fn new(most_bytes: usize) -> Self {
        let tables =
            (0..SHARDS + OVERFLOW_SHARDS).map(|_| MemoryShard(SpinMutex::new(StateTable::default())));
        Self {
            shards: tables.collect(),
            budget: MemoryBudget::new(most_bytes - most_bytes / ALLOCATOR_SLACK),
            overflow_budget: MemoryBudget::new(usize::MAX),
            next_to_tidy: AtomicUsize::new(0),
            overflowed: AtomicU64::new(0),
        }
    }

    /// The common case: one charge that is not a log, one lookup, one lock. None if there is no memory.
    ///
    /// The clock is read while the lock is held and the slot is loaded from memory.
    #[inline]
    pub(crate) fn take_one(
        &self,
        charge: &Charge<'_>,
        cost: u32,
        clock: &Clock,
    ) -> Option<(LimitStep, UnixTime)> {
        let Charge { limit, key, client, .. } = *charge;
        let mut table = self.shards[shard_of(client)].0.lock();
        let now = clock.now();
        if let Some(slot) = table.find(key) {
            let step = limit.step(Some(slot.cell()), StoreTime::of_embedded_store(now), cost);
            if let Some(cell) = step.next {
                *slot = StateSlot::new(key, cell, limit.lifetime_us);
            }
            return Some((step, now));
        }
        // In variables of their own, so that the charge and the other step can stay in registers.
        let own = *charge;
        let first = self.take_first(&mut table, &own, cost, StoreTime::of_embedded_store(now))?;
        Some((first, now))
    }

    /// The same, if it refuses; otherwise spends nothing and returns none.
    #[inline]
    pub(crate) fn refuse_one(
        &self,
        charge: &Charge<'_>,
        cost: u32,
        clock: &Clock,
    ) -> Option<(LimitStep, UnixTime)> {
        let Charge { limit, key, client, .. } = *charge;
        let mut table = self.shards[shard_of(client)].0.lock();
        let now = clock.now();
        let slot = table.find(key)?;
        let step = limit.step(Some(slot.cell()), StoreTime::of_embedded_store(now), cost);
        if step.admitted {
            return None;
        }
        if let Some(cell) = step.next {
            *slot = StateSlot::new(key, cell, limit.lifetime_us);
        }
        Some((step, now))
    }

    /// The first charge of a key.
    #[inline(never)]
    fn take_first(
        &self,
        table: &mut StateTable,
        charge: &Charge<'_>,
        cost: u32,
        now: StoreTime,
    ) -> Option<LimitStep> {
        let step = charge.limit.step(None, now, cost);
        if let Some(cell) = step.next {
            if !table.make_room(1, &self.budget, now) {
                return None;
            }
            table.insert(StateSlot::new(charge.key, cell, first_life_us(cell, &step, now)));
        }
        Some(step)
    }

    fn budget_of(&self, charge: &Charge<'_>) -> &MemoryBudget {
        match charge.cell {
            CellKind::Own => &self.budget,
            CellKind::Overflow => &self.overflow_budget,
        }
    }

    /// Charges all of `charges`, or none of them if one refuses: locks their shards in order, steps all, then writes all
    /// or none.
    pub(crate) fn take_all(
        &self,
        charges: &[Charge<'_>],
        cost: u32,
        now: StoreTime,
    ) -> Result<OutcomeFold, StoreFull> {
        self.take(charges, cost, now, OutcomeFold::admits)
    }

    /// The steps of `charges` if one of them refuses, else none. Spends nothing.
    pub(crate) fn refuse(&self, charges: &[Charge<'_>], cost: u32, now: StoreTime) -> Option<OutcomeFold> {
        // Only a check that spends falls back to overflow cells.
        self.take(charges, cost, now, |_| false).ok().filter(|fold| !fold.admits())
    }

    fn take(
        &self,
        charges: &[Charge<'_>],
        cost: u32,
        now: StoreTime,
        spends: impl FnOnce(&OutcomeFold) -> bool,
    ) -> Result<OutcomeFold, StoreFull> {
        let mut order: SmallVec<[usize; 8]> = charges.iter().map(shard_of_charge).collect();
        order.sort_unstable();
        order.dedup();
        let mut tables: SmallVec<[(usize, SpinMutexGuard<'_, StateTable>); 8]> =
            order.iter().map(|shard| (*shard, self.shards[*shard].0.lock())).collect();
        let position =
            |charge: &Charge<'_>| order.binary_search(&shard_of_charge(charge)).unwrap_or_default();

        let mut fold = OutcomeFold::default();
        let mut steps: SmallVec<[StateStep; 8]> = SmallVec::new();
        for (index, charge) in charges.iter().enumerate() {
            let table = &mut tables[position(charge)].1;
            let budget = self.budget_of(charge);
            let taken =
                step(table, charge, cost, charges.len(), budget, now).ok_or(StoreFull { charge: index })?;
            fold.add(charge, taken.step());
            steps.push(taken);
        }
        let spends = spends(&fold);
        for (charge, taken) in charges.iter().zip(&steps) {
            // A refused step writes only to re-anchor its state after a jump of the clock.
            if spends || !taken.step().admitted {
                write(&mut tables[position(charge)].1, charge, cost, taken, self.budget_of(charge), now);
            }
        }
        Ok(fold)
    }

    /// Charges `charge` and returns the step; none if there is no memory for its state.
    pub(crate) fn take_step(&self, charge: &Charge<'_>, cost: u32, now: StoreTime) -> Option<LimitStep> {
        let mut table = self.shards[shard_of_charge(charge)].0.lock();
        let budget = self.budget_of(charge);
        let taken = step(&mut table, charge, cost, 1, budget, now)?;
        write(&mut table, charge, cost, &taken, budget, now);
        Some(*taken.step())
    }

    /// Counts a check that is charged to an overflow cell.
    pub(crate) fn count_overflow(&self) {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes states that equal a fresh one from the next few shards. Called ten times a second, it sweeps all shards
    /// within four seconds.
    pub fn tidy(&self, now: StoreTime) {
        let first = self.next_to_tidy.fetch_add(TIDY_SHARDS, Ordering::Relaxed);
        for index in first..first + TIDY_SHARDS {
            let index = index % self.shards.len();
            let budget = if index < SHARDS { &self.budget } else { &self.overflow_budget };
            self.shards[index].0.lock().tidy(budget, now);
        }
    }

    /// The number of checks charged to an overflow cell so far.
    pub fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// The memory use of the store.
    pub fn usage(&self) -> MemoryUse {
        let (mut states, mut evicted) = (0, 0);
        for shard in &self.shards {
            let table = shard.0.lock();
            states += table.states();
            evicted += table.evicted();
        }
        MemoryUse { states, bytes: self.budget.used(), overflowed: self.overflowed(), evicted }
    }

    /// The most that the states may take, in bytes.
    pub fn most_bytes(&self) -> usize {
        self.budget.most()
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("usage", &self.usage()).finish()
    }
}

/// The step of a charge, before it is written.
enum StateStep {
    Cell { step: LimitStep, known: bool },
    Log(sliding_window_log::LogStep),
}

impl StateStep {
    fn step(&self) -> &LimitStep {
        match self {
            Self::Cell { step, .. } => step,
            Self::Log(found) => &found.step,
        }
    }
}

/// Steps the state of one charge and makes sure that it can be written; none if there is no memory.
fn step(
    table: &mut StateTable,
    charge: &Charge<'_>,
    cost: u32,
    new_keys: usize,
    budget: &MemoryBudget,
    now: StoreTime,
) -> Option<StateStep> {
    let Charge { limit, key, .. } = *charge;
    if let Some(window) = limit.log_window() {
        let log = table.log(key);
        let known = log.is_some();
        let found = sliding_window_log::step_log(window, log, now, cost);
        let fits = known || !found.step.admitted || table.make_room_for_log(key, limit.quota, budget, now);
        return fits.then_some(StateStep::Log(found));
    }
    let cell = table.find(key).map(|slot| slot.cell());
    let step = limit.step(cell, now, cost);
    let known = cell.is_some();
    // Room for all of them: several new keys may be in one shard.
    let fits = known || step.next.is_none() || table.make_room(new_keys, budget, now);
    fits.then_some(StateStep::Cell { step, known })
}

/// Writes the step. Slots may have moved since, so they are looked up again.
fn write(
    table: &mut StateTable,
    charge: &Charge<'_>,
    cost: u32,
    taken: &StateStep,
    budget: &MemoryBudget,
    now: StoreTime,
) {
    let Charge { limit, key, .. } = *charge;
    match (taken, limit.log_window()) {
        (StateStep::Log(found), Some(window)) => {
            if found.step.admitted || found.jumped {
                let fresh = now + found.step.reset_after_us;
                table.change_log(key, limit.quota, fresh, budget, |log| log.apply(window, found, now, cost));
            }
        }
        (StateStep::Cell { step, known }, _) => {
            let Some(cell) = step.next else { return };
            let life_us = if *known { limit.lifetime_us } else { first_life_us(cell, step, now) };
            let slot = StateSlot::new(key, cell, life_us);
            match table.find(key) {
                Some(known) => *known = slot,
                None => table.insert(slot),
            }
        }
        (StateStep::Log(_), None) => {}
    }
}

/// The lifetime of the state of a key that was charged once: until it equals a fresh one.
fn first_life_us(cell: StateCell, step: &LimitStep, now: StoreTime) -> u64 {
    (now + step.reset_after_us).since(cell.instant)
}

/// All states of a client are in one shard; the rest of their keys distinguishes them.
#[inline]
fn shard_of(client: u64) -> usize {
    (client >> slot::FINGERPRINT_BITS) as usize
}

fn shard_of_charge(charge: &Charge<'_>) -> usize {
    match charge.cell {
        CellKind::Own => shard_of(charge.client),
        CellKind::Overflow => SHARDS + charge.key.as_bits() as usize % OVERFLOW_SHARDS,
    }
}
