//! Requests on their way to the store: at most one call for a group of limits at a time, and a queue behind it.

use super::Charged;
use std::sync::Arc;
use tollgate_core::limit::Meter;
use tollgate_core::state_address::StateField;

/// The limits of one client that are asked together.
#[derive(Debug)]
pub(super) struct Flight<W> {
    pub(super) key: Arc<str>,
    pub(super) items: Arc<[Item]>,
    /// The requests that wait for the next call.
    pub(super) queue: Vec<Queued<W>>,
    /// Whether a call is under way.
    pub(super) is_out: bool,
}

/// A request that waits for a call.
#[derive(Debug)]
pub(super) struct Queued<W> {
    pub(super) cost: u32,
    pub(super) take: Take,
    pub(super) waiter: W,
}

/// How a request takes its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Take {
    /// Once taken they are spent: no other call has a say.
    Final,
    /// They are reserved until the calls about the request's other limits are answered.
    Tentative,
}

/// One limit of a flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) key: u64,
    pub(super) field: StateField,
    pub(super) meter: Meter,
    pub(super) enforced: bool,
    pub(super) leased: bool,
    pub(super) denies_on_failure: bool,
}

impl Item {
    pub(super) fn new(charge: &Charged<'_>, field: StateField) -> Self {
        Self {
            key: charge.key,
            field,
            meter: *charge.meter,
            enforced: charge.enforced,
            leased: charge.leased,
            denies_on_failure: charge.denies_on_failure,
        }
    }
}
