//! One decision as a decision log tells it.

use super::DecisionOutcome;
use tollgate_core::request::Door;
use tollgate_core::time::UnixTime;

/// Receives decisions: refusals up to a rate, and a sample of the others. Called on the thread that decides, so it must
/// neither block nor wait.
pub trait DecisionObserver: Send + Sync + std::fmt::Debug {
    /// Takes note of a decision.
    fn record(&self, record: DecisionRecord);

    /// Counts records that were dropped before they were made, because there were too many refusals in a second.
    fn record_dropped(&self, records: u64);
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionRecord {
    /// When it was made.
    pub time: UnixTime,
    /// The door.
    pub door: Door,
    /// The outcome.
    pub outcome: DecisionOutcome,
    /// The rule that determined it; empty if none did.
    pub rule: String,
    /// The algorithm of that rule.
    pub algorithm: &'static str,
    /// The tier of the client; empty without one.
    pub tier: String,
    /// The route template of the path; empty if none matches.
    pub route: String,
    /// The key by which the rule counts; without a rule, the client.
    pub key: Vec<KeyPart>,
    /// The cost of the request.
    pub cost: u64,
    /// The stated limit.
    pub limit: Option<u32>,
    /// What is left of it.
    pub remaining: Option<u32>,
    /// The time until a retry is admitted, if the request was refused and that is known.
    pub retry_after_us: Option<u64>,
    /// Whether it was made without the store.
    pub degraded: bool,
    /// A rule in shadow mode that would have refused it.
    pub shadowed_by: Option<String>,
}

/// One identity of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPart {
    /// What it is: `api_key`, `user`, `tenant`, `ip`, `route`, or the name of a custom identity.
    pub kind: String,
    /// Its value.
    pub value: String,
    /// Whether the value is a credential, which logs must not show whole.
    pub is_credential: bool,
}
