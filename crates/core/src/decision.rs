//! From the steps of all charges to one answer.

use crate::algorithm::LimitStep;
use crate::request::{LONGEST_ENDPOINT, Request};
use crate::rules::{Charge, LimitId, OverLimitEffect};
use std::fmt;
use std::num::NonZeroU64;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No limit touches it: it is on the allow list, or no rule is about it.
    Unlimited,
    /// It is on the deny list.
    Denied,
    /// It is within its limits, or over one that only flags.
    Admitted(LimitStatus),
    /// It is over one of them.
    Limited(LimitStatus),
}

/// How things stand with the limit that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitStatus {
    /// The limit: of those that refuse, the one with the longest known wait; else the one with the least left.
    pub limit: LimitId,
    /// What is left, in whole tokens.
    pub remaining: u32,
    /// How long to wait. None if it was admitted, or if no time is promised: time alone ends no request in flight.
    pub retry_after_us: Option<NonZeroU64>,
    /// Until nothing of the limit is used.
    pub reset_after_us: u64,
}

impl Outcome {
    /// Of a request with no charge but this one, which can refuse.
    #[inline]
    pub fn of_one(limit: LimitId, step: &LimitStep) -> Self {
        let standing = LimitStatus::new(limit, step);
        if step.admitted { Self::Admitted(standing) } else { Self::Limited(standing) }
    }
}

impl LimitStatus {
    /// Of a client that is refused for a time, whatever its limit says.
    pub fn cooling(limit: LimitId, wait_us: u64) -> Self {
        Self { limit, remaining: 0, retry_after_us: NonZeroU64::new(wait_us), reset_after_us: wait_us }
    }

    /// How long to wait, as a number.
    #[inline]
    pub fn wait_us(&self) -> Option<u64> {
        self.retry_after_us.map(NonZeroU64::get)
    }

    /// The longer wait of the two, of a client that is held and may be over a limit besides.
    #[must_use]
    pub fn or_longer(self, limited: Option<Self>) -> Self {
        match limited {
            // Of one limit both are true: when it admits again, and when nothing of it is used.
            Some(mut limited) if limited.limit == self.limit => {
                limited.prolong(self.wait_us().unwrap_or(0));
                limited
            }
            Some(limited) if limited.retry_after_us > self.retry_after_us => limited,
            _ => self,
        }
    }

    /// The wait is at least so long.
    pub fn prolong(&mut self, wait_us: u64) {
        self.retry_after_us = self.retry_after_us.max(NonZeroU64::new(wait_us));
        self.reset_after_us = self.reset_after_us.max(wait_us);
    }

    /// So much of the wait is over. A wait that was promised stays one: it is at least 1 µs.
    pub fn elapse(&mut self, elapsed_us: u64) {
        let left_us = |wait_us: NonZeroU64| NonZeroU64::new(wait_us.get().saturating_sub(elapsed_us).max(1));
        self.retry_after_us = self.retry_after_us.and_then(left_us);
        self.reset_after_us = self.reset_after_us.saturating_sub(elapsed_us);
    }

    #[inline]
    fn new(limit: LimitId, step: &LimitStep) -> Self {
        Self {
            limit,
            remaining: step.remaining,
            retry_after_us: NonZeroU64::new(step.retry_after_us),
            reset_after_us: step.reset_after_us,
        }
    }
}

/// Why there is no answer: the request makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidRequest {
    /// A request costs at least 1.
    ZeroCost,
    /// It costs more than the limit can ever hold, so no wait would help.
    CostAboveLimit {
        /// The rule.
        rule: String,
        /// Its limit.
        limit: u32,
        /// The cost.
        cost: u64,
    },
    /// The path is longer than any honest one.
    EndpointTooLong,
    /// A rule counts requests in flight, and who asks cannot say when this one ends.
    NeverEnds {
        /// The rule.
        rule: String,
    },
    /// Nobody is named: no key, user, tenant, address or custom identity.
    NamesNobody,
}

impl fmt::Display for InvalidRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroCost => f.write_str("the cost must be at least 1"),
            Self::CostAboveLimit { rule, limit, cost } => {
                write!(f, "a cost of {cost} can never pass: rule `{rule}` holds at most {limit}")
            }
            Self::NeverEnds { rule } => write!(
                f,
                "rule `{rule}` counts requests in flight, and here nobody can say when this one ends"
            ),
            Self::EndpointTooLong => write!(f, "the endpoint is longer than {LONGEST_ENDPOINT} bytes"),
            Self::NamesNobody => {
                f.write_str("name at least one of key, user, tenant, ip or ids: there is nobody to limit")
            }
        }
    }
}

impl std::error::Error for InvalidRequest {}

/// Refuses what no rule has to be asked about.
#[inline]
pub fn validate(request: &Request<'_>) -> Result<(), InvalidRequest> {
    if request.cost == 0 {
        Err(InvalidRequest::ZeroCost)
    } else if request.endpoint.len() > LONGEST_ENDPOINT {
        Err(InvalidRequest::EndpointTooLong)
    } else if !request.names_anybody() {
        Err(InvalidRequest::NamesNobody)
    } else {
        Ok(())
    }
}

/// Adds up the steps of a request's charges.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutcomeFold {
    refused: Option<LimitStatus>,
    tightest: Option<LimitStatus>,
    /// A limit that only counts would have refused.
    pub shadowed: Option<LimitId>,
    /// The first limit that lets pass what is over it, with a flag.
    pub flagged: Option<LimitId>,
    /// The first limit of which the soft part is reached.
    pub soft: Option<LimitId>,
}

impl OutcomeFold {
    /// Takes in one charge. A charge of which the cost exceeds the limit has no step.
    #[inline]
    pub fn add(&mut self, charge: &Charge<'_>, step: &LimitStep) {
        let standing = LimitStatus::new(charge.id, step);
        match (charge.enforced, step.admitted) {
            (true, false) => {
                if self.refused.is_none_or(|worst| worst.retry_after_us < standing.retry_after_us) {
                    self.refused = Some(standing);
                }
            }
            (true, true) => {
                self.note_soft(charge, step);
                self.note_admitted(standing);
            }
            (false, false) => match charge.over {
                OverLimitEffect::Shadow => self.shadowed = Some(charge.id),
                OverLimitEffect::Flag => {
                    self.flagged = self.flagged.or(Some(charge.id));
                    // It passes, so there is nothing to wait for.
                    self.note_admitted(LimitStatus { retry_after_us: None, ..standing });
                }
                OverLimitEffect::Tolerated => {}
            },
            (false, true) => {
                if charge.over == OverLimitEffect::Flag {
                    self.note_soft(charge, step);
                    self.note_admitted(standing);
                }
            }
        }
    }

    #[inline]
    fn note_admitted(&mut self, standing: LimitStatus) {
        if self.tightest.is_none_or(|tightest| standing.remaining < tightest.remaining) {
            self.tightest = Some(standing);
        }
    }

    #[inline]
    fn note_soft(&mut self, charge: &Charge<'_>, step: &LimitStep) {
        if step.remaining < charge.limit.soft_floor {
            self.soft = self.soft.or(Some(charge.id));
        }
    }

    /// Whether no enforced limit refuses, so that what the steps took is to be kept.
    #[inline]
    pub fn admits(&self) -> bool {
        self.refused.is_none()
    }

    /// The answer.
    #[inline]
    pub fn outcome(&self) -> Outcome {
        match (self.refused, self.tightest) {
            (Some(refused), _) => Outcome::Limited(refused),
            (None, Some(tightest)) => Outcome::Admitted(tightest),
            (None, None) => Outcome::Unlimited,
        }
    }
}
