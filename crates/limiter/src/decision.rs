//! The answer to one request, made at once or pending.

use crate::limit_names::LimitNames;
use crate::pending::Pending;
use crate::snapshot::{LimitTerms, RulesInForce};
use tollgate_core::algorithm::LimitStep;
use tollgate_core::decision::{LimitStatus, Outcome, OutcomeFold};
use tollgate_core::rules::LimitId;
use tollgate_core::time::UnixTime;

/// The result of [`Limiter::check`](crate::Limiter::check).
#[derive(Debug)]
pub enum Check<'l> {
    /// The decision. With the embedded store this is the only case.
    Decided(Decision),
    /// The shared store has to answer first.
    Pending(Pending<'l>),
}

impl Check<'_> {
    /// The decision, after the shared store has answered.
    #[inline]
    pub async fn decision(self) -> Decision {
        match self {
            Self::Decided(decision) => decision,
            Self::Pending(pending) => pending.decision().await,
        }
    }

    /// The decision, if it has been made.
    #[inline]
    pub fn now(self) -> Option<Decision> {
        match self {
            Self::Decided(decision) => Some(decision),
            Self::Pending(_) => None,
        }
    }
}

/// The answer to one request.
#[derive(Clone, Copy, Debug)]
pub struct Decision {
    /// The outcome.
    pub outcome: Outcome,
    /// The terms of the limit that decided, if one did.
    pub terms: Option<LimitTerms>,
    /// When it was decided.
    pub now: UnixTime,
    /// A rule in shadow mode that would have refused it.
    pub shadowed_by: Option<&'static LimitNames>,
    /// It was made without the store.
    pub degraded: bool,
    /// It was refused because the store is unavailable and the rule says `on_store_failure: deny`. No limit is known to
    /// be exceeded.
    pub store_unavailable: bool,
    /// It is over a limit, and admitted with tokens of a grant.
    pub granted: bool,
    /// A rule whose limit it exceeds, and that admits it with a flag.
    pub flagged_by: Option<&'static LimitNames>,
    /// A rule whose soft limit it exceeds.
    pub soft: Option<&'static LimitNames>,
    /// A limit that has an effect on metrics besides the one that decided.
    pub(crate) noted: NotedLimit,
}

/// A limit that did not decide: it only counts (`shadow`), flags, or its soft part was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotedLimit {
    /// [`LimitId::NONE`] if there is none.
    pub(crate) limit: LimitId,
    /// What is left of a shadow limit that would have admitted the request.
    pub(crate) remaining: u32,
}

impl NotedLimit {
    pub(crate) const NONE: Self = Self { limit: LimitId::NONE, remaining: 0 };

    fn of(fold: &OutcomeFold) -> Self {
        let effective = fold.shadowed.or(fold.flagged).or(fold.soft).map(|limit| (limit, 0));
        match effective.or(fold.shadow_admitted) {
            Some((limit, remaining)) => Self { limit, remaining },
            None => Self::NONE,
        }
    }
}

impl Decision {
    /// Whether the request is admitted.
    pub fn allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Unlimited | Outcome::Admitted(_))
    }

    /// The limit that decided, and its status; none if no limit did.
    pub fn standing(&self) -> Option<(LimitTerms, LimitStatus)> {
        match self.outcome {
            Outcome::Admitted(standing) | Outcome::Limited(standing) => Some((self.terms?, standing)),
            Outcome::Unlimited | Outcome::Denied => None,
        }
    }

    /// The decision of a request with a single charge, which can refuse.
    #[inline]
    pub(crate) fn of_one(rules: &RulesInForce, limit: LimitId, step: &LimitStep, now: UnixTime) -> Self {
        Self::by_limit(rules, limit, Outcome::of_one(limit, step), now)
    }

    /// The decision of a request with this outcome by its only limit.
    #[inline]
    pub(crate) fn by_limit(rules: &RulesInForce, limit: LimitId, outcome: Outcome, now: UnixTime) -> Self {
        Self {
            outcome,
            terms: Some(rules.terms(limit)),
            now,
            shadowed_by: None,
            degraded: false,
            store_unavailable: false,
            granted: false,
            flagged_by: None,
            soft: None,
            noted: NotedLimit::NONE,
        }
    }

    pub(crate) fn without_limit(outcome: Outcome, now: UnixTime) -> Self {
        Self {
            outcome,
            terms: None,
            now,
            shadowed_by: None,
            degraded: false,
            store_unavailable: false,
            granted: false,
            flagged_by: None,
            soft: None,
            noted: NotedLimit::NONE,
        }
    }

    /// The decision of several steps.
    #[inline]
    pub(crate) fn of(rules: &RulesInForce, fold: &OutcomeFold, now: UnixTime) -> Self {
        let outcome = fold.outcome();
        let terms = match &outcome {
            Outcome::Admitted(standing) | Outcome::Limited(standing) => Some(rules.terms(standing.limit)),
            Outcome::Unlimited | Outcome::Denied => None,
        };
        let names = |limit: Option<LimitId>| limit.map(|limit| rules.terms(limit).names);
        let admits = fold.admits();
        Self {
            outcome,
            terms,
            now,
            shadowed_by: names(fold.shadowed),
            degraded: false,
            store_unavailable: false,
            granted: false,
            flagged_by: names(fold.flagged.filter(|_| admits)),
            soft: names(fold.soft.filter(|_| admits)),
            noted: NotedLimit::of(fold),
        }
    }
}

impl From<Decision> for Check<'_> {
    #[inline]
    fn from(decision: Decision) -> Self {
        Self::Decided(decision)
    }
}
