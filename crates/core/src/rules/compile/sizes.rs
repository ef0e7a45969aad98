//! Compiles the sizes of a rule: common, by tier, by key, and of its safety net.

use super::{RuleCompiler, inherited};
use crate::algorithm::Algorithm;
use crate::document::DocumentPath;
use crate::key::Dimension;
use crate::limit::{Limit, LimitError, LimitNumber, LimitSize};
use crate::rate::{Rate, duration_text};
use crate::rules::pattern::Glob;
use crate::rules::ruleset::{Rule, RuleSizes, SizeId, SizesByTier};
use crate::rules::size_layers::{SizeLayer, StatedSize, sizes_of};
use crate::rules::written::{OnExceed, WrittenRule};
use siphasher::sip::SipHasher13;
use smallvec::SmallVec;
use std::collections::HashSet;
use std::net::IpAddr;

const REJECTS_ALL_HINT: &str = "a limit must be at least 1; to deny a client, use `deny:`";

impl RuleCompiler<'_> {
    /// Reports limits of `defaults` and tiers that would reject every request, also if no rule takes them yet. Those that
    /// a rule takes are reported once.
    pub(super) fn check_zeros(&mut self) {
        let root = DocumentPath::root();
        let mut zeros = SizeLayer::of_defaults(&self.file.defaults, &root.field("defaults")).zeros();
        for (name, tier) in &self.file.tiers {
            zeros.extend(SizeLayer::of_tier(tier, &root.field("tiers").field(name)).zeros());
        }
        for path in zeros {
            self.document.error(&path, LimitError::RejectsAll.to_string(), REJECTS_ALL_HINT);
        }
    }

    /// The sizes of a rule: common, by tier and by key. `None` if it has none.
    pub(super) fn sizes(&mut self, rule: &WrittenRule, path: &DocumentPath) -> Option<RuleSizes> {
        let common = self.by_tier(rule, None, path);
        let mut sizes = RuleSizes { common, ..RuleSizes::default() };
        for (key, params) in &rule.overrides {
            let path = path.field("override").field(key);
            if !Glob::new(key).is_exact()
                || key.contains('/') && crate::rules::pattern::network(key).is_some()
            {
                let hint = "for several clients, write another rule with a `match`";
                self.document.error_at_name(&path, "an override is for one key, not a pattern", hint);
            }
            let own = self.by_tier(rule, Some(&SizeLayer::of_params(params, &path)), &path);
            let name = key.parse::<IpAddr>().map_or_else(|_| key.clone(), |ip| ip.to_canonical().to_string());
            sizes.by_key.insert(name, own);
        }
        let stated = self.states_a_size(rule, path);
        self.check_clients_are_limited(rule, stated, &sizes, path);
        (stated || !sizes.common.tiers.is_empty()).then_some(sizes)
    }

    /// Whether a rule has a size for clients of no tier.
    fn states_a_size(&self, rule: &WrittenRule, path: &DocumentPath) -> bool {
        let root = DocumentPath::root();
        let of_tier = rule.tier.as_ref().and_then(|name| self.file.tiers.get(name));
        SizeLayer::of_rule(rule, path).states_a_size()
            || SizeLayer::of_defaults(&self.file.defaults, &root).states_a_size()
            || of_tier.is_some_and(|tier| SizeLayer::of_tier(tier, &root).states_a_size())
    }

    /// The size for each tier, with the layer `over` on top.
    fn by_tier(
        &mut self,
        rule: &WrittenRule,
        over: Option<&SizeLayer<'_>>,
        path: &DocumentPath,
    ) -> SizesByTier {
        let root = DocumentPath::root();
        let file = self.file;
        let defaults = SizeLayer::of_defaults(&file.defaults, &root.field("defaults"));
        // Errors in the rule's own numbers are reported at the rule, also when found for an override.
        let rule_path = match over {
            Some(_) => path.parent().parent(),
            None => path.clone(),
        };
        let own = SizeLayer::of_rule(rule, &rule_path);
        let layer_of = |name: &String, tier| SizeLayer::of_tier(tier, &root.field("tiers").field(name));
        let of_this_tier = rule.tier.as_ref().and_then(|name| Some(layer_of(name, file.tiers.get(name)?)));

        let mut sizes = SizesByTier::default();
        if self.states_a_size(rule, path) || over.is_some_and(SizeLayer::covers) {
            let layers = [Some(&defaults), of_this_tier.as_ref(), Some(&own), over];
            sizes.default = self.size(rule, &layers.into_iter().flatten().collect::<Vec<_>>(), path);
        }
        if rule.tier.is_none() && !own.states_a_size() {
            for (name, tier) in &file.tiers {
                let layer = layer_of(name, tier);
                if !layer.states_a_size() {
                    continue;
                }
                let layers = [Some(&defaults), Some(&layer), Some(&own), over];
                let layers: Vec<&SizeLayer<'_>> = layers.into_iter().flatten().collect();
                if let Some(size) = self.size(rule, &layers, path) {
                    self.separate_states(size, &format!("tier {name}"));
                    sizes.tiers.push((self.tier_ids[name], size));
                }
            }
        }
        sizes
    }

    fn check_clients_are_limited(
        &mut self,
        rule: &WrittenRule,
        stated: bool,
        sizes: &RuleSizes,
        path: &DocumentPath,
    ) {
        let root = DocumentPath::root();
        let damaged = |part: &str| self.document.is_damaged(&root.field(part));
        let unknown_tier = rule.tier.as_ref().is_some_and(|tier| self.is_unknown(tier));
        if stated || unknown_tier || damaged("defaults") || damaged("tiers") {
            return;
        }
        if sizes.common.tiers.is_empty() {
            self.document.missing(
                path,
                format!("rule `{}` has no limit", rule.id),
                "add `limit: 100/min`, or `params`, or a limit in its tier or in `defaults`",
            );
            return;
        }
        let default = self.file.defaults.tier.as_ref();
        let by_this = sizes.common.tiers.iter().any(|(tier, _)| Some(*tier) == self.parts.default_tier);
        let by_another =
            self.file.rules.iter().any(|rule| default.is_some() && rule.tier.as_ref() == default);
        if !by_this && !by_another {
            self.document.warning(
                path,
                format!("rule `{}` does not limit clients that are in no tier", rule.id),
                "set their tier with `defaults: { tier: … }`, or add a limit to `defaults`",
            );
        }
    }

    /// Builds the limits that result from the layers, later ones over earlier ones.
    fn size(&mut self, rule: &WrittenRule, layers: &[&SizeLayer<'_>], path: &DocumentPath) -> Option<SizeId> {
        // Without a valid algorithm the numbers of a rule cannot be checked.
        if layers.iter().any(|layer| self.document.is_removed(&layer.path.field("algorithm"))) {
            return None;
        }
        let algorithm = layers.iter().rev().find_map(|layer| layer.algorithm).unwrap_or_default();
        let sizes = sizes_of(&rule.id, algorithm, layers, &mut self.document)?;
        let several = sizes.len() > 1;
        let on_exceed = rule.on_exceed.as_ref().or(self.file.defaults.on_exceed.as_ref());
        let mut seen = HashSet::new();
        for stated in &sizes {
            if several && !seen.insert(stated.period_us) {
                let hint = "the larger of the two never decides; remove it";
                self.document.error(&stated.at, "there is another limit with the same period", hint);
                return None;
            }
        }
        let first = self.parts.limits.len() as u32;
        for stated in &sizes {
            let policy = policy_name(&rule.id, several, stated);
            let whole = Limit::new(&policy, algorithm, stated.size);
            let limit = match (whole, shaper_size(algorithm, on_exceed, stated)) {
                (Ok(whole), Some(evenly)) => Limit::new(&policy, algorithm, evenly).map(|mut limit| {
                    (limit.shown_quota, limit.window_seconds) = (whole.shown_quota, whole.window_seconds);
                    limit
                }),
                (whole, _) => whole,
            };
            match limit {
                Ok(limit) => {
                    self.parts.limits.push(limit);
                    self.parts.owners.push(0);
                }
                Err(error) => {
                    self.explain_limit_error(algorithm, &error, stated, path);
                    return None;
                }
            }
        }
        self.parts.sizes.push(first..self.parts.limits.len() as u32);
        Some(self.parts.sizes.len() as SizeId - 1)
    }

    fn explain_limit_error(
        &mut self,
        algorithm: Algorithm,
        error: &LimitError,
        stated: &StatedSize,
        whole: &DocumentPath,
    ) {
        let name = algorithm.name();
        let hint = match error {
            LimitError::OutOfRange { message, hint } => {
                self.document.error(&stated.at, message.as_str(), *hint);
                return;
            }
            LimitError::RejectsAll => {
                self.document.error(&stated.at, error.to_string(), REJECTS_ALL_HINT);
                return;
            }
            LimitError::Missing(_) if self.document.is_damaged(whole) => return,
            LimitError::Missing(LimitNumber::Window | LimitNumber::Rate) if stated.is_bare => {
                self.document.error(
                    &stated.at,
                    "this limit has no period",
                    "write it like 100/min or 10/s, or add `params: { window: 60 }`",
                );
                return;
            }
            LimitError::Missing(_) if algorithm == Algorithm::Concurrency => "add `limit: 10`",
            LimitError::Missing(LimitNumber::Limit) => {
                "add `limit: 100/min`, or `params: { limit: 100, window: 60 }`"
            }
            LimitError::Missing(LimitNumber::Window) => {
                "add `window: 60`, in seconds, or write the limit as `100/min`"
            }
            LimitError::Missing(LimitNumber::Rate) if algorithm == Algorithm::LeakyBucket => {
                "add `leak_rate: 1.67`, per second, or write `limit: 100/min`"
            }
            LimitError::Missing(LimitNumber::Rate) => {
                "add `refill_rate: 1.67`, per second, or write `limit: 100/min`"
            }
            LimitError::Missing(LimitNumber::Capacity) => "add `capacity: 100`, or write `limit: 100/min`",
        };
        self.document.error(&stated.at, format!("{error} for this {name}"), hint);
    }

    /// The factor of a rule's safety net, and its path. A rule that counts by address has none.
    pub(super) fn net_factor(
        &mut self,
        written: &WrittenRule,
        key: &[Dimension],
        path: &DocumentPath,
    ) -> Option<(u32, DocumentPath)> {
        let (own, default) = (written.ip_safety_net.as_ref(), self.file.defaults.ip_safety_net.as_ref());
        let (factor, path) = inherited(own, default, "ip_safety_net", path)?;
        if *factor == 0 {
            self.document.error(&path, "a safety net of 0 would refuse all requests", "10 is a good start");
            return None;
        }
        if key == [Dimension::Ip] {
            if written.ip_safety_net.is_some() {
                let message = "this rule already counts by address, so the safety net never decides";
                self.document.warning(&path, message, "remove it");
            }
            return None;
        }
        Some((*factor, path))
    }

    /// The same rule per address, `factor` times as large.
    pub(super) fn safety_net(&mut self, rule: &Rule, factor: u32, net_path: &DocumentPath) -> Rule {
        let common = self.scale_all(&rule.sizes.common, factor, "", net_path);
        let keys = rule.sizes.by_key.iter();
        let keys = keys
            .map(|(key, own)| (key.clone(), self.scale_all(own, factor, &format!("key {key}"), net_path)));
        let sizes = RuleSizes { common, by_key: keys.collect() };
        Rule {
            id: format!("{}.ip", rule.id),
            key: SmallVec::from_iter([Dimension::Ip]),
            needs_address: true,
            // Many clients may share an address, and most of them wait as told.
            penalty: None,
            sizes,
            ..rule.clone()
        }
    }

    fn scale_all(
        &mut self,
        sizes: &SizesByTier,
        factor: u32,
        whose: &str,
        path: &DocumentPath,
    ) -> SizesByTier {
        let default = sizes.default.and_then(|size| self.scale(size, factor, whose, path));
        let mut tiers = Vec::new();
        for (tier, size) in &sizes.tiers {
            let name = &self.parts.tiers[*tier as usize].name;
            let whose = if whose.is_empty() { format!("tier {name}") } else { whose.to_owned() };
            tiers.extend(self.scale(*size, factor, &whose, path).map(|size| (*tier, size)));
        }
        SizesByTier { default, tiers }
    }

    /// A size `factor` times as large. Each size of a rule has its own safety net, with states of its own: a large client
    /// must not spend the net of small clients behind the same address.
    fn scale(&mut self, size: SizeId, factor: u32, whose: &str, path: &DocumentPath) -> Option<SizeId> {
        let range = self.parts.sizes[size as usize].clone();
        let scaled: Option<Vec<Limit>> =
            range.map(|limit| self.parts.limits[limit as usize].widened(factor)).collect();
        let Some(scaled) = scaled else {
            let message = "this multiple of the limit is too large to be counted exactly";
            self.document.error(path, message, "use a smaller factor");
            return None;
        };
        let first = self.parts.limits.len() as u32;
        self.parts.owners.extend(scaled.iter().map(|_| 0));
        self.parts.limits.extend(scaled);
        self.parts.sizes.push(first..self.parts.limits.len() as u32);
        let size = self.parts.sizes.len() as SizeId - 1;
        if !whose.is_empty() {
            self.separate_states(size, whose);
        }
        Some(size)
    }

    /// Gives a size its own states. Where a key does not determine the tier (several clients behind one address), the
    /// small limit would truncate a state that it shared with a large one.
    fn separate_states(&mut self, size: SizeId, whose: &str) {
        let mark = SipHasher13::new().hash(whose.as_bytes());
        for limit in self.parts.sizes[size as usize].clone() {
            self.parts.limits[limit as usize].state_id ^= mark;
        }
    }
}

/// The size of a leaky bucket with a queue: unless a burst is stated, requests leave one by one. `None` for all other
/// limits.
fn shaper_size(algorithm: Algorithm, on_exceed: Option<&OnExceed>, stated: &StatedSize) -> Option<LimitSize> {
    let is_shaper = algorithm == Algorithm::LeakyBucket && matches!(on_exceed, Some(OnExceed::Queue(_)));
    if !is_shaper || stated.has_burst {
        return None;
    }
    let LimitSize { capacity, rate, window_us } = stated.size;
    let rate = rate.or_else(|| Rate::per(capacity?, window_us?));
    Some(LimitSize { capacity: Some(1), rate, window_us: None })
}

/// The only limit of a rule has the rule's name. One of several also has its period, which survives a reordering.
fn policy_name(id: &str, several: bool, stated: &StatedSize) -> String {
    match stated.period_us {
        Some(period_us) if several => format!("{id}.{}", duration_text(period_us)),
        _ => id.to_owned(),
    }
}
