//! The shards of the lease table that a request touches.

use super::LeaseSettings;
use super::lease::LocalStep;
use super::shard::LeaseShard;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tollgate_core::time::BootTime;
use tollgate_limiter::{OwnedCharge, Steps};

/// Shards of a lease table.
pub(super) const SHARDS: usize = 256;

/// The shards that a request touches, locked.
pub(super) struct LockedShards<'b, W> {
    held: SmallVec<[(usize, MutexGuard<'b, LeaseShard<W>>); 4]>,
}

/// What can be said of each charge here.
pub(super) type LocalSteps = SmallVec<[LocalStep; 8]>;

/// The steps of those of which anything is known, if one of them refuses.
pub(super) fn refused(charges: &[OwnedCharge], locals: &LocalSteps) -> Option<Steps> {
    let refuses = |(charge, local): (&OwnedCharge, &LocalStep)| {
        charge.enforced && matches!(local, LocalStep::Refuse(_))
    };
    charges.iter().zip(locals).any(refuses).then(|| {
        locals.iter().enumerate().filter_map(|(index, local)| Some((index, local.step()?))).collect()
    })
}

impl<'b, W> LockedShards<'b, W> {
    /// Locks the shards of all charges, in order, so that two requests never deadlock.
    pub(super) fn lock(shards: &'b [Mutex<LeaseShard<W>>], charges: &[OwnedCharge]) -> Self {
        let mut order: SmallVec<[usize; 8]> = charges.iter().map(|charge| shard_of(charge.client)).collect();
        order.sort_unstable();
        order.dedup();
        Self { held: order.into_iter().map(|index| (index, shards[index].lock())).collect() }
    }

    /// The only shard of a request, which is locked already.
    pub(super) fn of_one(client: u64, shard: MutexGuard<'b, LeaseShard<W>>) -> Self {
        Self { held: SmallVec::from_iter([(shard_of(client), shard)]) }
    }

    pub(super) fn look(
        &mut self,
        charges: &[OwnedCharge],
        cost: u32,
        rules: u32,
        now: BootTime,
        settings: &LeaseSettings,
    ) -> LocalSteps {
        let look = |charge: &OwnedCharge| self.of(charge.client).look(charge, cost, rules, now, settings);
        charges.iter().map(look).collect()
    }

    pub(super) fn of(&mut self, client: u64) -> &mut LeaseShard<W> {
        let index = shard_of(client);
        let position = self.held.iter().position(|(held, _)| *held == index).unwrap_or_default();
        &mut self.held[position].1
    }
}

pub(super) fn shard_of(client: u64) -> usize {
    (client >> 56) as usize % SHARDS
}
