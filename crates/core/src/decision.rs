//! The outcome of a request, folded from the steps of its charges.

use crate::algorithm::LimitStep;
use crate::limit::LimitError;
use crate::request::{LONGEST_ENDPOINT, Request};
use crate::rules::{Charge, LimitId, OverLimitEffect};
use std::fmt;
use std::num::NonZeroU64;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No limit applies: the client is on the allow list, or no rule matches.
    Unlimited,
    /// The client is on the deny list.
    Denied,
    /// Within all limits, or over a limit that only flags.
    Admitted(LimitStatus),
    /// Over a limit.
    Limited(LimitStatus),
}

/// The status of the limit that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitStatus {
    /// The refusing limit with the longest known wait; else the limit with the fewest tokens left.
    pub limit: LimitId,
    /// Whole tokens left.
    pub remaining: u32,
    /// The time until a retry is admitted. `None` if the request was admitted, and for limits on requests in flight,
    /// which are not freed by time.
    pub retry_after_us: Option<NonZeroU64>,
    /// The time until the limit is unused.
    pub reset_after_us: u64,
}

impl Outcome {
    /// The outcome of a request with a single charge, which is enforced.
    #[inline]
    pub fn of_one(limit: LimitId, step: &LimitStep) -> Self {
        let status = LimitStatus::new(limit, step);
        if step.admitted { Self::Admitted(status) } else { Self::Limited(status) }
    }
}

impl LimitStatus {
    /// The status of a client that is held for a time, whatever its limits say.
    pub fn held(limit: LimitId, wait_us: u64) -> Self {
        Self { limit, remaining: 0, retry_after_us: NonZeroU64::new(wait_us), reset_after_us: wait_us }
    }

    /// [`Self::retry_after_us`] as a plain number.
    #[inline]
    pub fn wait_us(&self) -> Option<u64> {
        self.retry_after_us.map(NonZeroU64::get)
    }

    /// The longer wait of the two, for a client that is held and may also be over a limit.
    #[must_use]
    pub fn or_longer(self, limited: Option<Self>) -> Self {
        match limited {
            // For one limit, both the retry time and the reset time are kept.
            Some(mut limited) if limited.limit == self.limit => {
                limited.extend_wait(self.wait_us().unwrap_or(0));
                limited
            }
            Some(limited) if limited.retry_after_us > self.retry_after_us => limited,
            _ => self,
        }
    }

    /// Makes the wait at least `wait_us`.
    pub fn extend_wait(&mut self, wait_us: u64) {
        self.retry_after_us = self.retry_after_us.max(NonZeroU64::new(wait_us));
        self.reset_after_us = self.reset_after_us.max(wait_us);
    }

    /// Subtracts elapsed time. A retry time stays at least 1 µs.
    pub fn subtract_elapsed(&mut self, elapsed_us: u64) {
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

/// Why a request cannot be decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidRequest {
    /// The cost is 0.
    ZeroCost,
    /// The cost exceeds the capacity of a limit, so no wait helps.
    CostAboveLimit {
        /// The rule.
        rule: String,
        /// Its limit.
        limit: u32,
        /// The cost.
        cost: u64,
    },
    /// The endpoint is longer than [`LONGEST_ENDPOINT`].
    EndpointTooLong,
    /// A rule counts requests in flight, and the door does not see requests end.
    EndUnknown {
        /// The rule.
        rule: String,
    },
    /// There is no key, user, tenant, address or custom identity.
    NoIdentity,
    /// The limit that the request states cannot be enforced.
    InvalidLimit(LimitError),
}

impl fmt::Display for InvalidRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroCost => f.write_str("the cost must be at least 1"),
            Self::CostAboveLimit { rule, limit, cost } => {
                write!(f, "a cost of {cost} can never pass: rule `{rule}` holds at most {limit}")
            }
            Self::EndUnknown { rule } => {
                write!(f, "rule `{rule}` counts requests in flight, and this door does not see when they end")
            }
            Self::EndpointTooLong => write!(f, "the endpoint is longer than {LONGEST_ENDPOINT} bytes"),
            Self::NoIdentity => {
                f.write_str("there is no identity: give at least one of key, user, tenant, ip or ids")
            }
            Self::InvalidLimit(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for InvalidRequest {}

/// Refuses requests that are invalid under any rules.
#[inline]
pub fn validate(request: &Request<'_>) -> Result<(), InvalidRequest> {
    if request.cost == 0 {
        Err(InvalidRequest::ZeroCost)
    } else if request.endpoint.len() > LONGEST_ENDPOINT {
        Err(InvalidRequest::EndpointTooLong)
    } else if !request.has_identity() {
        Err(InvalidRequest::NoIdentity)
    } else {
        Ok(())
    }
}

/// Folds the steps of a request's charges into an outcome.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutcomeFold {
    refusal: Option<LimitStatus>,
    tightest: Option<LimitStatus>,
    /// A shadow limit that would have refused.
    pub shadowed: Option<LimitId>,
    /// The first limit that was exceeded and only flags.
    pub flagged: Option<LimitId>,
    /// The first limit whose soft threshold was reached.
    pub soft: Option<LimitId>,
    /// The shadow limit with the fewest tokens left, of those that would admit.
    pub shadow_admitted: Option<(LimitId, u32)>,
}

impl OutcomeFold {
    /// Adds one charge. A charge whose cost exceeds the limit has no step.
    #[inline]
    pub fn add(&mut self, charge: &Charge<'_>, step: &LimitStep) {
        let status = LimitStatus::new(charge.id, step);
        match (charge.enforced, step.admitted) {
            (true, false) => {
                if self.refusal.is_none_or(|longest| longest.retry_after_us < status.retry_after_us) {
                    self.refusal = Some(status);
                }
            }
            (true, true) => {
                self.add_soft(charge, step);
                self.add_admitted(status);
            }
            (false, false) => match charge.over {
                OverLimitEffect::Shadow => self.shadowed = Some(charge.id),
                OverLimitEffect::Flag => {
                    self.flagged = self.flagged.or(Some(charge.id));
                    // The request is admitted, so there is no wait.
                    self.add_admitted(LimitStatus { retry_after_us: None, ..status });
                }
                OverLimitEffect::Tolerated => {}
            },
            (false, true) => match charge.over {
                OverLimitEffect::Flag => {
                    self.add_soft(charge, step);
                    self.add_admitted(status);
                }
                OverLimitEffect::Shadow => {
                    if self.shadow_admitted.is_none_or(|(_, remaining)| step.remaining < remaining) {
                        self.shadow_admitted = Some((charge.id, step.remaining));
                    }
                }
                OverLimitEffect::Tolerated => {}
            },
        }
    }

    #[inline]
    fn add_admitted(&mut self, status: LimitStatus) {
        if self.tightest.is_none_or(|tightest| status.remaining < tightest.remaining) {
            self.tightest = Some(status);
        }
    }

    #[inline]
    fn add_soft(&mut self, charge: &Charge<'_>, step: &LimitStep) {
        if step.remaining < charge.limit.soft_floor {
            self.soft = self.soft.or(Some(charge.id));
        }
    }

    /// Whether no enforced limit refuses, so that the steps are committed.
    #[inline]
    pub fn admits(&self) -> bool {
        self.refusal.is_none()
    }

    /// The outcome of the charges added so far.
    #[inline]
    pub fn outcome(&self) -> Outcome {
        match (self.refusal, self.tightest) {
            (Some(refusal), _) => Outcome::Limited(refusal),
            (None, Some(tightest)) => Outcome::Admitted(tightest),
            (None, None) => Outcome::Unlimited,
        }
    }
}
