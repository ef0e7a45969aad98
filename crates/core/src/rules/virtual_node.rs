//! A node on a virtual clock: the smallest thing that decides as the engine does. It runs the tests that
//! stand beside rules, and other tests hold the engine against it.

use super::compile::Loaded;
use super::lists::Listed;
use super::ruleset::RuleSet;
use super::selection::{Charges, Selection};
use crate::decision::{Fold, Invalid, Outcome, validate};
use crate::key::Seed;
use crate::limit::State;
use crate::request::Request;
use std::collections::HashMap;
use std::sync::LazyLock;

/// Any seed will do: nobody attacks a virtual node.
static SEED: LazyLock<Seed> = LazyLock::new(|| Seed::new([0x746f_6c6c, 0x6761_7465]));

/// The states of all keys under a rule set.
#[derive(Debug, Default)]
pub struct VirtualNode {
    states: HashMap<u64, State>,
}

impl VirtualNode {
    /// Decides `request` at `now_us` as the engine would.
    pub fn check(&mut self, loaded: &Loaded, request: &Request<'_>, now_us: u64) -> Result<Outcome, Invalid> {
        validate(request)?;
        match loaded.lists.standing(request, now_us).listed {
            Some(Listed::Denied) => return Ok(Outcome::Denied),
            Some(Listed::Allowed) => return Ok(Outcome::Unlimited),
            None => {}
        }
        let charges = charges(&loaded.rules, request);
        let mut fold = Fold::default();
        let mut writes = Vec::new();
        for charge in &charges {
            // Each takes one place, and on a virtual clock gives it back when it runs out.
            let cost = if charge.limit.longest_in_flight_us().is_some() { 1 } else { request.cost };
            let Some(cost) = u32::try_from(cost).ok().filter(|cost| *cost <= charge.limit.quota) else {
                if charge.enforced {
                    let rule = loaded.rules.rule_of(charge.id).id.clone();
                    return Err(Invalid::CostAboveLimit {
                        rule,
                        limit: charge.limit.quota,
                        cost: request.cost,
                    });
                }
                continue;
            };
            let (step, next) = charge.limit.step_state(self.states.get(&charge.key), now_us, cost);
            fold.add(charge, &step);
            writes.extend(next.map(|state| (charge.key, step.admitted, state)));
        }
        for (key, spends, state) in writes {
            if fold.admits() || !spends {
                self.states.insert(key, state);
            }
        }
        Ok(fold.outcome())
    }
}

/// The charges of `request`, selected without any memory.
pub(super) fn charges<'r>(rules: &'r RuleSet, request: &Request<'_>) -> Charges<'r> {
    let mut charges = Charges::new();
    let (client, path) = (rules.match_client(request), rules.match_path(request.path()));
    let mut selection = Selection::default();
    rules.join_into(&client, &path, &mut selection);
    rules.charge(&selection, request, &SEED.hashes(request), &mut charges);
    charges
}
