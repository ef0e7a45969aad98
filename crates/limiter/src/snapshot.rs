//! The snapshot: the rules and lists in force, and the terms of their limits.

use crate::limit_names::{LimitNames, LimitNamesFull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use tollgate_core::limit::Limit;
use tollgate_core::rules::lists::AccessLists;
use tollgate_core::rules::written::{OnExceed, SoftLimit};
use tollgate_core::rules::{LimitId, Rule, RuleSet};

/// Replaced as a whole, never changed.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) rules: Arc<RulesInForce>,
    pub(crate) lists: Arc<Versioned<AccessLists>>,
    /// Whether any list has an entry.
    pub(crate) has_lists: bool,
}

/// A rule set, its number, and the terms of its limits.
#[derive(Debug)]
pub(crate) struct RulesInForce {
    pub(crate) number: u32,
    pub(crate) set: RuleSet,
    terms: Vec<LimitTerms>,
    /// Whether some rule queues or delays requests, or counts those in flight.
    pub(crate) takes_time: bool,
    /// Whether a refusal by a single limit has no other effect: no rule has a penalty or sheds.
    pub(crate) refuses_plainly: bool,
}

/// A value and a unique number, by which caches identify it.
#[derive(Debug)]
pub(crate) struct Versioned<T> {
    pub(crate) number: u32,
    pub(crate) value: T,
}

/// The terms of a limit, as a decision has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitTerms {
    /// Its names.
    pub names: &'static LimitNames,
    /// The limit.
    pub quota: u32,
    /// The seconds of its window; 0 if it counts requests in flight.
    pub window_seconds: u32,
}

impl LimitTerms {
    /// Whether it counts requests in flight. Then there is no retry time, because slots are returned at unknown times.
    pub fn counts_in_flight(&self) -> bool {
        self.window_seconds == 0
    }

    /// The terms of `limit`, which has these names.
    pub(crate) fn new(names: &'static LimitNames, limit: &Limit) -> Self {
        Self { names, quota: limit.shown_quota, window_seconds: limit.window_seconds }
    }
}

impl Snapshot {
    /// A snapshot without rules.
    pub(crate) fn empty() -> Self {
        let rules = RulesInForce::numbered(RuleSet::empty(), Vec::new());
        Self::with(Arc::new(rules), Versioned::new(AccessLists::default()))
    }

    pub(crate) fn new(rules: RuleSet, lists: AccessLists) -> Result<Self, LimitNamesFull> {
        let names: Vec<LimitNames> = rules.limits().map(|(rule, limit)| names_of(rule, limit)).collect();
        let rules = RulesInForce::numbered(rules, LimitNames::keep(&names)?);
        Ok(Self::with(Arc::new(rules), Versioned::new(lists)))
    }

    /// The snapshot of a limit that a request states. It has no lists.
    pub(crate) fn of_request_limit(set: RuleSet, number: u32, names: &'static LimitNames) -> Self {
        static NO_LISTS: LazyLock<Arc<Versioned<AccessLists>>> =
            LazyLock::new(|| Versioned::new(AccessLists::default()));
        let rules = RulesInForce { number, ..RulesInForce::new(set, vec![names]) };
        Self::with(Arc::new(rules), Arc::clone(&NO_LISTS))
    }

    pub(crate) fn with(rules: Arc<RulesInForce>, lists: Arc<Versioned<AccessLists>>) -> Self {
        let has_lists = !lists.value.is_empty();
        Self { rules, lists, has_lists }
    }
}

impl RulesInForce {
    /// `names` are those of the limits of `set`, in the order of the limits.
    fn numbered(set: RuleSet, names: Vec<&'static LimitNames>) -> Self {
        Self { number: next_number(), ..Self::new(set, names) }
    }

    fn new(set: RuleSet, names: Vec<&'static LimitNames>) -> Self {
        let terms =
            set.limits().zip(names).map(|((_, limit), names)| LimitTerms::new(names, limit)).collect();
        let takes_time = set.limits().any(|(rule, limit)| takes_time(rule, limit));
        let sheds = |rule: &Rule| matches!(rule.on_exceed, OnExceed::Shed(_));
        let refuses_plainly = !set.has_penalties() && !set.rules().iter().any(sheds);
        Self { number: 0, terms, takes_time, refuses_plainly, set }
    }

    #[inline]
    pub(crate) fn terms(&self, limit: LimitId) -> LimitTerms {
        self.terms[limit.index()]
    }

    /// The rule of `limit`, if it is the one with these names: a limit of other rules may have the same id.
    pub(crate) fn rule_named(&self, limit: LimitId, names: &LimitNames) -> Option<&Rule> {
        let terms = self.terms.get(limit.index())?;
        (terms.names.rule == names.rule).then(|| self.set.rule_of(limit))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'static LimitNames> {
        self.terms.iter().map(|terms| terms.names)
    }
}

fn names_of(rule: &Rule, limit: &Limit) -> LimitNames {
    let (on_exceed, soft) = (rule.on_exceed.clone(), rule.soft.clone());
    LimitNames { rule: rule.id.clone(), policy: limit.policy.clone(), on_exceed, soft }
}

/// Whether a request under this limit may have to wait, or is counted until it ends.
pub(crate) fn takes_time(rule: &Rule, limit: &Limit) -> bool {
    let slows = |soft: &SoftLimit| soft.then.takes_time();
    rule.on_exceed.takes_time()
        || rule.soft.as_ref().is_some_and(slows)
        || limit.longest_in_flight_us().is_some()
}

impl<T> Versioned<T> {
    pub(crate) fn new(value: T) -> Arc<Self> {
        Arc::new(Self { number: next_number(), value })
    }
}

/// From 1: in caches 0 is no number.
pub(crate) fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
