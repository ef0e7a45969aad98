//! The parts of a rule that take requests out of it: `except`, `exactly` and `replaces`.
//!
//! Every rule that matches is charged (ADR 4). Where only the most specific of several rules applies, as in the
//! configurations of other rate limiters, the less specific ones state what they leave to it. Each field of `except` is a
//! condition of its own, so that those on the client and on the path are cached with the other parts of a selection.

use super::pattern::DomainPattern;
use super::ruleset::{ClientCondition, LimitId, RuleSet, has_domain};
use super::selection::{Charge, Charges};
use crate::descriptor::EntryMeaning;
use crate::request::{MethodSet, NamedIdentity, PerIdentity, Request};
use smallvec::SmallVec;
use std::ops::Range;

/// The requests that a rule does not apply to.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleException {
    pub(super) client: ClientCondition,
    /// The patterns in [`RuleSet::endpoints`].
    pub(super) endpoints: Option<Range<usize>>,
    pub(super) methods: MethodSet,
    pub(super) domains: Vec<DomainPattern>,
}

impl RuleException {
    /// Whether it has conditions beyond client and path.
    pub(super) fn has_conditions(&self) -> bool {
        !self.methods.is_empty() || !self.domains.is_empty()
    }

    /// The first condition beyond client and path that takes `request` out.
    pub(super) fn first_failure(&self, request: &Request<'_>) -> Option<&'static str> {
        if !self.methods.is_empty() && self.methods.contains(request.method) {
            Some("another method")
        } else if has_domain(&self.domains, request.domain) {
            Some("another domain")
        } else {
            None
        }
    }
}

/// The identities that a request must have, and no others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ExactIdentities {
    pub(super) named: PerIdentity<bool>,
    pub(super) ip: bool,
    pub(super) endpoint: bool,
    pub(super) method: bool,
    pub(super) ids: Vec<String>,
}

impl ExactIdentities {
    pub(super) fn are_those_of(&self, request: &Request<'_>) -> bool {
        // A descriptor without another identity has its path or method also as a custom one.
        let ids = || request.ids.iter().filter(|(name, _)| EntryMeaning::of(name) == EntryMeaning::Custom);
        NamedIdentity::ALL.into_iter().all(|kind| self.named[kind] == request.named(kind).is_some())
            && self.ip == request.ip.is_some()
            && self.endpoint != request.endpoint.is_empty()
            && self.method == request.method.is_some()
            && ids().count() == self.ids.len()
            && self.ids.iter().all(|name| request.id(name).is_some())
    }
}

impl RuleSet {
    /// Removes the charges of rules that other charges of the request replace.
    #[inline(never)]
    pub(super) fn drop_replaced(&self, charges: &mut Charges<'_>) {
        // A rule that is not enforced must not lift a limit.
        let enforced = charges.iter().filter(|charge| charge.enforced);
        let replaced: SmallVec<[u32; 8]> =
            enforced.flat_map(|charge| self.rule_of(charge.id).replaces.iter().copied()).collect();
        if !replaced.is_empty() {
            charges.retain(|charge: &mut Charge<'_>| !replaced.contains(&self.owner_index(charge.id)));
        }
    }

    /// Whether any rule replaces another one.
    #[inline]
    pub fn has_replacements(&self) -> bool {
        self.has_replacements
    }

    /// Whether the rule of the limit `by` replaces that of `limit`.
    pub fn replaces(&self, by: LimitId, limit: LimitId) -> bool {
        self.rule_of(by).replaces.contains(&self.owner_index(limit))
    }

    /// The rule that replaces rule `index` in these charges.
    pub(super) fn replacing_rule(&self, index: u32, charges: &Charges<'_>) -> Option<&str> {
        let mut enforced = charges.iter().filter(|charge| charge.enforced);
        let found = enforced.find(|charge| self.rule_of(charge.id).replaces.contains(&index))?;
        Some(&self.rule_of(found.id).id)
    }
}
