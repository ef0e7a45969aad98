//! The rules and lists in force, and what decisions state of them.

use crate::limit_names::LimitNames;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tollgate_core::limit::Limit;
use tollgate_core::rules::lists::AccessLists;
use tollgate_core::rules::written::{OnExceed, SoftLimit};
use tollgate_core::rules::{LimitId, Rule, RuleSet};

/// Swapped whole, never edited.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) rules: Arc<RulesInForce>,
    pub(crate) lists: Arc<Versioned<AccessLists>>,
    /// Whether any list has an entry.
    pub(crate) has_lists: bool,
}

/// A rule set, its number, and what decisions say of its limits.
#[derive(Debug)]
pub(crate) struct RulesInForce {
    pub(crate) number: u32,
    pub(crate) set: RuleSet,
    terms: Vec<LimitTerms>,
    /// Whether some rule lets requests wait, or counts those in flight.
    pub(crate) takes_time: bool,
}

/// A value and a number that no other has, by which caches know it.
#[derive(Debug)]
pub(crate) struct Versioned<T> {
    pub(crate) number: u32,
    pub(crate) value: T,
}

/// The terms of a limit, as an answer states them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitTerms {
    /// What it is called.
    pub names: &'static LimitNames,
    /// The limit.
    pub quota: u32,
    /// Over how many seconds; 0 if it is about requests in flight.
    pub window_seconds: u32,
}

impl LimitTerms {
    /// Whether it is about requests in flight. Then time alone brings nothing back, and no time can be promised.
    pub fn counts_in_flight(&self) -> bool {
        self.window_seconds == 0
    }

    /// The terms of `limit` of the rule `rule`.
    pub(crate) fn of(rule: &Rule, limit: &Limit) -> Self {
        Self::named(&rule.id, rule.on_exceed.clone(), rule.soft.clone(), limit)
    }

    /// The terms of a limit that belongs to no rule.
    pub(crate) fn of_own(name: &str, limit: &Limit) -> Self {
        Self::named(name, OnExceed::Reject, None, limit)
    }

    fn named(rule: &str, on_exceed: OnExceed, soft: Option<SoftLimit>, limit: &Limit) -> Self {
        let (rule, policy) = (rule.to_owned(), limit.policy.clone());
        let names = LimitNames::keep(LimitNames { rule, policy, on_exceed, soft });
        Self { names, quota: limit.shown_quota, window_seconds: limit.window_seconds }
    }
}

impl Snapshot {
    pub(crate) fn new(rules: RuleSet, lists: AccessLists) -> Self {
        let terms = rules.limits().map(|(rule, limit)| LimitTerms::of(rule, limit));
        let takes_time = rules.limits().any(|(rule, limit)| takes_time(rule, limit));
        let rules = RulesInForce { number: next_number(), terms: terms.collect(), takes_time, set: rules };
        Self::with(Arc::new(rules), Versioned::new(lists))
    }

    pub(crate) fn with(rules: Arc<RulesInForce>, lists: Arc<Versioned<AccessLists>>) -> Self {
        let has_lists = !lists.value.is_empty();
        Self { rules, lists, has_lists }
    }
}

impl RulesInForce {
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

/// Whether a request that meets this limit may have to wait, or be counted until it ends.
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

/// From 1: caches take 0 for nothing.
pub(crate) fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
