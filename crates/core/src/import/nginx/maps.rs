//! The values of a `map` or `geo`, each with the requests that have it.

use super::conditions::{KeySource, SourcePattern};
use super::networks::disjoint_networks;
use super::syntax::{ConfigWord, NginxDirective, shown};
use super::variables::{ConfigPlace, KeyCase, KeyEvaluator, KeyPiece};
use crate::import::draft::ConditionDraft;
use std::net::IpAddr;

/// An entry of a map: its pattern and value.
struct MapEntry<'c> {
    word: &'c ConfigWord,
    value: &'c str,
}

impl<'c> KeyEvaluator<'c> {
    /// The values of a map whose source is as in `case`, with the conditions of both.
    pub(super) fn map_cases(
        &mut self,
        map: &'c NginxDirective,
        case: &KeyCase,
    ) -> Result<Vec<(KeyCase, &'c str)>, String> {
        let (entries, default) = self.entries(map, false);
        let base = KeyCase { pieces: Vec::new(), ..case.clone() };
        match case.pieces.as_slice() {
            [KeyPiece::Source(source)] => self.conditional(map, source, &entries, default, base),
            pieces if pieces.iter().all(|piece| matches!(piece, KeyPiece::Text(_))) => {
                let text: String = pieces
                    .iter()
                    .map(|piece| if let KeyPiece::Text(text) = piece { text.as_str() } else { "" })
                    .collect();
                let mut found = None;
                for entry in &entries {
                    let pattern = SourcePattern::parse(&entry.word.text, false);
                    if pattern.matches_text(&text) && (found.is_none() || pattern.is_exact()) {
                        found = Some(entry.value);
                    }
                }
                Ok(vec![(base, found.unwrap_or(default))])
            }
            _ => Err(format!("a map over several variables has no equivalent: {}", shown(&map.text()))),
        }
    }

    /// The values of a geo over the address of the client, with the conditions of `case`.
    pub(super) fn geo_cases(
        &mut self,
        geo: &'c NginxDirective,
        case: &KeyCase,
    ) -> Result<Vec<(KeyCase, &'c str)>, String> {
        let (entries, default) = self.entries(geo, true);
        let base = KeyCase { pieces: Vec::new(), ..case.clone() };
        self.conditional(geo, &KeySource::Address, &entries, default, base)
    }

    /// All values of a geo.
    pub(super) fn values(&mut self, geo: &'c NginxDirective) -> Vec<&'c str> {
        let (entries, default) = self.entries(geo, true);
        let mut values = vec![default];
        for entry in entries {
            if !values.contains(&entry.value) {
                values.push(entry.value);
            }
        }
        values
    }

    /// The entries of a map, and its default.
    fn entries(&mut self, map: &'c NginxDirective, is_geo: bool) -> (Vec<MapEntry<'c>>, &'c str) {
        let mut entries = Vec::new();
        let mut default = "";
        for directive in map.block.iter().flatten() {
            match (directive.name.text.as_str(), directive.arguments.as_slice()) {
                ("default", [value]) => default = &value.text,
                ("hostnames" | "volatile", []) => {}
                ("ranges" | "delete" | "proxy" | "proxy_recursive", _) if is_geo => {
                    self.problem(
                        place_of(directive),
                        format!("`{}` of a geo has no equivalent", directive.name.text),
                        "write networks; trusted proxies are `identity: { client_ip: … }` in the settings",
                    );
                }
                (_, [value]) => entries.push(MapEntry { word: &directive.name, value: &value.text }),
                _ => self.problem(
                    place_of(directive),
                    "an entry needs a pattern and a value".to_owned(),
                    "it is ignored",
                ),
            }
        }
        (entries, default)
    }

    /// The cases of a map over a property of the request.
    fn conditional(
        &mut self,
        map: &NginxDirective,
        source: &KeySource,
        entries: &[MapEntry<'c>],
        default: &'c str,
        base: KeyCase,
    ) -> Result<Vec<(KeyCase, &'c str)>, String> {
        let is_geo = map.name.text == "geo";
        let is_address = |text: &str| *source == KeySource::Address && text.parse::<IpAddr>().is_ok();
        let mut known: Vec<(SourcePattern, &'c str)> = Vec::new();
        for entry in entries {
            let text = &entry.word.text;
            let pattern = SourcePattern::parse(text, is_geo || is_address(text));
            if entry.value == default && !pattern.is_absence() && entries.len() == 1 {
                continue;
            }
            if let Err(why) = source.condition(&pattern, &mut ConditionDraft::default()) {
                self.problem(
                    ConfigPlace { file: map.file, position: entry.word.position },
                    format!("this entry of a map has no equivalent: {why}"),
                    "requests that match it are treated as by the default of the map",
                );
                continue;
            }
            known.push((pattern, entry.value));
        }
        let mut cases: Vec<(KeyCase, &'c str)> = Vec::new();
        let mut merged: Vec<(Vec<&SourcePattern>, &'c str)> = Vec::new();
        for (index, (pattern, value)) in known.iter().enumerate() {
            let is_first_of_default = *value == default && !self.is_overridden(&known, index, default);
            if is_first_of_default && !pattern.is_absence() {
                continue;
            }
            match merged.iter_mut().find(|(group, known)| *known == *value && group[0].is_mergeable(pattern))
            {
                Some((group, _)) => group.push(pattern),
                None => merged.push((vec![pattern], value)),
            }
        }
        for (group, value) in merged {
            let mut case = base.clone();
            if let Some(networks) = disjoint_networks(&group, value, &known) {
                for network in networks {
                    source.require(&SourcePattern::Network(network), &mut case);
                }
                cases.push((case, value));
                continue;
            }
            for pattern in &group {
                source.require(pattern, &mut case);
            }
            for (index, (other, other_value)) in known.iter().enumerate() {
                let first =
                    known.iter().position(|(pattern, _)| std::ptr::eq(pattern, group[0])).unwrap_or(0);
                let takes = |pattern: &&SourcePattern| {
                    other.precedes(index, pattern, first) && !pattern.excludes(other)
                };
                if *other_value != value && group.iter().any(takes) {
                    source.exclude(other, &mut case);
                }
            }
            if !case.is_contradictory() {
                cases.push((case, value));
            }
        }
        let mut rest = base;
        for (pattern, value) in &known {
            if *value != default || pattern.is_absence() {
                source.exclude(pattern, &mut rest);
            }
        }
        cases.push((rest, default));
        Ok(cases)
    }

    /// Whether an entry with the value of the default lies within one that has another value.
    fn is_overridden(&self, known: &[(SourcePattern, &str)], index: usize, default: &str) -> bool {
        let (pattern, _) = &known[index];
        known.iter().any(|(other, value)| *value != default && other.contains(pattern))
    }
}

fn place_of(directive: &NginxDirective) -> ConfigPlace {
    ConfigPlace { file: directive.file, position: directive.name.position }
}
