//! The areas of one use of a zone, as conditions of rules.
//!
//! An area is selected if its pattern matches and none that precedes it does. A rule for several areas matches any of their
//! patterns, except those of other areas that precede one of them. That is wrong if an area of the rule precedes one that
//! is excepted: such areas get a rule each.

use super::locations::{EndpointRegex, LocationPattern};
use super::scopes::{Enforcement, ServerArea, ServerBlock, UseTerms, ZoneUse};
use crate::diagnostic::TextPosition;
use crate::import::draft::ConditionDraft;

const UNSUPPORTED_REGEX: &str = "this regular expression has no equivalent";
const OUTER_LOCATION: &str = "the condition of the outer location has no equivalent here";
const LONGER_LOCATION: &str =
    "that this location precedes regular expressions, and a longer one does not, has no equivalent";

/// Areas that one rule is for.
#[derive(Clone, Debug)]
pub(super) struct AreaGroup {
    pub(super) enforcement: Enforcement,
    pub(super) matches: ConditionDraft,
    pub(super) except: ConditionDraft,
    /// Each directive, with the areas in which it applies.
    pub(super) uses: Vec<(ZoneUse, String)>,
    /// Locations whose paths have no equivalent.
    pub(super) problems: Vec<LocationProblem>,
    /// No request that rules can describe is in it.
    pub(super) is_unreachable: bool,
    servers: Vec<usize>,
}

/// A location whose paths have no equivalent, and the effect.
#[derive(Clone, Debug)]
pub(super) struct LocationProblem {
    pub(super) file: usize,
    pub(super) position: TextPosition,
    pub(super) message: &'static str,
    pub(super) hint: &'static str,
}

impl AreaGroup {
    /// The first directive.
    pub(super) fn first_use(&self) -> &ZoneUse {
        &self.uses[0].0
    }
}

/// A zone with its numbers, and the areas of each server in which it applies.
struct UsedZone<'s> {
    zone: &'s str,
    terms: UseTerms,
    enforcement: Enforcement,
    areas: Vec<(usize, Vec<(usize, &'s ZoneUse)>)>,
}

/// The groups of areas of all zones. Servers are apart in zones whose key distinguishes them.
pub(super) fn area_groups(servers: &[ServerBlock], is_by_server: impl Fn(&str) -> bool) -> Vec<AreaGroup> {
    let servers = distinguishable(servers);
    let mut used: Vec<UsedZone<'_>> = Vec::new();
    for (server, server_block) in servers.iter().enumerate() {
        for (area, server_area) in server_block.areas.iter().enumerate() {
            for (zone_use, enforcement) in server_area.limits.applied() {
                let ZoneUse { zone, terms, .. } = zone_use;
                let found = used.iter().position(|known| {
                    (known.zone, known.terms, known.enforcement) == (zone, *terms, enforcement)
                });
                let found = found.unwrap_or_else(|| {
                    used.push(UsedZone { zone, terms: *terms, enforcement, areas: Vec::new() });
                    used.len() - 1
                });
                let areas = &mut used[found].areas;
                match areas.last_mut().filter(|(known, _)| *known == server) {
                    Some((_, areas)) => areas.push((area, zone_use)),
                    None => areas.push((server, vec![(area, zone_use)])),
                }
            }
        }
    }
    let mut groups = Vec::new();
    for zone in &used {
        let mut own: Vec<AreaGroup> = Vec::new();
        for (server, areas) in &zone.areas {
            for group in server_groups(*server, &servers[*server].areas, areas, zone.enforcement) {
                let known =
                    own.iter_mut().find(|known| !is_by_server(zone.zone) && known.has_areas_of(&group));
                match known {
                    Some(known) => known.add(group),
                    None => own.push(group),
                }
            }
        }
        for group in &mut own {
            group.add_domains(&servers);
        }
        groups.extend(own);
    }
    groups
}

/// Without servers that have no limit and the names of another: the redirect to HTTPS of the same host.
fn distinguishable(servers: &[ServerBlock]) -> Vec<&ServerBlock> {
    let has_limits =
        |server: &ServerBlock| server.areas.iter().any(|area| area.limits.applied().next().is_some());
    let is_shadowed = |index: usize, server: &ServerBlock| {
        !has_limits(server)
            && servers.iter().enumerate().any(|(other, known)| {
                let has_names = server.names.iter().all(|name| known.names.contains(name));
                other != index && has_limits(known) && has_names
            })
    };
    let kept = servers.iter().enumerate().filter(|(index, server)| !is_shadowed(*index, server));
    kept.map(|(_, server)| server).collect()
}

/// The groups of one server.
fn server_groups(
    server: usize,
    all: &[ServerArea],
    used: &[(usize, &ZoneUse)],
    enforcement: Enforcement,
) -> Vec<AreaGroup> {
    let is_used = |index: usize| used.iter().any(|(area, _)| *area == index);
    let others: Vec<usize> = (0..all.len()).filter(|index| !is_used(*index)).collect();
    let meets = |one: usize, other: usize| all[one].pattern.may_overlap(&all[other].pattern);
    let precedes = |one: usize, other: usize| all[one].pattern.precedes(&all[other].pattern);
    let is_excepted =
        |other: &usize| used.iter().any(|(own, _)| meets(*own, *other) && precedes(*other, *own));
    let excepted: Vec<usize> = others.into_iter().filter(is_excepted).collect();
    let is_one_rule = used
        .iter()
        .all(|(own, _)| !excepted.iter().any(|other| meets(*own, *other) && precedes(*own, *other)));
    let parts: Vec<Vec<(usize, &ZoneUse)>> =
        if is_one_rule { vec![used.to_vec()] } else { used.iter().map(|area| vec![*area]).collect() };
    let group = |part: Vec<(usize, &ZoneUse)>| {
        let mut group = AreaGroup {
            enforcement,
            matches: ConditionDraft::default(),
            except: ConditionDraft::default(),
            uses: Vec::new(),
            problems: Vec::new(),
            is_unreachable: false,
            servers: vec![server],
        };
        let is_everything = part.iter().any(|(area, _)| all[*area].pattern.is_everything());
        for (area, zone_use) in &part {
            group.add_use(zone_use, &all[*area].pattern);
            if is_everything {
                continue;
            }
            group.add_match(&all[*area]);
        }
        let own_patterns: Vec<&LocationPattern> = part.iter().map(|(area, _)| &all[*area].pattern).collect();
        for other in (0..all.len()).filter(|index| part.iter().all(|(area, _)| area != index)) {
            let is_before = |own: usize| meets(own, other) && precedes(other, own);
            // In a third area, which is before the other one, the own area is selected again.
            let is_again = |own: usize, third: usize| {
                meets(third, other) && precedes(third, other) && meets(own, third) && precedes(own, third)
            };
            let is_cut = |own: usize| is_before(own) && (0..all.len()).any(|third| is_again(own, third));
            if part.iter().any(|(own, _)| is_cut(*own)) {
                group.add_kept(&all[other], LONGER_LOCATION);
            } else if part.iter().any(|(own, _)| is_before(*own)) {
                group.add_except(&all[other], &own_patterns);
            }
        }
        // A rule whose only pattern is not supported would match every path.
        let is_complete = is_everything || !group.matches.endpoint_regex.is_empty();
        group.is_unreachable = !is_complete;
        group
    };
    parts.into_iter().map(group).collect()
}

impl AreaGroup {
    fn add_use(&mut self, zone_use: &ZoneUse, pattern: &LocationPattern) {
        match self.uses.iter_mut().find(|(known, _)| known == zone_use) {
            Some((_, areas)) if areas.len() < 60 => *areas = format!("{areas}, {}", pattern.shown()),
            Some((_, areas)) if areas.ends_with('…') => {}
            Some((_, areas)) => areas.push_str(", …"),
            None => self.uses.push((zone_use.clone(), pattern.shown())),
        }
    }

    fn add_match(&mut self, area: &ServerArea) {
        let problem =
            |message, hint| LocationProblem { file: area.file, position: area.position, message, hint };
        match area.pattern.endpoint_regex(&[]) {
            EndpointRegex::Exactly(regex) => push_new(&mut self.matches.endpoint_regex, regex),
            EndpointRegex::Wider(regex) => {
                push_new(&mut self.matches.endpoint_regex, regex);
                let hint = "the limit also applies to paths that match this location alone";
                self.problems.push(problem(OUTER_LOCATION, hint));
            }
            EndpointRegex::Nothing => {}
            EndpointRegex::Unsupported => {
                let hint = "the limit is not imported for this location";
                self.problems.push(problem(UNSUPPORTED_REGEX, hint));
            }
        }
    }

    /// Excepts the paths of another area. Those that are not known exactly keep the limit.
    fn add_except(&mut self, area: &ServerArea, own: &[&LocationPattern]) {
        let message = match area.pattern.endpoint_regex(own) {
            EndpointRegex::Exactly(regex) => return push_new(&mut self.except.endpoint_regex, regex),
            EndpointRegex::Nothing => return,
            EndpointRegex::Wider(_) => OUTER_LOCATION,
            EndpointRegex::Unsupported => UNSUPPORTED_REGEX,
        };
        self.add_kept(area, message);
    }

    /// Another area in which the limit applies as well.
    fn add_kept(&mut self, area: &ServerArea, message: &'static str) {
        let hint = "limits of the server or of other locations that match a path also apply there";
        self.problems.push(LocationProblem { file: area.file, position: area.position, message, hint });
    }

    fn has_areas_of(&self, other: &Self) -> bool {
        let areas = |group: &Self| (group.matches.clone(), group.except.clone(), group.is_unreachable);
        areas(self) == areas(other)
    }

    /// Adds the same areas of another server.
    fn add(&mut self, other: Self) {
        self.servers.extend(other.servers);
        for (zone_use, areas) in other.uses {
            if !self.uses.iter().any(|(known, _)| *known == zone_use) {
                self.uses.push((zone_use, areas));
            }
        }
        self.problems.extend(other.problems);
    }

    /// Restricts the group to its servers, unless these are all.
    fn add_domains(&mut self, servers: &[&ServerBlock]) {
        let is_own = |index: usize| self.servers.contains(&index);
        if (0..servers.len()).all(is_own) {
            return;
        }
        let names = |wanted: bool| {
            let chosen = servers.iter().enumerate().filter(move |(index, _)| is_own(*index) == wanted);
            chosen.flat_map(|(_, server)| server.names.iter().cloned())
        };
        let has_default = self.servers.iter().any(|index| servers[*index].is_default);
        let (own, others): (Vec<String>, Vec<String>) = (names(true).collect(), names(false).collect());
        if has_default {
            self.except.domain = others.into_iter().filter(|name| !own.contains(name)).collect();
        } else {
            // A server without a name that is not the default gets no requests.
            self.is_unreachable |= own.is_empty();
            self.matches.domain = own;
        }
        self.matches.domain.sort();
        self.matches.domain.dedup();
        self.except.domain.sort();
        self.except.domain.dedup();
    }
}

fn push_new(list: &mut Vec<String>, text: String) {
    if !list.contains(&text) {
        list.push(text);
    }
}
