//! The decisions of the busiest rules over time, in fixed memory.

use super::live_figures::DecisionGroups;
use super::live_series::LiveRange;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::sync::Arc;
use utoipa::ToSchema;

/// The most rules that are followed.
const MOST_RULES: usize = 50;
/// The slots of a range.
const SLOTS: usize = 60;

/// The decisions of a rule in a range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LiveRule {
    /// The id of the rule.
    pub id: String,
    /// Requests admitted in the range.
    pub allowed: u64,
    /// Requests refused or delayed in the range.
    pub limited: u64,
    /// Requests refused or delayed in each sixtieth of the range, the oldest first.
    pub spark: Vec<u64>,
}

/// Counts of one slot.
#[derive(Clone, Copy, Debug, Default)]
struct RuleSlot {
    /// The number of the slot since 1970.
    number: u64,
    allowed: u64,
    limited: u64,
}

#[derive(Clone, Debug)]
struct SlotRing {
    slot_seconds: u64,
    slots: [RuleSlot; SLOTS],
}

impl SlotRing {
    fn new(range: LiveRange) -> Self {
        let slot_seconds = range.points() * range.step_seconds() / SLOTS as u64;
        Self { slot_seconds, slots: [RuleSlot::default(); SLOTS] }
    }

    fn add(&mut self, second: u64, groups: &DecisionGroups) {
        let number = second / self.slot_seconds;
        let slot = &mut self.slots[(number % SLOTS as u64) as usize];
        if slot.number != number {
            *slot = RuleSlot { number, ..RuleSlot::default() };
        }
        slot.allowed = slot.allowed.saturating_add(groups.allowed);
        slot.limited = slot.limited.saturating_add(groups.limited);
    }

    /// The slots up to the one of `second`, the oldest first.
    fn slots(&self, second: u64) -> impl Iterator<Item = RuleSlot> + '_ {
        let last = second / self.slot_seconds;
        (0..SLOTS as u64).rev().map(move |back| {
            let number = last.saturating_sub(back);
            let slot = self.slots[(number % SLOTS as u64) as usize];
            if slot.number == number { slot } else { RuleSlot::default() }
        })
    }

    fn total(&self, second: u64) -> u64 {
        let decisions = self.slots(second).map(|slot| slot.allowed.saturating_add(slot.limited));
        decisions.fold(0, u64::saturating_add)
    }
}

#[derive(Debug)]
struct RuleTrack {
    rule: Arc<str>,
    short: SlotRing,
    long: SlotRing,
    /// Since the rule is followed.
    totals: DecisionGroups,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct RuleTracks(Vec<RuleTrack>);

impl RuleTracks {
    /// Counts decisions of `rule` in `second`. If too many rules are followed, it takes the place of one that had fewer
    /// decisions in the last five minutes.
    pub(crate) fn add(&mut self, rule: &Arc<str>, second: u64, groups: &DecisionGroups) {
        if rule.is_empty() || groups.total() == 0 {
            return;
        }
        let Some(track) = self.place(rule, second, groups.total()) else { return };
        track.short.add(second, groups);
        track.long.add(second, groups);
        track.totals += groups;
    }

    fn place(&mut self, rule: &Arc<str>, second: u64, total: u64) -> Option<&mut RuleTrack> {
        if let Some(known) = self.0.iter().position(|track| track.rule == *rule) {
            return self.0.get_mut(known);
        }
        if self.0.len() >= MOST_RULES {
            let totals = self.0.iter().map(|track| track.short.total(second));
            let (least, least_total) = totals.enumerate().min_by_key(|(_, total)| *total)?;
            if least_total >= total {
                return None;
            }
            self.0.swap_remove(least);
        }
        self.0.push(RuleTrack {
            rule: Arc::clone(rule),
            short: SlotRing::new(LiveRange::FiveMinutes),
            long: SlotRing::new(LiveRange::Hour),
            totals: DecisionGroups::default(),
        });
        self.0.last_mut()
    }

    /// The rules with decisions in `range`, which ends with `second`: those with the largest share limited first.
    pub(crate) fn list(&self, range: LiveRange, second: u64) -> Vec<LiveRule> {
        let mut rules: Vec<LiveRule> = self.0.iter().map(|track| track.shown(range, second)).collect();
        rules.retain(|rule| rule.allowed + rule.limited > 0);
        let share = |rule: &LiveRule| rule.limited as f64 / (rule.allowed + rule.limited) as f64;
        rules.sort_by(|a, b| {
            let by_share = share(b).total_cmp(&share(a));
            by_share.then((b.allowed + b.limited).cmp(&(a.allowed + a.limited))).then(a.id.cmp(&b.id))
        });
        rules
    }

    /// The `count` rules with the most decisions, and those decisions.
    pub(crate) fn busiest(&self, count: usize) -> Vec<(Arc<str>, DecisionGroups)> {
        let mut rules: Vec<_> = self.0.iter().map(|track| (Arc::clone(&track.rule), track.totals)).collect();
        rules.sort_by_key(|(_, totals)| Reverse(totals.total()));
        rules.truncate(count);
        rules
    }
}

impl RuleTrack {
    fn shown(&self, range: LiveRange, second: u64) -> LiveRule {
        let ring = match range {
            LiveRange::FiveMinutes => &self.short,
            LiveRange::Hour => &self.long,
        };
        let mut shown = LiveRule { id: self.rule.to_string(), ..LiveRule::default() };
        for slot in ring.slots(second) {
            shown.allowed = shown.allowed.saturating_add(slot.allowed);
            shown.limited = shown.limited.saturating_add(slot.limited);
            shown.spark.push(slot.limited);
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_800_000_000;

    fn groups(allowed: u64, limited: u64) -> DecisionGroups {
        DecisionGroups { allowed, limited, ..DecisionGroups::default() }
    }

    #[test]
    fn rules_are_listed_by_share_limited_with_sparklines() {
        let mut tracks = RuleTracks::default();
        for second in 0..300 {
            tracks.add(&"api".into(), START + second, &groups(9, 1));
            tracks.add(&"login".into(), START + second, &groups(1, 1));
            tracks.add(&"".into(), START + second, &groups(100, 0));
        }
        let listed = tracks.list(LiveRange::FiveMinutes, START + 299);
        let shown: Vec<_> =
            listed.iter().map(|rule| (rule.id.as_str(), rule.allowed, rule.limited)).collect();
        assert_eq!(shown, [("login", 300, 300), ("api", 2_700, 300)]);
        assert_eq!(listed[0].spark, [5; 60]);
        let hour = tracks.list(LiveRange::Hour, START + 299);
        assert_eq!((hour[1].allowed, &hour[1].spark[55..]), (2_700, &[60, 60, 60, 60, 60][..]));
        let later = tracks.list(LiveRange::FiveMinutes, START + 449);
        assert_eq!((later[0].limited, later[0].spark[29], later[0].spark[30]), (150, 5, 0));
        assert!(tracks.list(LiveRange::FiveMinutes, START + 600).is_empty());
        assert_eq!(tracks.busiest(1)[0].1, groups(2_700, 300));
    }

    #[test]
    fn the_busiest_rules_are_kept() {
        let mut tracks = RuleTracks::default();
        for number in 0..MOST_RULES as u64 {
            tracks.add(&format!("rule {number}").into(), START, &groups(10 + number, 0));
        }
        tracks.add(&"quiet".into(), START, &groups(10, 0));
        tracks.add(&"busy".into(), START, &groups(11, 0));
        let listed = tracks.list(LiveRange::FiveMinutes, START);
        assert_eq!(listed.len(), MOST_RULES);
        let has = |id: &str| listed.iter().any(|rule| rule.id == id);
        assert!(has("busy") && has("rule 1") && !has("quiet") && !has("rule 0"));
    }
}
