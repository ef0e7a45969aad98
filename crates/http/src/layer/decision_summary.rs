//! A decision, as logs tell it.

use tollgate_limiter::Decision;
use tollgate_limiter::metrics::{DecisionOutcome, KeyPart};

/// What was decided about a request: an extension of its response, if the layer is built
/// [with summaries](super::RateLimitLayer::with_summaries).
#[derive(Clone, Debug)]
pub struct DecisionSummary {
    /// The decision.
    pub decision: Decision,
    /// Its outcome.
    pub outcome: DecisionOutcome,
    /// The key by which the rule that decided counts, without the route; if no rule did, the client.
    pub key: Vec<KeyPart>,
}
