//! The tiers of a rule and the limits of each, for those who show rules.

use super::ruleset::{Rule, RuleSet, SizeId};
use crate::limit::Limit;

impl RuleSet {
    /// The tier that a rule is for; none if it is for all.
    pub fn tier_of_rule(&self, rule: &Rule) -> Option<&str> {
        rule.tier.map(|tier| self.tiers[tier as usize].name.as_str())
    }

    /// The limits of a rule: those of clients without a tier of their own, then those of each tier. Overrides of single
    /// keys are left out.
    pub fn limits_by_tier<'s>(
        &'s self,
        rule: &'s Rule,
    ) -> impl Iterator<Item = (Option<&'s str>, &'s Limit)> + 's {
        let common = &rule.sizes.common;
        let own_tier = self.tier_of_rule(rule);
        let default = common.default.into_iter().map(move |size| (own_tier, size));
        let tiers = common.tiers.iter().map(|(tier, size)| {
            let name: &'s str = &self.tiers[*tier as usize].name;
            (Some(name), *size)
        });
        default
            .chain(tiers)
            .flat_map(|(tier, size)| self.limits_of(size).iter().map(move |limit| (tier, limit)))
    }

    fn limits_of(&self, size: SizeId) -> &[Limit] {
        let range = self.sizes[size as usize].clone();
        &self.limits[range.start as usize..range.end as usize]
    }
}
