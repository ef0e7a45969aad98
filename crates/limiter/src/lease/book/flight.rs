//! Requests on their way to the store: at most one call for a group of limits at a time, and a queue behind it.

use super::Charged;
use std::sync::Arc;
use tollgate_core::limit::Meter;
use tollgate_core::place::Field;

/// The limits of one client that are asked together.
#[derive(Debug)]
pub(super) struct Flight<W> {
    pub(super) key: Arc<str>,
    pub(super) items: Arc<[Item]>,
    /// Who waits for the next call, and what each costs.
    pub(super) queue: Vec<(u32, W)>,
    /// Whether a call is under way.
    pub(super) is_out: bool,
}

/// One limit of a flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) key: u64,
    pub(super) field: Field,
    pub(super) meter: Meter,
    pub(super) enforced: bool,
    pub(super) leased: bool,
    pub(super) denies_on_failure: bool,
}

impl Item {
    pub(super) fn new(charge: &Charged<'_>, field: Field) -> Self {
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
