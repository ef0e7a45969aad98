//! What is enforced at one time: rules, lists, and what of them a decision carries away.

use crate::names::Names;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tollgate_core::limit::Limit;
use tollgate_core::rules::lists::Lists;
use tollgate_core::rules::{LimitId, RuleSet};

/// Swapped whole, never edited.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) rules: Arc<Rules>,
    pub(crate) lists: Arc<Numbered<Lists>>,
    /// Whether anybody is on a list at all.
    pub(crate) has_lists: bool,
}

/// A rule set, its number, and what decisions say of its limits.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) number: u32,
    pub(crate) set: RuleSet,
    terms: Vec<Terms>,
}

/// A value and a number that no other has, by which caches know it.
#[derive(Debug)]
pub(crate) struct Numbered<T> {
    pub(crate) number: u32,
    pub(crate) value: T,
}

/// The terms of a limit, as an answer states them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// What it is called.
    pub names: &'static Names,
    /// The limit.
    pub quota: u32,
    /// Over how many seconds.
    pub window_seconds: u32,
}

impl Terms {
    /// The terms of `limit` of the rule `rule`.
    pub(crate) fn of(rule: &str, limit: &Limit) -> Self {
        let names = Names::keep(rule, &limit.policy);
        Self { names, quota: limit.quota, window_seconds: limit.window_seconds }
    }
}

impl Policy {
    pub(crate) fn new(rules: RuleSet, lists: Lists) -> Self {
        let terms = rules.limits().map(|(rule, limit)| Terms::of(&rule.id, limit));
        let rules = Rules { number: next_number(), terms: terms.collect(), set: rules };
        Self::with(Arc::new(rules), Numbered::new(lists))
    }

    pub(crate) fn with(rules: Arc<Rules>, lists: Arc<Numbered<Lists>>) -> Self {
        let has_lists = !lists.value.is_empty();
        Self { rules, lists, has_lists }
    }
}

impl Rules {
    #[inline]
    pub(crate) fn terms(&self, limit: LimitId) -> Terms {
        self.terms[limit.index()]
    }
}

impl<T> Numbered<T> {
    pub(crate) fn new(value: T) -> Arc<Self> {
        Arc::new(Self { number: next_number(), value })
    }
}

/// From 1: caches take 0 for nothing.
pub(crate) fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
