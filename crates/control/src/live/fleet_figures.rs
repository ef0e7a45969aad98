//! The figures of all nodes over time: the sum of what each tells of itself.
//!
//! Nodes tell counts since their start, every few seconds. The difference to the last status belongs to the seconds since
//! that was read, by the clock of this node: clocks of other nodes do not matter. A node that starts again has another id
//! and counts from zero. What a node counted between its last status and its end is lost.

use super::live_figures::{DecisionGroups, LiveFigures};
use super::live_series::{LONGEST_SPREAD, LivePoint, LiveRange, LiveSeries};
use super::node_status::NodeStatus;
use super::rule_tracks::{LiveRule, RuleTracks};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A node that was not heard of for so long is forgotten.
const FORGOTTEN_AFTER: u64 = 60;
/// The most nodes that are followed.
const MOST_NODES: usize = 2_000;

/// What was last heard of a node.
#[derive(Debug, Default)]
struct KnownNode {
    sequence: u64,
    figures: LiveFigures,
    /// Admitted and limited, by rule.
    rules: HashMap<String, (u64, u64)>,
    /// The second in which it was read, by the clock of this node.
    second: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct FleetFigures {
    series: LiveSeries,
    rules: RuleTracks,
    nodes: HashMap<String, KnownNode>,
    /// Since when; none while the other nodes are not followed.
    since: Option<u64>,
    /// The last second with figures.
    second: u64,
}

impl FleetFigures {
    pub(crate) fn new() -> Self {
        Self {
            series: LiveSeries::new(),
            rules: RuleTracks::default(),
            nodes: HashMap::new(),
            since: None,
            second: 0,
        }
    }

    pub(crate) fn is_following(&self) -> bool {
        self.since.is_some()
    }

    /// Begins to follow the other nodes in `second`. Figures of an earlier time are forgotten: they would be those of
    /// this node alone.
    pub(crate) fn follow(&mut self, second: u64) {
        if self.since.is_none() {
            *self = Self::new();
            self.since = Some(second);
        }
    }

    /// Stops to follow the other nodes.
    pub(crate) fn unfollow(&mut self) {
        self.since = None;
    }

    /// Adds figures of this node.
    pub(crate) fn add_own(
        &mut self,
        seconds: std::ops::Range<u64>,
        figures: &LiveFigures,
        rules: &BTreeMap<Arc<str>, DecisionGroups>,
    ) {
        if !self.is_following() {
            return;
        }
        self.series.spread(seconds.start, seconds.end, figures);
        self.second = seconds.end.saturating_sub(1);
        for (rule, groups) in rules {
            self.rules.add(rule, self.second, groups);
        }
    }

    /// Takes in the statuses of other nodes, read in `second`.
    pub(crate) fn take_in<'s>(&mut self, second: u64, statuses: impl Iterator<Item = &'s NodeStatus>) {
        let Some(since) = self.since else { return };
        for status in statuses {
            let figures = status.counters.figures();
            let first = match self.nodes.get_mut(&status.id) {
                Some(known) if known.sequence == status.sequence => {
                    known.second = known.second.max(second);
                    continue;
                }
                Some(known) => Some(known.second),
                // It started while this node was looking: all that it counted is news.
                None if status.uptime_seconds <= second.saturating_sub(since) => {
                    Some(second.saturating_sub(status.uptime_seconds.clamp(1, LONGEST_SPREAD)))
                }
                None => None,
            };
            if self.nodes.len() >= MOST_NODES && !self.nodes.contains_key(&status.id) {
                continue;
            }
            let known = self.nodes.entry(status.id.clone()).or_default();
            if let Some(first) = first {
                // A later status in the same second.
                let first = first.min(second.saturating_sub(1)).max(second.saturating_sub(LONGEST_SPREAD));
                self.series.spread(first, second, &figures.since(&known.figures));
                for rule in &status.rules {
                    let (allowed, limited) = known.rules.get(&rule.id).copied().unwrap_or_default();
                    let has_begun_anew = rule.allowed < allowed || rule.limited < limited;
                    let (allowed, limited) = if has_begun_anew { (0, 0) } else { (allowed, limited) };
                    let groups = DecisionGroups {
                        allowed: rule.allowed - allowed,
                        limited: rule.limited - limited,
                        ..DecisionGroups::default()
                    };
                    self.rules.add(&rule.id.as_str().into(), second.saturating_sub(1), &groups);
                }
            }
            known.sequence = status.sequence;
            known.second = second;
            known.figures = figures;
            known.rules =
                status.rules.iter().map(|rule| (rule.id.clone(), (rule.allowed, rule.limited))).collect();
        }
        self.nodes.retain(|_, known| known.second.saturating_add(FORGOTTEN_AFTER) >= second);
    }

    /// Settles the seconds before `second`, and returns their points.
    pub(crate) fn settle(&mut self, second: u64) -> Vec<LivePoint> {
        if self.is_following() { self.series.settle(second) } else { Vec::new() }
    }

    pub(crate) fn points(&self, range: LiveRange) -> Vec<LivePoint> {
        self.series.points(range)
    }

    pub(crate) fn rules(&self, range: LiveRange) -> Vec<LiveRule> {
        self.rules.list(range, self.second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::node_status::{NodeCounters, RuleCounters};

    const START: u64 = 1_800_000_000;

    fn status(id: &str, sequence: u64, uptime_seconds: u64, allowed: u64, limited: u64) -> NodeStatus {
        let groups = DecisionGroups { allowed, limited, ..DecisionGroups::default() };
        NodeStatus {
            id: id.to_owned(),
            sequence,
            uptime_seconds,
            counters: NodeCounters { groups, ..NodeCounters::default() },
            rules: vec![RuleCounters { id: "api".to_owned(), allowed, limited }],
            ..NodeStatus::default()
        }
    }

    fn known(fleet: &FleetFigures) -> Vec<(u64, u64)> {
        let points = fleet.points(LiveRange::FiveMinutes);
        points.iter().filter_map(|point| Some((point.allowed?, point.limited?))).collect()
    }

    #[test]
    fn the_sum_of_all_nodes_whatever_their_uptime_and_pace() {
        let mut fleet = FleetFigures::new();
        let own = LiveFigures {
            groups: DecisionGroups { allowed: 1, ..DecisionGroups::default() },
            ..LiveFigures::default()
        };
        fleet.add_own(START..START + 1, &own, &BTreeMap::new());
        assert!(known(&fleet).is_empty(), "it does not follow yet");
        fleet.follow(START);
        // Known since long: what it counted before is not news.
        fleet.take_in(START, [&status("old", 7, 9_000, 1_000, 500)].into_iter());
        for second in 0..8 {
            fleet.add_own(START + second..START + second + 1, &own, &BTreeMap::new());
            let now = START + second + 1;
            match second {
                1 => fleet.take_in(now, [&status("old", 8, 9_002, 1_040, 504)].into_iter()),
                // The same status again, and a node that started two seconds ago.
                3 => fleet.take_in(
                    now,
                    [&status("old", 8, 9_002, 1_040, 504), &status("new", 1, 2, 6, 2)].into_iter(),
                ),
                // The first is restarted under its id, as no honest node is.
                5 => fleet.take_in(now, [&status("old", 1, 1, 8, 0), &status("new", 2, 4, 6, 4)].into_iter()),
                _ => {}
            }
        }
        fleet.settle(START + 8);
        let expected = [(21, 2), (21, 2), (1 + 3, 1), (1 + 3, 1), (1 + 4, 1), (1 + 4, 1), (1, 0), (1, 0)];
        let found = known(&fleet);
        let sum =
            |counts: &[(u64, u64)]| counts.iter().fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
        assert_eq!(sum(&found), (8 + 40 + 6 + 8, 4 + 2 + 2));
        assert_eq!(found, expected);
        let rules = fleet.rules(LiveRange::FiveMinutes);
        assert_eq!((rules[0].allowed, rules[0].limited), (40 + 6 + 8, 4 + 2 + 2));
    }

    #[test]
    fn a_node_that_left_is_forgotten_and_not_counted_twice() {
        let mut fleet = FleetFigures::new();
        fleet.follow(START);
        fleet.take_in(START, [&status("a", 1, 100, 10, 0)].into_iter());
        fleet.take_in(START + 30, [].into_iter());
        // A read failed for 15 seconds and more: the difference is spread over the last ones.
        fleet.take_in(START + 40, [&status("a", 2, 140, 40, 0)].into_iter());
        fleet.settle(START + 40);
        assert_eq!(known(&fleet), [(2, 0); 15]);
        fleet.take_in(START + 101, [].into_iter());
        assert!(fleet.nodes.is_empty());
        fleet.unfollow();
        fleet.follow(START + 200);
        assert!(known(&fleet).is_empty());
    }
}
