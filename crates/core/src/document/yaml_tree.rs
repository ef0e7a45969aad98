//! A YAML document as a tree in which every value and every name has a position.

use super::{EntryPart, PathSegment};
use crate::diagnostic::{TextPosition, TextRegion};
use serde_json::Value;

/// The memory that a node stands for when a document is bounded: longer texts count as several nodes.
pub(super) const BYTES_PER_NODE: usize = 128;

/// A value and its position.
#[derive(Clone, Debug)]
pub(super) struct YamlNode {
    position: TextPosition,
    /// Line and column of the end, exclusive.
    end: (usize, usize),
    pub(super) content: YamlContent,
    /// Entries of this mapping that are shadowed by an earlier entry of the same name.
    pub(super) repeated: Vec<YamlEntry>,
    /// Something below was removed.
    damaged: bool,
    /// The names of the entries that were removed from this mapping.
    removed: Vec<String>,
}

#[derive(Clone, Debug)]
pub(super) enum YamlContent {
    Scalar(YamlScalar),
    Sequence(Vec<YamlNode>),
    Mapping(Vec<YamlEntry>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum YamlScalar {
    Null,
    Bool(bool),
    Unsigned(u64),
    /// Below zero.
    Signed(i64),
    Float(f64),
    Text(String),
}

#[derive(Clone, Debug)]
pub(super) struct YamlEntry {
    pub(super) name: String,
    pub(super) position: TextPosition,
    /// Line and column of the end of the name, exclusive.
    pub(super) name_end: (usize, usize),
    pub(super) value: YamlNode,
}

impl YamlEntry {
    pub(super) fn name_region(&self) -> TextRegion {
        TextRegion { start: (self.position.line, self.position.column), end: self.name_end }
    }
}

impl YamlNode {
    pub(super) fn new(position: TextPosition, end: (usize, usize), content: YamlContent) -> Self {
        Self { position, end, content, repeated: Vec::new(), damaged: false, removed: Vec::new() }
    }

    pub(super) fn position(&self) -> TextPosition {
        self.position
    }

    pub(super) fn region(&self) -> TextRegion {
        TextRegion { start: (self.position.line, self.position.column), end: self.end }
    }

    pub(super) fn entry(&self, path: &[PathSegment]) -> Option<&YamlEntry> {
        let (first, rest) = path.split_first()?;
        match (first, &self.content) {
            (PathSegment::Field(name), YamlContent::Mapping(entries)) => {
                let entry = entries.iter().find(|entry| entry.name == *name)?;
                if rest.is_empty() { Some(entry) } else { entry.value.entry(rest) }
            }
            (PathSegment::Index(index), YamlContent::Sequence(items)) => items.get(*index)?.entry(rest),
            _ => None,
        }
    }

    pub(super) fn is_mapping(&self) -> bool {
        matches!(self.content, YamlContent::Mapping(_))
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self.content, YamlContent::Scalar(YamlScalar::Null))
    }

    /// The position of the value at `path`, or of its nearest ancestor if there is none.
    pub(super) fn locate(&self, path: &[PathSegment], part: EntryPart) -> TextPosition {
        let Some((first, rest)) = path.split_first() else { return self.position };
        match (first, &self.content) {
            (PathSegment::Field(name), YamlContent::Mapping(entries)) => {
                match entries.iter().find(|entry| entry.name == *name) {
                    Some(entry) if rest.is_empty() && part == EntryPart::Name => entry.position,
                    Some(entry) => entry.value.locate(rest, part),
                    None => self.position,
                }
            }
            (PathSegment::Index(index), YamlContent::Sequence(items)) => {
                items.get(*index).map_or(self.position, |item| item.locate(rest, part))
            }
            _ => self.position,
        }
    }

    /// Removes the value at `path` from its parent. False if there is none.
    pub(super) fn remove(&mut self, path: &[PathSegment]) -> bool {
        let Some((first, rest)) = path.split_first() else { return false };
        let is_removed = match (first, &mut self.content) {
            (PathSegment::Field(name), YamlContent::Mapping(entries)) => {
                match entries.iter().position(|entry| entry.name == *name) {
                    Some(found) if rest.is_empty() => {
                        self.removed.push(entries.remove(found).name);
                        true
                    }
                    Some(found) => entries[found].value.remove(rest),
                    None => false,
                }
            }
            (PathSegment::Index(index), YamlContent::Sequence(items)) if *index < items.len() => {
                if rest.is_empty() {
                    items.remove(*index);
                    true
                } else {
                    items[*index].remove(rest)
                }
            }
            _ => false,
        };
        self.damaged |= is_removed;
        is_removed
    }

    /// Removes entries and items without a value. Returns their names, `None` for items, and positions.
    pub(super) fn remove_empty(&mut self) -> Vec<(Option<String>, TextPosition)> {
        let mut found = Vec::new();
        match &mut self.content {
            YamlContent::Scalar(_) => {}
            YamlContent::Sequence(items) => {
                found.extend(items.iter().filter(|item| item.is_null()).map(|item| (None, item.position)));
                items.retain(|item| !item.is_null());
                found.extend(items.iter_mut().flat_map(Self::remove_empty));
            }
            YamlContent::Mapping(entries) => {
                let empty = entries.iter().filter(|entry| entry.value.is_null());
                found.extend(empty.map(|entry| (Some(entry.name.clone()), entry.position)));
                self.removed.extend(found.iter().filter_map(|(name, _)| name.clone()));
                entries.retain(|entry| !entry.value.is_null());
                found.extend(entries.iter_mut().flat_map(|entry| entry.value.remove_empty()));
            }
        }
        self.damaged |= !found.is_empty();
        found
    }

    /// Whether the entry at `path` itself was removed.
    pub(super) fn is_removed(&self, path: &[PathSegment]) -> bool {
        // Called for each entry of mappings that may be very long.
        if !self.damaged {
            return false;
        }
        match (path, &self.content) {
            ([PathSegment::Field(name)], _) => self.removed.contains(name),
            ([PathSegment::Field(name), rest @ ..], YamlContent::Mapping(entries)) => {
                entries.iter().any(|entry| entry.name == *name && entry.value.is_removed(rest))
            }
            ([PathSegment::Index(index), rest @ ..], YamlContent::Sequence(items)) => {
                items.get(*index).is_some_and(|item| item.is_removed(rest))
            }
            _ => false,
        }
    }

    /// Whether anything was removed from the value at `path`.
    pub(super) fn is_damaged(&self, path: &[PathSegment]) -> bool {
        let Some((first, rest)) = path.split_first() else { return self.damaged };
        match (first, &self.content) {
            (PathSegment::Field(name), YamlContent::Mapping(entries)) => entries
                .iter()
                .find(|entry| entry.name == *name)
                .map_or_else(|| self.removed.contains(name), |entry| entry.value.is_damaged(rest)),
            (PathSegment::Index(index), YamlContent::Sequence(items)) => {
                items.get(*index).map_or(self.damaged, |item| item.is_damaged(rest))
            }
            _ => self.damaged,
        }
    }

    pub(super) fn to_json(&self) -> Value {
        match &self.content {
            YamlContent::Scalar(YamlScalar::Null) => Value::Null,
            YamlContent::Scalar(YamlScalar::Bool(value)) => (*value).into(),
            YamlContent::Scalar(YamlScalar::Unsigned(value)) => (*value).into(),
            YamlContent::Scalar(YamlScalar::Signed(value)) => (*value).into(),
            YamlContent::Scalar(YamlScalar::Float(value)) => (*value).into(),
            YamlContent::Scalar(YamlScalar::Text(text)) => text.as_str().into(),
            YamlContent::Sequence(items) => items.iter().map(Self::to_json).collect(),
            YamlContent::Mapping(entries) => {
                entries.iter().map(|entry| (entry.name.clone(), entry.value.to_json())).collect()
            }
        }
    }

    /// The cost of another copy, in nodes.
    pub(super) fn size(&self) -> usize {
        match &self.content {
            YamlContent::Scalar(YamlScalar::Text(text)) => 1 + text.len() / BYTES_PER_NODE,
            YamlContent::Scalar(_) => 1,
            YamlContent::Sequence(items) => 1 + items.iter().map(Self::size).sum::<usize>(),
            YamlContent::Mapping(entries) => {
                let size = |entry: &YamlEntry| entry.name.len() / BYTES_PER_NODE + entry.value.size();
                1 + entries.iter().chain(&self.repeated).map(size).sum::<usize>()
            }
        }
    }
}
