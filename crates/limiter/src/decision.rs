//! The answer to one request: made at once, or on its way.

use crate::limit_names::LimitNames;
use crate::pending::Pending;
use crate::snapshot::{LimitTerms, RulesInForce};
use tollgate_core::algorithm::LimitStep;
use tollgate_core::decision::{LimitStatus, Outcome, OutcomeFold};
use tollgate_core::rules::LimitId;
use tollgate_core::time::UnixTime;

/// What [`Limiter::check`](crate::Limiter::check) answers.
#[derive(Debug)]
pub enum Check<'l> {
    /// The decision. With the embedded store it is always this.
    Decided(Decision),
    /// The shared store has to be heard first.
    Pending(Pending<'l>),
}

impl Check<'_> {
    /// The decision, waiting for the shared store if need be.
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
    /// What becomes of it.
    pub outcome: Outcome,
    /// The terms of the limit that decided, if one did.
    pub terms: Option<LimitTerms>,
    /// When it was decided.
    pub now: UnixTime,
    /// A rule that only counts, and that would have refused it.
    pub shadowed_by: Option<&'static LimitNames>,
    /// It was decided without the store.
    pub degraded: bool,
    /// It was refused because the store is unavailable and the rule says `on_store_failure: deny`. No limit is known to
    /// be exceeded.
    pub store_unavailable: bool,
    /// A rule that it is over, and that lets it pass with a flag.
    pub flagged_by: Option<&'static LimitNames>,
    /// A rule of which it is in the soft part.
    pub soft: Option<&'static LimitNames>,
}

impl Decision {
    /// Whether the request may pass.
    pub fn allowed(&self) -> bool {
        matches!(self.outcome, Outcome::Unlimited | Outcome::Admitted(_))
    }

    /// The limit that decided and how things stand with it; none if no limit did.
    pub fn standing(&self) -> Option<(LimitTerms, LimitStatus)> {
        match self.outcome {
            Outcome::Admitted(standing) | Outcome::Limited(standing) => Some((self.terms?, standing)),
            Outcome::Unlimited | Outcome::Denied => None,
        }
    }

    /// What the step of a request's only charge comes to, if that charge can refuse.
    #[inline]
    pub(crate) fn of_one(rules: &RulesInForce, limit: LimitId, step: &LimitStep, now: UnixTime) -> Self {
        let outcome = Outcome::of_one(limit, step);
        Self {
            outcome,
            terms: Some(rules.terms(limit)),
            now,
            shadowed_by: None,
            degraded: false,
            store_unavailable: false,
            flagged_by: None,
            soft: None,
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
            flagged_by: None,
            soft: None,
        }
    }

    /// What the steps come to.
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
            flagged_by: names(fold.flagged.filter(|_| admits)),
            soft: names(fold.soft.filter(|_| admits)),
        }
    }
}

impl From<Decision> for Check<'_> {
    #[inline]
    fn from(decision: Decision) -> Self {
        Self::Decided(decision)
    }
}
