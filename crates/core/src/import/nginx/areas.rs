//! The areas of one use of a zone, as conditions of rules.
//!
//! An area is selected if its pattern matches and none that precedes it does. A rule for several areas matches any of their
//! patterns, except those of other areas that precede one of them. That is wrong if an area of the rule precedes one that
//! is excepted: such areas get a rule each.

use super::scopes::{Enforcement, LocationPattern, ServerArea, ServerBlock, UseTerms, ZoneUse};
use crate::diagnostic::TextPosition;
use crate::import::draft::ConditionDraft;

/// Areas that one rule is for.
#[derive(Clone, Debug)]
pub(super) struct AreaGroup {
    pub(super) enforcement: Enforcement,
    pub(super) matches: ConditionDraft,
    pub(super) except: ConditionDraft,
    /// Each directive, with the areas in which it applies.
    pub(super) uses: Vec<(ZoneUse, String)>,
    /// Locations with a regular expression that is not supported, and the effect of ignoring it.
    pub(super) unsupported: Vec<(usize, TextPosition, String)>,
    /// No request that rules can describe is in it.
    pub(super) is_unreachable: bool,
    servers: Vec<usize>,
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
            unsupported: Vec::new(),
            is_unreachable: false,
            servers: vec![server],
        };
        let is_everything = part.iter().any(|(area, _)| all[*area].pattern.is_everything());
        for (area, zone_use) in &part {
            group.add_use(zone_use, &all[*area].pattern);
            if is_everything {
                continue;
            }
            let text = "the limit is not imported for this location";
            group.add_pattern(&all[*area], EndpointSide::Match, text);
        }
        for other in (0..all.len()).filter(|index| part.iter().all(|(area, _)| area != index)) {
            if part.iter().any(|(own, _)| meets(*own, other) && precedes(other, *own)) {
                let text = "the limit of the server or of a shorter location also applies there";
                group.add_pattern(&all[other], EndpointSide::Except, text);
            }
        }
        // A rule whose only pattern is not supported would match every path.
        let is_complete = is_everything || !group.matches.endpoint_regex.is_empty();
        group.is_unreachable = !is_complete;
        group
    };
    parts.into_iter().map(group).collect()
}

enum EndpointSide {
    Match,
    Except,
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

    fn add_pattern(&mut self, area: &ServerArea, side: EndpointSide, without: &str) {
        let Some(regex) = area.pattern.endpoint_regex() else {
            self.unsupported.push((area.file, area.position, without.to_owned()));
            return;
        };
        let conditions = match side {
            EndpointSide::Match => &mut self.matches,
            EndpointSide::Except => &mut self.except,
        };
        if !conditions.endpoint_regex.contains(&regex) {
            conditions.endpoint_regex.push(regex);
        }
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
        self.unsupported.extend(other.unsupported);
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
