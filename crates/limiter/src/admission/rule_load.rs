//! The load of a rule on this node: its requests in flight and its delayed requests.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tollgate_core::rules::written::{ShedSettings, TarpitSettings};

/// The loads of rules that shed or delay, by their ids, as long as requests are counted. They outlive a change of the
/// rules.
#[derive(Debug, Default)]
pub(crate) struct RuleLoads {
    by_rule: Mutex<HashMap<&'static str, Arc<RuleLoad>>>,
    load_permille: AtomicU32,
}

/// The load of one rule.
#[derive(Debug, Default)]
pub(crate) struct RuleLoad {
    in_flight: AtomicU64,
    delayed: AtomicU64,
}

/// One counted request, until it is dropped.
#[derive(Debug)]
pub(crate) struct LoadGuard {
    load: Arc<RuleLoad>,
    which: LoadCounter,
}

#[derive(Clone, Copy, Debug)]
enum LoadCounter {
    InFlight,
    Delayed,
}

impl RuleLoads {
    pub(crate) fn of(&self, rule: &'static str) -> Arc<RuleLoad> {
        Arc::clone(self.by_rule.lock().entry(rule).or_default())
    }

    /// Removes the rules that count no request.
    pub(crate) fn tidy(&self) {
        // A request that is counted has a reference of its own.
        self.by_rule.lock().retain(|_, load| Arc::strong_count(load) > 1);
    }

    pub(crate) fn set_load(&self, permille: u32) {
        self.load_permille.store(permille, Ordering::Relaxed);
    }

    /// Counts a request over the limit, if the node has capacity for its priority.
    pub(crate) fn tolerate(
        &self,
        rule: &'static str,
        shed: &ShedSettings,
        priority: u8,
    ) -> Option<LoadGuard> {
        let load_permille = u64::from(self.load_permille.load(Ordering::Relaxed));
        let reported = shed.in_flight.saturating_mul(load_permille) / 1_000;
        let (counted, before) = self.of(rule).count(LoadCounter::InFlight);
        (before.max(reported) < shed.most_in_flight(priority)).then_some(counted)
    }

    /// Counts a request within the limit.
    pub(crate) fn enter(&self, rule: &'static str) -> LoadGuard {
        self.of(rule).count(LoadCounter::InFlight).0
    }

    /// Counts a delayed request, unless there are too many.
    pub(crate) fn delay(&self, rule: &'static str, tarpit: &TarpitSettings) -> Option<LoadGuard> {
        let (counted, before) = self.of(rule).count(LoadCounter::Delayed);
        (before < tarpit.most).then_some(counted)
    }
}

impl RuleLoad {
    fn count(self: Arc<Self>, which: LoadCounter) -> (LoadGuard, u64) {
        let before = self.counter(which).fetch_add(1, Ordering::Relaxed);
        (LoadGuard { load: self, which }, before)
    }

    fn counter(&self, which: LoadCounter) -> &AtomicU64 {
        match which {
            LoadCounter::InFlight => &self.in_flight,
            LoadCounter::Delayed => &self.delayed,
        }
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.load.counter(self.which).fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_kept_as_long_as_it_counts_requests() {
        let loads = RuleLoads::default();
        let counted = loads.enter("a");
        drop(loads.enter("b"));
        loads.tidy();
        assert_eq!(loads.by_rule.lock().keys().collect::<Vec<_>>(), [&"a"]);
        drop(counted);
        loads.tidy();
        assert!(loads.by_rule.lock().is_empty());
    }
}
