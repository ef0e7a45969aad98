//! Requests that need the store: at most one call for a group of limits is in flight, and a queue waits behind it.

use smallvec::SmallVec;
use std::sync::Arc;
use tollgate_core::state_address::StateField;
use tollgate_limiter::OwnedCharge;

/// The limits of one client that are asked together.
#[derive(Debug)]
pub(super) struct PendingGroup<W> {
    pub(super) key: Arc<str>,
    pub(super) charges: Arc<[OwnedCharge]>,
    /// The fields of their states, in the same order.
    pub(super) fields: SmallVec<[StateField; 2]>,
    /// The requests that wait for the next call.
    pub(super) queue: Vec<QueuedRequest<W>>,
    /// Whether a call is in flight.
    pub(super) has_call: bool,
}

impl<W> PendingGroup<W> {
    pub(super) fn new(key: Arc<str>, charges: Arc<[OwnedCharge]>, fields: SmallVec<[StateField; 2]>) -> Self {
        Self { key, charges, fields, queue: Vec::new(), has_call: false }
    }
}

/// A request that waits for a call.
#[derive(Debug)]
pub(super) struct QueuedRequest<W> {
    pub(super) cost: u32,
    pub(super) take: TakeMode,
    pub(super) waiter: W,
}

/// How a request takes its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakeMode {
    /// Once taken they are spent: there is no other call.
    Final,
    /// They are reserved until the calls about the request's other limits are answered.
    Tentative,
}
