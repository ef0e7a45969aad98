//! The outcome of a decision, as metrics and logs name it.

use crate::decision::Decision;
use tollgate_core::decision::Outcome;
use tollgate_core::rules::written::OnExceed;

/// The value of the label `outcome`. A decision has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DecisionOutcome {
    /// Admitted at once, or without any limit.
    Allowed,
    /// Refused by a limit, a penalty or as a hot key.
    Limited,
    /// Admitted; a rule in shadow mode would have refused it.
    ShadowLimited,
    /// Refused by the deny list.
    Denied,
    /// Made without the store, whatever the result.
    Degraded,
    /// Admitted after a wait in a queue.
    Queued,
    /// Refused by a rule that sheds load.
    Shed,
    /// Delayed, and then admitted or refused.
    Tarpitted,
    /// Admitted with a flag for the upstream.
    Flagged,
}

impl DecisionOutcome {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Allowed,
        Self::Limited,
        Self::ShadowLimited,
        Self::Denied,
        Self::Degraded,
        Self::Queued,
        Self::Shed,
        Self::Tarpitted,
        Self::Flagged,
    ];

    /// The value of the label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Limited => "limited",
            Self::ShadowLimited => "shadow_limited",
            Self::Denied => "denied",
            Self::Degraded => "degraded",
            Self::Queued => "queued",
            Self::Shed => "shed",
            Self::Tarpitted => "tarpitted",
            Self::Flagged => "flagged",
        }
    }

    /// The outcome of a decision that was made at once.
    pub fn of(decision: &Decision) -> Self {
        if decision.degraded {
            return Self::Degraded;
        }
        match decision.outcome {
            Outcome::Denied => Self::Denied,
            Outcome::Limited(_) => match decision.terms.map(|terms| &terms.names.on_exceed) {
                Some(OnExceed::Shed(_)) => Self::Shed,
                Some(
                    OnExceed::Reject
                    | OnExceed::Queue(_)
                    | OnExceed::Tarpit(_)
                    | OnExceed::Flag(_)
                    | OnExceed::Shadow,
                )
                | None => Self::Limited,
            },
            Outcome::Unlimited | Outcome::Admitted(_) => {
                if decision.flags().next().is_some() {
                    Self::Flagged
                } else if decision.shadowed_by.is_some() {
                    Self::ShadowLimited
                } else {
                    Self::Allowed
                }
            }
        }
    }
}
