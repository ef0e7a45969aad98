//! What is counted of a rule on this node: its requests in flight, and those whose answer is held back.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tollgate_core::rules::written::{ShedSettings, TarpitSettings};

/// The stations of all rules that shed or delay, by their ids. They outlive a change of the rules.
#[derive(Debug, Default)]
pub(crate) struct Stations {
    by_rule: Mutex<HashMap<&'static str, Arc<Station>>>,
    load_permille: AtomicU32,
}

/// One rule's.
#[derive(Debug, Default)]
pub(crate) struct Station {
    in_flight: AtomicU64,
    delayed: AtomicU64,
}

/// One of those that a station counts.
#[derive(Debug)]
pub(crate) struct Counted {
    station: Arc<Station>,
    which: Which,
}

#[derive(Clone, Copy, Debug)]
enum Which {
    InFlight,
    Delayed,
}

impl Stations {
    pub(crate) fn of(&self, rule: &'static str) -> Arc<Station> {
        Arc::clone(self.by_rule.lock().entry(rule).or_default())
    }

    pub(crate) fn set_load(&self, permille: u32) {
        self.load_permille.store(permille, Ordering::Relaxed);
    }

    /// A place for a request over the limit, if the node has room for one of its priority.
    pub(crate) fn tolerate(&self, rule: &'static str, shed: &ShedSettings, priority: u8) -> Option<Counted> {
        let load_permille = u64::from(self.load_permille.load(Ordering::Relaxed));
        let told = shed.in_flight.saturating_mul(load_permille) / 1_000;
        let (counted, before) = self.of(rule).count(Which::InFlight);
        (before.max(told) < shed.most_in_flight(priority)).then_some(counted)
    }

    /// A place for a request that passes anyway.
    pub(crate) fn enter(&self, rule: &'static str) -> Counted {
        self.of(rule).count(Which::InFlight).0
    }

    /// A place among the delayed, if there is one.
    pub(crate) fn delay(&self, rule: &'static str, tarpit: &TarpitSettings) -> Option<Counted> {
        let (counted, before) = self.of(rule).count(Which::Delayed);
        (before < tarpit.most).then_some(counted)
    }
}

impl Station {
    fn count(self: Arc<Self>, which: Which) -> (Counted, u64) {
        let before = self.counter(which).fetch_add(1, Ordering::Relaxed);
        (Counted { station: self, which }, before)
    }

    fn counter(&self, which: Which) -> &AtomicU64 {
        match which {
            Which::InFlight => &self.in_flight,
            Which::Delayed => &self.delayed,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.station.counter(self.which).fetch_sub(1, Ordering::Relaxed);
    }
}
