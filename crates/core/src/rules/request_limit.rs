//! A limit that a request states itself: a rule set with one rule and one limit, which is charged by a key that the request
//! states too.
//!
//! Such a limit is never leased, because its numbers may change from one request to the next. Its states are named like
//! those of rules, by a name and the algorithm and not by the numbers: requests that state other numbers for the same key
//! find its tokens. Only windows of another length are states of their own.

use super::ruleset::{LimitId, Rule, RuleSet, RuleSetParts, RuleSizes};
use super::selection::{CellKind, Charge, OverLimitEffect};
use super::written::{Consistency, OnExceed, OnStoreFailure};
use crate::algorithm::{Algorithm, StateKind};
use crate::key::{Dimension, Identity, Ipv6Prefix, KeySeed, StateKey};
use crate::limit::{Limit, LimitError, LimitSize};
use smallvec::SmallVec;

/// The rule in decisions, metrics and logs about limits that requests state.
pub const REQUEST_LIMIT: &str = "request_limit";
/// The identity by which such a limit counts.
pub const REQUEST_KEY: &str = "key";
/// The name of the states. No rule can have it, because of the space: they are never those of a rule.
const STATE_NAME: &str = "request limit";

impl RuleSet {
    /// The rule set of a limit that a request states.
    pub fn of_request_limit(
        algorithm: Algorithm,
        size: LimitSize,
        on_store_failure: OnStoreFailure,
    ) -> Result<Self, LimitError> {
        if algorithm.state_kind() == StateKind::InFlight {
            return Err(LimitError::out_of_range(
                "a request cannot state a limit of requests in flight",
                "write a rule",
            ));
        }
        let limit = Limit::new(STATE_NAME, algorithm, size)?;
        let rule = Rule {
            id: REQUEST_LIMIT.to_owned(),
            on_exceed: OnExceed::Reject,
            penalty: None,
            soft: None,
            on_store_failure,
            consistency: Consistency::Strict,
            leasing: Default::default(),
            key: SmallVec::from_iter([Dimension::Custom(REQUEST_KEY.to_owned())]),
            ipv6_prefix: Ipv6Prefix::default(),
            tier: None,
            domains: Vec::new(),
            methods: Default::default(),
            client: Default::default(),
            exactly: None,
            except: Default::default(),
            replaces: Vec::new(),
            endpoints: None,
            fallback: false,
            needs_address: false,
            sizes: RuleSizes::default(),
        };
        Ok(Self::new(RuleSetParts {
            rules: vec![rule],
            limits: vec![limit],
            owners: vec![0],
            on_store_failure,
            ..RuleSetParts::default()
        }))
    }

    /// The charge of `key` under the limit of [`RuleSet::of_request_limit`]. `seed` hashes the key.
    pub fn charge_key(&self, key: &str, seed: &KeySeed) -> Charge<'_> {
        let id = LimitId(0);
        let limit = self.limit(id);
        let client = seed.chain(0, &Identity::Custom(REQUEST_KEY, key));
        Charge {
            limit,
            id,
            key: StateKey::new(client, limit.state_id),
            client,
            enforced: true,
            over: OverLimitEffect::default(),
            cell: CellKind::Own,
        }
    }
}
