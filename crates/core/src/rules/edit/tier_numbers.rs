//! Changes of the numbers of a tier.
//!
//! A file writes them as `limit: 100/min` with or without `burst`, as `params: { limit, window, burst }`, or as
//! `params: { capacity, refill_rate, window }`. The spelling and the unit of the file are kept: `limit: 500` for a tier
//! with `limit: 100/min` gives `limit: 500/min`.

use super::rule_text::RuleText;
use super::{RuleEditError, field};
use crate::algorithm::Algorithm;
use crate::document::DocumentPath;
use crate::limit::Limit;
use crate::rate::{LimitShorthand, Rate, duration_text, parse_duration_us};
use crate::rules::ruleset::RuleSet;
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;

/// Tiers that an error names.
const MOST_NAMED: usize = 20;

/// Numbers of a tier. Those that are absent stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierNumbers {
    /// The count per period: `500` keeps the period of the tier, `"500/min"` states it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<WrittenNumber>,
    /// The most requests at once. Without it, a tier whose capacity is its limit keeps that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// The period: seconds, or a duration such as `60s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<WrittenNumber>,
}

/// A number, or a text with a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum WrittenNumber {
    /// A whole number.
    Count(u64),
    /// A text such as `500/min` or `60s`.
    Text(String),
}

/// Not derived: the error of an untagged enum does not say what is expected.
impl<'de> Deserialize<'de> for WrittenNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WrittenNumberVisitor;

        impl Visitor<'_> for WrittenNumberVisitor {
            type Value = WrittenNumber;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number, or a text with a unit such as 500/min or 60s")
            }

            fn visit_u64<E: de::Error>(self, count: u64) -> Result<WrittenNumber, E> {
                Ok(WrittenNumber::Count(count))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WrittenNumber, E> {
                Ok(WrittenNumber::Text(text.to_owned()))
            }
        }

        deserializer.deserialize_any(WrittenNumberVisitor)
    }
}

/// Where the numbers of a tier are written.
struct NumberPlace {
    /// The tier, or the rule that is for this tier alone.
    base: DocumentPath,
    algorithm: Algorithm,
}

/// The requested numbers.
struct WantedNumbers {
    count: Option<u64>,
    /// Stated with the limit or as the window.
    period_us: Option<u64>,
    capacity: Option<u64>,
}

/// Sets the numbers of `tier`.
pub(super) fn set(text: &mut RuleText, tier: &str, numbers: &TierNumbers) -> Result<(), RuleEditError> {
    let wanted = WantedNumbers::new(numbers)?;
    let place = NumberPlace::find(text, tier)?;
    let has = |name: &str| text.get(&place.params(name)).is_some();
    if (has("capacity") || has("refill_rate") || has("leak_rate")) && !has("limit") {
        place.set_bucket(text, &wanted)
    } else {
        place.set_limit(text, tier, &wanted)
    }
}

impl WantedNumbers {
    fn new(numbers: &TierNumbers) -> Result<Self, RuleEditError> {
        let invalid = |message: String| RuleEditError::Invalid(message);
        let mut wanted = Self { count: None, period_us: None, capacity: numbers.capacity };
        match &numbers.limit {
            None => {}
            Some(WrittenNumber::Count(count)) => wanted.count = Some(*count),
            Some(WrittenNumber::Text(text)) => {
                let quota = LimitShorthand::parse(text).map_err(|error| invalid(error.to_string()))?;
                (wanted.count, wanted.period_us) = (Some(quota.amount), Some(quota.period_us));
            }
        }
        let window_us = match &numbers.window {
            None => None,
            Some(WrittenNumber::Count(seconds)) => Some(seconds.saturating_mul(1_000_000)),
            Some(WrittenNumber::Text(text)) => {
                Some(parse_duration_us(text).map_err(|error| invalid(error.to_string()))?)
            }
        };
        if let (Some(window), Some(period)) = (window_us, wanted.period_us)
            && window != period
        {
            return Err(invalid("the limit already has a period; remove `window`".to_owned()));
        }
        wanted.period_us = wanted.period_us.or(window_us);
        if wanted.count == Some(0) || wanted.capacity == Some(0) {
            let message = "a limit of 0 rejects all traffic; a limit must be at least 1, and a client is denied with the deny list";
            return Err(invalid(message.to_owned()));
        }
        if wanted.period_us == Some(0) {
            return Err(invalid("the window must be longer than 0".to_owned()));
        }
        if wanted.count.is_none() && wanted.period_us.is_none() && wanted.capacity.is_none() {
            return Err(invalid("give at least one of `limit`, `capacity` and `window`".to_owned()));
        }
        Ok(wanted)
    }

    fn are_those_of(&self, limit: &Limit) -> bool {
        let is = |wanted: Option<u64>, number: u32| wanted.is_none_or(|wanted| wanted == u64::from(number));
        let window = self.period_us.map(|period_us| period_us.div_ceil(1_000_000));
        (is(self.count, limit.shown_quota) || is(self.count, limit.quota))
            && is(self.capacity, limit.quota)
            && is(window, limit.window_seconds)
    }
}

impl NumberPlace {
    fn find(text: &RuleText, tier: &str) -> Result<Self, RuleEditError> {
        let in_tiers = field("tiers").field(tier);
        let rules = text.value().get("rules").and_then(Value::as_array).into_iter().flatten().enumerate();
        let (own, inheriting): (Vec<_>, Vec<_>) = rules.partition(|(_, rule)| states_numbers(rule));
        let has_tier = text.get(&in_tiers).is_some();
        let of_tier: Vec<_> =
            own.into_iter().filter(|(_, rule)| rule.get("tier").is_some_and(|name| name == tier)).collect();
        let is_in_tiers = text.get(&in_tiers).is_some_and(states_numbers);
        let base = match of_tier.as_slice() {
            _ if is_in_tiers => in_tiers,
            [(index, _)] => field("rules").index(*index),
            [] if has_tier => in_tiers,
            [] => return Err(RuleEditError::NotFound(unknown_tier(text.value(), tier))),
            [_, (second, _), ..] => {
                let message = format!("several rules have numbers for tier `{tier}`");
                let hint = "change the rules one by one, or move the numbers to `tiers:`";
                return Err(text.error(&field("rules").index(*second), &message, hint).into());
            }
        };
        let name_of = |value: Option<&Value>| value.and_then(|value| Algorithm::deserialize(value).ok());
        let algorithm = name_of(text.get(&base.field("algorithm")))
            .or_else(|| inheriting.iter().find_map(|(_, rule)| name_of(rule.get("algorithm"))))
            .or_else(|| name_of(text.get(&field("defaults").field("algorithm"))));
        Ok(Self { base, algorithm: algorithm.unwrap_or_default() })
    }

    fn params(&self, name: &str) -> DocumentPath {
        self.base.field("params").field(name)
    }

    /// `params: { capacity, refill_rate, window }`.
    fn set_bucket(&self, text: &mut RuleText, wanted: &WantedNumbers) -> Result<(), RuleEditError> {
        let rate_name =
            if text.get(&self.params("leak_rate")).is_some() { "leak_rate" } else { "refill_rate" };
        let rate_path = self.params(rate_name);
        let rate = text.get(&rate_path).map(plain_text);
        let window_us =
            text.get(&self.params("window")).and_then(|value| parse_duration_us(&plain_text(value)).ok());
        let capacity = text.get(&self.params("capacity")).and_then(Value::as_u64);
        let old = rate.as_deref().and_then(|rate| quota_of(rate, window_us));
        let follows = old.is_some_and(|(count, _)| Some(count) == capacity);

        if wanted.count.is_some() || wanted.period_us.is_some() {
            let period_us = wanted.period_us.or(old.map(|(_, period_us)| period_us));
            let count = wanted.count.or(old.map(|(count, _)| count));
            let (Some(period_us), Some(count)) = (period_us, count) else {
                let hint = "state it with the limit: `500/min`";
                return Err(text.error(&rate_path, "the period of this rate is unknown", hint).into());
            };
            let keeps_unit = rate.as_deref().filter(|rate| period_of(rate) == Some(period_us));
            text.set(&rate_path, written_quota(count, period_us, keeps_unit).into())?;
            if window_us.is_some_and(|window_us| window_us != period_us) {
                text.set(&self.params("window"), window_value(period_us))?;
            }
            if wanted.capacity.is_none() && follows {
                text.set(&self.params("capacity"), count.into())?;
            }
        }
        if let Some(capacity) = wanted.capacity {
            text.set(&self.params("capacity"), capacity.into())?;
        }
        Ok(())
    }

    /// `limit: 100/min`, or `params: { limit, window }`.
    fn set_limit(
        &self,
        text: &mut RuleText,
        tier: &str,
        wanted: &WantedNumbers,
    ) -> Result<(), RuleEditError> {
        let is_inside = text.get(&self.params("limit")).is_some()
            || text.get(&self.base.field("limit")).is_none()
                && text.get(&self.base.field("params")).is_some();
        let at = |name: &str| if is_inside { self.params(name) } else { self.base.field(name) };
        let limits = [self.base.field("limits"), self.params("limits")];
        let several = limits.into_iter().find(|path| text.get(path).is_some());
        let limit = text.get(&at("limit")).map(plain_text);
        let window_path = self.params("window");
        let window_us = text.get(&window_path).and_then(|value| parse_duration_us(&plain_text(value)).ok());
        let is_in_flight = self.algorithm == Algorithm::Concurrency;
        let old = limit.as_deref().and_then(|limit| {
            let count = limit.split('/').next()?.trim().replace('_', "").parse::<u64>().ok()?;
            Some((count, period_of(limit).or(window_us)))
        });
        let inherited = text.get(&field("defaults").field("limit")).map(plain_text);
        let inherited_us = inherited.as_deref().and_then(period_of);
        let count = wanted.count.or(old.map(|(count, _)| count));

        if wanted.count.is_some() || wanted.period_us.is_some() {
            let Some(count) = count else {
                let message = format!("tier `{tier}` has no single limit");
                return Err(text.error(&self.base, &message, "state `limit` too").into());
            };
            let old_us = old.and_then(|(_, period_us)| period_us);
            let known_us = if several.is_some() { None } else { old_us.or(inherited_us) };
            let period_us = wanted.period_us.or(known_us);
            let has_period = limit.as_deref().is_none_or(|limit| limit.contains('/'));
            let value = match period_us {
                _ if is_in_flight => count.into(),
                // A count with a window in `params`.
                Some(period_us) if !has_period && window_us.is_some() => {
                    if window_us != Some(period_us) {
                        text.set(&window_path, window_value(period_us))?;
                    }
                    count.into()
                }
                Some(period_us) => {
                    let keeps_unit = limit.as_deref().filter(|limit| period_of(limit) == Some(period_us));
                    written_quota(count, period_us, keeps_unit).into()
                }
                None => {
                    let message = format!("the limit of tier `{tier}` has no single period");
                    return Err(text
                        .error(&self.base, &message, "state it with the limit: `500/min`")
                        .into());
                }
            };
            if has_period && window_us.is_some() && window_us != period_us {
                text.remove(&window_path)?;
            }
            if let Some(several) = several {
                text.remove(&several)?;
            }
            text.set(&at("limit"), value)?;
        }
        if let Some(capacity) = wanted.capacity {
            self.set_burst(text, count, capacity, &at("burst"))?;
        }
        Ok(())
    }

    /// The capacity beside a limit: a burst, unless it is the limit itself.
    fn set_burst(
        &self,
        text: &mut RuleText,
        count: Option<u64>,
        capacity: u64,
        path: &DocumentPath,
    ) -> Result<(), RuleEditError> {
        if count == Some(capacity) {
            return Ok(text.remove(path)?);
        }
        let algorithm = self.algorithm.name();
        if self.algorithm.counts_windows() {
            let message =
                format!("a {algorithm} has no capacity of its own: its whole limit can be spent at once");
            return Err(text
                .error(&self.base, &message, "leave `capacity` out, or set it to the limit")
                .into());
        }
        let burst = if self.algorithm == Algorithm::Gcra { capacity.saturating_sub(1) } else { capacity };
        Ok(text.set(path, burst.into())?)
    }
}

/// Fails if no rule takes the numbers of `tier`, or other numbers come first: an operator would rely on those that were
/// set.
pub(super) fn verify_effect(
    tier: &str,
    numbers: &TierNumbers,
    before: Option<&RuleSet>,
    after: &RuleSet,
) -> Result<(), RuleEditError> {
    let limits = limits_of(after, tier);
    if limits.is_empty() {
        let message = format!(
            "no rule takes the numbers of tier `{tier}`: a rule without numbers of its own, or with `tier: {tier}`, would"
        );
        return Err(RuleEditError::Invalid(message));
    }
    let wanted = WantedNumbers::new(numbers)?;
    let is_changed = before.is_none_or(|before| limits_of(before, tier) != limits);
    if !is_changed && !limits.iter().any(|(_, limit)| wanted.are_those_of(limit)) {
        let rules: Vec<&str> = limits.iter().map(|(rule, _)| *rule).collect();
        let message = format!(
            "the change would have no effect: other numbers come first for tier `{tier}` in {}; change these rules",
            rules.join(", ")
        );
        return Err(RuleEditError::Invalid(message));
    }
    Ok(())
}

/// The limits of a tier, with the rules that apply them.
fn limits_of<'s>(rules: &'s RuleSet, tier: &str) -> Vec<(&'s str, &'s Limit)> {
    let by_rule = rules.rules().iter().flat_map(|rule| {
        let limits = rules.limits_by_tier(rule).filter(|(name, _)| *name == Some(tier));
        limits.map(|(_, limit)| (rule.id.as_str(), limit))
    });
    by_rule.collect()
}

/// That there is no such tier, and which there are.
fn unknown_tier(file: &Value, tier: &str) -> String {
    let declared =
        file.get("tiers").and_then(Value::as_object).into_iter().flatten().map(|(name, _)| name.as_str());
    let rules = file.get("rules").and_then(Value::as_array).into_iter().flatten();
    let mentioned = rules.filter_map(|rule| rule.get("tier")?.as_str());
    let known: BTreeSet<&str> = declared.chain(mentioned).collect();
    let known: Vec<&str> = known.into_iter().take(MOST_NAMED).collect();
    match known.as_slice() {
        [] => format!("there is no tier `{tier}`; the rules have none"),
        known => format!("there is no tier `{tier}`; there are {}", known.join(", ")),
    }
}

/// Whether a tier or rule has numbers of its own.
fn states_numbers(part: &Value) -> bool {
    const NAMES: [&str; 6] = ["limit", "burst", "limits", "capacity", "refill_rate", "leak_rate"];
    let has = |part: &Value| NAMES.iter().any(|name| part.get(name).is_some());
    has(part) || part.get("params").is_some_and(has)
}

/// The text of a number or a text.
fn plain_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn period_of(text: &str) -> Option<u64> {
    LimitShorthand::parse(text).ok().map(|quota| quota.period_us)
}

/// A rate as a count per period: as written, or per window for a decimal number per second.
fn quota_of(rate: &str, window_us: Option<u64>) -> Option<(u64, u64)> {
    if let Ok(quota) = LimitShorthand::parse(rate) {
        return Some((quota.amount, quota.period_us));
    }
    let (window_us, rate) = (window_us?, Rate::from_decimal(rate)?);
    // 1.67 a second are meant as 100 a minute, and give 100.2.
    let (per_tick, ticks) = rate.per_ticks(window_us);
    let count = (per_tick + ticks / 2).checked_div(ticks)?;
    Some((u64::try_from(count).ok()?, window_us))
}

/// `500/min`, with the unit as `known` writes it.
fn written_quota(count: u64, period_us: u64, known: Option<&str>) -> String {
    if let Some((amount, period)) = known.and_then(|known| known.split_once('/')) {
        let space = &amount[amount.trim_end().len()..];
        return format!("{count}{space}/{period}");
    }
    let period = duration_text(period_us);
    // `500/1min` reads better without the number.
    let unit = period.strip_prefix('1').filter(|unit| unit.starts_with(|c: char| c.is_ascii_alphabetic()));
    format!("{count}/{}", unit.unwrap_or(&period))
}

fn window_value(period_us: u64) -> Value {
    if period_us.is_multiple_of(1_000_000) {
        (period_us / 1_000_000).into()
    } else {
        duration_text(period_us).into()
    }
}
