//! From text to a tree of values with positions, on top of the parser's events.

use super::{EntryPart, PathSegment};
use crate::diagnostic::{Diagnostic, Severity, TextPosition, TextRegion};
use granit_parser::{Event, Parser, ScalarStyle, Span};
use serde_json::{Map, Number, Value};
use std::collections::{HashMap, HashSet};

/// Bounds on what a document may make us hold, aliases counted at each use and texts by their length.
const MOST_NODES: usize = 500_000;
const BYTES_PER_NODE: usize = 128;
const DEEPEST: usize = 64;

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct YamlNode {
    position: TextPosition,
    /// Where it ends: line and column, exclusive.
    end: (usize, usize),
    pub(super) content: YamlContent,
    /// Entries of this mapping that do not count, because others of the same name do.
    pub(super) repeated: Vec<YamlEntry>,
    /// Something was cut out below.
    damaged: bool,
    /// The names of the entries that were cut out of this very mapping.
    lost: Vec<String>,
}

#[derive(Clone, Debug)]
pub(super) enum YamlContent {
    Scalar(Value),
    Sequence(Vec<YamlNode>),
    Mapping(Vec<YamlEntry>),
}

#[derive(Clone, Debug)]
pub(super) struct YamlEntry {
    pub(super) name: String,
    position: TextPosition,
    /// Where the name ends: line and column, exclusive.
    name_end: (usize, usize),
    pub(super) value: YamlNode,
}

impl YamlEntry {
    /// Where the name stands.
    pub(super) fn region(&self) -> TextRegion {
        TextRegion { start: (self.position.line, self.position.column), end: self.name_end }
    }
}

impl YamlNode {
    fn new(position: TextPosition, end: (usize, usize), content: YamlContent) -> Self {
        Self { position, end, content, repeated: Vec::new(), damaged: false, lost: Vec::new() }
    }

    /// The whole of it.
    pub(super) fn region(&self) -> TextRegion {
        TextRegion { start: (self.position.line, self.position.column), end: self.end }
    }

    /// The entry at `path`.
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

    fn is_null(&self) -> bool {
        matches!(self.content, YamlContent::Scalar(Value::Null))
    }

    /// The plain value, for serde.
    pub(super) fn to_json(&self) -> Value {
        match &self.content {
            YamlContent::Scalar(value) => value.clone(),
            YamlContent::Sequence(items) => items.iter().map(Self::to_json).collect(),
            YamlContent::Mapping(entries) => Value::Object(
                entries.iter().map(|e| (e.name.clone(), e.value.to_json())).collect::<Map<_, _>>(),
            ),
        }
    }

    /// Where `path` stands; of what is not there, where the nearest thing above it does.
    pub(super) fn locate(&self, path: &[PathSegment], at: EntryPart) -> TextPosition {
        let Some((first, rest)) = path.split_first() else { return self.position };
        match (first, &self.content) {
            (PathSegment::Field(name), YamlContent::Mapping(entries)) => {
                match entries.iter().find(|entry| entry.name == *name) {
                    Some(entry) if rest.is_empty() && at == EntryPart::Name => entry.position,
                    Some(entry) => entry.value.locate(rest, at),
                    None => self.position,
                }
            }
            (PathSegment::Index(index), YamlContent::Sequence(items)) => {
                items.get(*index).map_or(self.position, |item| item.locate(rest, at))
            }
            _ => self.position,
        }
    }

    /// Takes the value at `path` out of its parent. False if there is none.
    pub(super) fn cut(&mut self, path: &[PathSegment]) -> bool {
        let Some((first, rest)) = path.split_first() else { return false };
        let cut = match (first, &mut self.content) {
            (PathSegment::Field(name), YamlContent::Mapping(entries)) => {
                match entries.iter().position(|entry| entry.name == *name) {
                    Some(found) if rest.is_empty() => {
                        self.lost.push(entries.remove(found).name);
                        true
                    }
                    Some(found) => entries[found].value.cut(rest),
                    None => false,
                }
            }
            (PathSegment::Index(index), YamlContent::Sequence(items)) if *index < items.len() => {
                if rest.is_empty() {
                    items.remove(*index);
                    true
                } else {
                    items[*index].cut(rest)
                }
            }
            _ => false,
        };
        self.damaged |= cut;
        cut
    }

    /// Takes out what has no value; answers the names, of items none, and the places.
    pub(super) fn cut_empty(&mut self) -> Vec<(Option<String>, TextPosition)> {
        let mut found = Vec::new();
        match &mut self.content {
            YamlContent::Scalar(_) => {}
            YamlContent::Sequence(items) => {
                found.extend(items.iter().filter(|item| item.is_null()).map(|item| (None, item.position)));
                items.retain(|item| !item.is_null());
                found.extend(items.iter_mut().flat_map(Self::cut_empty));
            }
            YamlContent::Mapping(entries) => {
                let empty = entries.iter().filter(|entry| entry.value.is_null());
                found.extend(empty.map(|entry| (Some(entry.name.clone()), entry.position)));
                self.lost.extend(found.iter().filter_map(|(name, _)| name.clone()));
                entries.retain(|entry| !entry.value.is_null());
                found.extend(entries.iter_mut().flat_map(|entry| entry.value.cut_empty()));
            }
        }
        self.damaged |= !found.is_empty();
        found
    }

    /// Whether the very entry at `path` was cut out.
    pub(super) fn is_lost(&self, path: &[PathSegment]) -> bool {
        // Asked for each entry of what may be a very long mapping.
        if !self.damaged {
            return false;
        }
        match (path, &self.content) {
            ([PathSegment::Field(name)], _) => self.lost.contains(name),
            ([PathSegment::Field(name), rest @ ..], YamlContent::Mapping(entries)) => {
                entries.iter().any(|entry| entry.name == *name && entry.value.is_lost(rest))
            }
            ([PathSegment::Index(index), rest @ ..], YamlContent::Sequence(items)) => {
                items.get(*index).is_some_and(|item| item.is_lost(rest))
            }
            _ => false,
        }
    }

    /// Whether anything was cut out of the value at `path`.
    pub(super) fn is_damaged(&self, path: &[PathSegment]) -> bool {
        let Some((first, rest)) = path.split_first() else { return self.damaged };
        match (first, &self.content) {
            (PathSegment::Field(name), YamlContent::Mapping(entries)) => entries
                .iter()
                .find(|entry| entry.name == *name)
                .map_or_else(|| self.lost.contains(name), |entry| entry.value.is_damaged(rest)),
            (PathSegment::Index(index), YamlContent::Sequence(items)) => {
                items.get(*index).map_or(self.damaged, |item| item.is_damaged(rest))
            }
            _ => self.damaged,
        }
    }
}

/// Reads the one document in `text`, and what is wrong in it but does not end the reading. An empty one is
/// an empty mapping.
pub(super) fn parse(text: &str) -> Result<(YamlNode, Vec<Diagnostic>), Diagnostic> {
    let mut builder = YamlTreeBuilder {
        events: Parser::new_from_str(text),
        anchors: HashMap::new(),
        nodes: 0,
        problems: Vec::new(),
    };
    let start = TextPosition { line: 1, column: 1, width: 1 };
    let mut root = None;
    while let Some(event) = builder.events.next() {
        match event.map_err(syntax_error)? {
            (Event::StreamStart | Event::StreamEnd | Event::DocumentEnd, _) => {}
            (Event::DocumentStart(..), span) if root.is_some() => {
                return Err(problem(position(&span), "a second document begins here", "keep one per file"));
            }
            (Event::DocumentStart(..), _) => {}
            (event, span) => root = Some(builder.node(event, span, 0)?),
        }
    }
    let root = root.filter(|node| !node.is_null());
    let root = root.unwrap_or_else(|| YamlNode::new(start, (1, 1), YamlContent::Mapping(Vec::new())));
    Ok((root, builder.problems))
}

struct YamlTreeBuilder<'t> {
    events: Parser<'t, granit_parser::StrInput<'t>>,
    anchors: HashMap<usize, YamlNode>,
    nodes: usize,
    problems: Vec<Diagnostic>,
}

impl<'t> YamlTreeBuilder<'t> {
    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<YamlNode, Diagnostic> {
        let position = position(&span);
        if depth > DEEPEST {
            return Err(too_deep(position));
        }
        self.count(1, position)?;
        let mut repeated = Vec::new();
        let (anchor, content) = match event {
            Event::Scalar(text, style, anchor, _) => {
                self.count(text.len() / BYTES_PER_NODE, position)?;
                (anchor, YamlContent::Scalar(scalar(&text, style)))
            }
            Event::SequenceStart(_, anchor, _) => (anchor, YamlContent::Sequence(self.sequence(depth)?)),
            Event::MappingStart(_, anchor, _) => {
                (anchor, YamlContent::Mapping(self.mapping(depth, &mut repeated)?))
            }
            Event::Alias(anchor) => {
                let Some(target) = self.anchors.get(&anchor) else {
                    return Err(problem(position, "this alias refers to itself", "write the value out"));
                };
                let size = target.size();
                self.count(size, position)?;
                return Ok(self.anchors[&anchor].clone());
            }
            _ => return Err(problem(position, "this cannot be read", "is it meant to be a value?")),
        };
        let mut node = YamlNode::new(position, end(&span), content);
        node.repeated = repeated;
        if anchor > 0 {
            self.count(node.size(), position)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn sequence(&mut self, depth: usize) -> Result<Vec<YamlNode>, Diagnostic> {
        let mut items = Vec::new();
        while let Some((event, span)) = self.next_in_collection()? {
            items.push(self.node(event, span, depth + 1)?);
        }
        Ok(items)
    }

    fn mapping(&mut self, depth: usize, repeated: &mut Vec<YamlEntry>) -> Result<Vec<YamlEntry>, Diagnostic> {
        let mut entries: Vec<YamlEntry> = Vec::new();
        let mut lines: HashMap<String, usize> = HashMap::new();
        let mut merged = Vec::new();
        while let Some((event, span)) = self.next_in_collection()? {
            let (position, name_end) = (position(&span), end(&span));
            let Event::Scalar(name, ..) = event else {
                return Err(problem(position, "a name was expected here", "only plain words name an entry"));
            };
            self.count(name.len() / BYTES_PER_NODE, position)?;
            let Some((event, span)) = self.next_in_collection()? else { break };
            let value = self.node(event, span, depth + 1)?;
            if name == "<<" {
                merged.push(value);
            } else if let Some(line) = lines.get(name.as_ref()) {
                let hint = format!("the first is on line {line}; keep one of them");
                self.problems.push(problem(position, &format!("`{name}` is given twice"), &hint));
                repeated.push(YamlEntry { name: name.into_owned(), position, name_end, value });
            } else {
                lines.insert(name.clone().into_owned(), position.line);
                entries.push(YamlEntry { name: name.into_owned(), position, name_end, value });
            }
        }
        if !merged.is_empty() {
            let mut known: HashSet<String> = lines.into_keys().collect();
            merged.into_iter().try_for_each(|node| merge(node, &mut known, &mut entries, repeated))?;
        }
        Ok(entries)
    }

    fn next_in_collection(&mut self) -> Result<Option<(Event<'t>, Span)>, Diagnostic> {
        match self.events.next() {
            None | Some(Ok((Event::SequenceEnd | Event::MappingEnd, _))) => Ok(None),
            Some(Ok(event)) => Ok(Some(event)),
            Some(Err(error)) => Err(syntax_error(error)),
        }
    }

    fn count(&mut self, nodes: usize, position: TextPosition) -> Result<(), Diagnostic> {
        self.nodes += nodes;
        if self.nodes > MOST_NODES {
            return Err(problem(position, "the document is too large", "are aliases multiplying it?"));
        }
        Ok(())
    }
}

impl YamlNode {
    /// What holding another copy of it costs, in nodes.
    pub(super) fn size(&self) -> usize {
        match &self.content {
            YamlContent::Scalar(Value::String(text)) => 1 + text.len() / BYTES_PER_NODE,
            YamlContent::Scalar(_) => 1,
            YamlContent::Sequence(items) => 1 + items.iter().map(Self::size).sum::<usize>(),
            YamlContent::Mapping(entries) => {
                let size = |entry: &YamlEntry| entry.name.len() / BYTES_PER_NODE + entry.value.size();
                1 + entries.iter().chain(&self.repeated).map(size).sum::<usize>()
            }
        }
    }
}

/// `<<: *base`: the entries of another mapping, except those that are given here.
fn merge(
    node: YamlNode,
    known: &mut HashSet<String>,
    into: &mut Vec<YamlEntry>,
    repeated: &mut Vec<YamlEntry>,
) -> Result<(), Diagnostic> {
    let position = node.position;
    match node.content {
        YamlContent::Mapping(entries) => {
            for entry in entries {
                let to = if known.insert(entry.name.clone()) { &mut *into } else { &mut *repeated };
                to.push(entry);
            }
            repeated.extend(node.repeated);
            Ok(())
        }
        YamlContent::Sequence(items) => {
            items.into_iter().try_for_each(|item| merge(item, known, into, repeated))
        }
        YamlContent::Scalar(_) => Err(problem(position, "only a mapping can be merged", "write `<<: *name`")),
    }
}

/// A scalar by YAML 1.2's core schema; what is quoted is text.
fn scalar(text: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return Value::String(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number),
    }
}

/// A whole number only as JSON writes it: `007` and `+5` may be keys, and stay what they are.
fn number(text: &str) -> Option<Number> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) {
        return None;
    }
    if let Some(whole) = text.parse::<u64>().ok().filter(|whole| whole.to_string() == text) {
        return Some(whole.into());
    }
    if let Some(whole) = text.parse::<i64>().ok().filter(|whole| whole.to_string() == text) {
        return Some(whole.into());
    }
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'+') && text.len() < 20 {
        return None;
    }
    // A double prints the shortest decimal that reads back as itself: up to 15 digits, what was written.
    text.parse::<f64>().ok().and_then(Number::from_f64)
}

fn position(span: &Span) -> TextPosition {
    let (start, end) = (span.start, span.end);
    let width = if start.line() == end.line() { end.col().saturating_sub(start.col()) } else { 1 };
    TextPosition { line: start.line().max(1), column: start.col() + 1, width: width.max(1) }
}

fn end(span: &Span) -> (usize, usize) {
    (span.end.line().max(1), span.end.col() + 1)
}

fn syntax_error(error: granit_parser::ScanError) -> Diagnostic {
    let mark = error.marker();
    let position = TextPosition { line: mark.line().max(1), column: mark.col() + 1, width: 1 };
    let info = error.info();
    if info.contains("recursion limit") {
        return too_deep(position);
    }
    if info.contains("unknown anchor") {
        return problem(position, "no anchor of this name stands above", "set one with `&name`");
    }
    let hint = match info.contains("tab") {
        true => "indent with spaces",
        false => "look at the indentation, quotes and brackets up to here",
    };
    problem(position, &format!("this is not YAML: {info}"), hint)
}

fn too_deep(position: TextPosition) -> Diagnostic {
    problem(position, "nested too deeply", "nothing here needs that many levels")
}

fn problem(position: TextPosition, message: &str, hint: &str) -> Diagnostic {
    Diagnostic {
        severity: Severity::Error,
        position,
        message: message.to_owned(),
        hint: Some(hint.to_owned()),
    }
}
