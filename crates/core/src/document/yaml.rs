//! From text to a tree of values with positions, on top of the parser's events.

use super::{At, Segment};
use crate::problem::{Position, Problem, Severity};
use granit_parser::{Event, Parser, ScalarStyle, Span};
use serde_json::{Map, Number, Value};
use std::collections::HashMap;

/// Bounds on what a document may make us hold, aliases counted at each use.
const MOST_NODES: usize = 500_000;
const DEEPEST: usize = 64;

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Node {
    position: Position,
    content: Content,
    /// Something was cut out below.
    damaged: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    Scalar(Value),
    Sequence(Vec<Node>),
    Mapping(Vec<Entry>),
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    name: String,
    position: Position,
    value: Node,
}

impl Node {
    /// The plain value, for serde.
    pub(super) fn to_json(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::Sequence(items) => items.iter().map(Self::to_json).collect(),
            Content::Mapping(entries) => Value::Object(
                entries.iter().map(|e| (e.name.clone(), e.value.to_json())).collect::<Map<_, _>>(),
            ),
        }
    }

    /// Where `path` stands; of what is not there, where the nearest thing above it does.
    pub(super) fn locate(&self, path: &[Segment], at: At) -> Position {
        let Some((first, rest)) = path.split_first() else { return self.position };
        match (first, &self.content) {
            (Segment::Field(name), Content::Mapping(entries)) => {
                match entries.iter().find(|entry| entry.name == *name) {
                    Some(entry) if rest.is_empty() && at == At::Name => entry.position,
                    Some(entry) => entry.value.locate(rest, at),
                    None => self.position,
                }
            }
            (Segment::Index(index), Content::Sequence(items)) => {
                items.get(*index).map_or(self.position, |item| item.locate(rest, at))
            }
            _ => self.position,
        }
    }

    /// Takes the value at `path` out of its parent. False if there is none.
    pub(super) fn cut(&mut self, path: &[Segment]) -> bool {
        let Some((first, rest)) = path.split_first() else { return false };
        let cut = match (first, &mut self.content) {
            (Segment::Field(name), Content::Mapping(entries)) => {
                match entries.iter().position(|entry| entry.name == *name) {
                    Some(found) if rest.is_empty() => {
                        entries.remove(found);
                        true
                    }
                    Some(found) => entries[found].value.cut(rest),
                    None => false,
                }
            }
            (Segment::Index(index), Content::Sequence(items)) if *index < items.len() => {
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

    /// Whether anything was cut out of the value at `path`.
    pub(super) fn is_damaged(&self, path: &[Segment]) -> bool {
        let Some((first, rest)) = path.split_first() else { return self.damaged };
        match (first, &self.content) {
            (Segment::Field(name), Content::Mapping(entries)) => entries
                .iter()
                .find(|entry| entry.name == *name)
                .map_or(self.damaged, |entry| entry.value.is_damaged(rest)),
            (Segment::Index(index), Content::Sequence(items)) => {
                items.get(*index).map_or(self.damaged, |item| item.is_damaged(rest))
            }
            _ => self.damaged,
        }
    }
}

/// Reads the one document in `text`. An empty one is an empty mapping.
pub(super) fn parse(text: &str) -> Result<Node, Problem> {
    let mut builder = Builder { events: Parser::new_from_str(text), anchors: HashMap::new(), nodes: 0 };
    let start = Position { line: 1, column: 1, width: 1 };
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
    let empty = Node { position: start, content: Content::Mapping(Vec::new()), damaged: false };
    Ok(match root {
        Some(node) if matches!(node.content, Content::Scalar(Value::Null)) => empty,
        Some(node) => node,
        None => empty,
    })
}

struct Builder<'t> {
    events: Parser<'t, granit_parser::StrInput<'t>>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
}

impl<'t> Builder<'t> {
    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Node, Problem> {
        let position = position(&span);
        if depth > DEEPEST {
            return Err(problem(position, "nested too deeply", "no rule needs that many levels"));
        }
        self.count(1, position)?;
        let (anchor, content) = match event {
            Event::Scalar(text, style, anchor, _) => (anchor, Content::Scalar(scalar(&text, style))),
            Event::SequenceStart(_, anchor, _) => (anchor, Content::Sequence(self.sequence(depth)?)),
            Event::MappingStart(_, anchor, _) => (anchor, Content::Mapping(self.mapping(depth)?)),
            Event::Alias(anchor) => {
                let target = self.anchors.get(&anchor).cloned();
                let target = target
                    .ok_or_else(|| problem(position, "this alias refers to itself", "write the value out"))?;
                self.count(target.size(), position)?;
                return Ok(target);
            }
            _ => return Err(problem(position, "this cannot be read", "is it meant to be a value?")),
        };
        let node = Node { position, content, damaged: false };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn sequence(&mut self, depth: usize) -> Result<Vec<Node>, Problem> {
        let mut items = Vec::new();
        while let Some((event, span)) = self.next_in_collection()? {
            items.push(self.node(event, span, depth + 1)?);
        }
        Ok(items)
    }

    fn mapping(&mut self, depth: usize) -> Result<Vec<Entry>, Problem> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut merged = Vec::new();
        while let Some((event, span)) = self.next_in_collection()? {
            let position = position(&span);
            let Event::Scalar(name, ..) = event else {
                return Err(problem(position, "a name was expected here", "only plain words name an entry"));
            };
            let Some((event, span)) = self.next_in_collection()? else { break };
            let value = self.node(event, span, depth + 1)?;
            if name == "<<" {
                merged.push(value);
            } else if entries.iter().any(|entry| entry.name == name) {
                let message = format!("`{name}` is given twice");
                return Err(problem(
                    Position { width: name.chars().count().max(1), ..position },
                    &message,
                    "keep one of them",
                ));
            } else {
                entries.push(Entry { name: name.into_owned(), position, value });
            }
        }
        for node in merged {
            merge(node, &mut entries)?;
        }
        Ok(entries)
    }

    fn next_in_collection(&mut self) -> Result<Option<(Event<'t>, Span)>, Problem> {
        match self.events.next() {
            None | Some(Ok((Event::SequenceEnd | Event::MappingEnd, _))) => Ok(None),
            Some(Ok(event)) => Ok(Some(event)),
            Some(Err(error)) => Err(syntax_error(error)),
        }
    }

    fn count(&mut self, nodes: usize, position: Position) -> Result<(), Problem> {
        self.nodes += nodes;
        if self.nodes > MOST_NODES {
            return Err(problem(position, "the document is too large", "are aliases multiplying it?"));
        }
        Ok(())
    }
}

impl Node {
    fn size(&self) -> usize {
        match &self.content {
            Content::Scalar(_) => 1,
            Content::Sequence(items) => 1 + items.iter().map(Self::size).sum::<usize>(),
            Content::Mapping(entries) => 1 + entries.iter().map(|entry| entry.value.size()).sum::<usize>(),
        }
    }
}

/// `<<: *base`: the entries of another mapping, except those that are given here.
fn merge(node: Node, into: &mut Vec<Entry>) -> Result<(), Problem> {
    let position = node.position;
    match node.content {
        Content::Mapping(entries) => {
            for entry in entries {
                if !into.iter().any(|known| known.name == entry.name) {
                    into.push(entry);
                }
            }
            Ok(())
        }
        Content::Sequence(items) => items.into_iter().try_for_each(|item| merge(item, into)),
        Content::Scalar(_) => Err(problem(position, "only a mapping can be merged", "write `<<: *name`")),
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

fn number(text: &str) -> Option<Number> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) {
        return None;
    }
    let text = text.strip_prefix('+').unwrap_or(text);
    if let Ok(whole) = text.parse::<u64>() {
        return Some(whole.into());
    }
    if let Ok(whole) = text.parse::<i64>() {
        return Some(whole.into());
    }
    // A double prints the shortest decimal that reads back as itself: up to 15 digits, what was written.
    text.parse::<f64>().ok().and_then(Number::from_f64)
}

fn position(span: &Span) -> Position {
    let (start, end) = (span.start, span.end);
    let width = if start.line() == end.line() { end.col().saturating_sub(start.col()) } else { 1 };
    Position { line: start.line().max(1), column: start.col() + 1, width: width.max(1) }
}

fn syntax_error(error: granit_parser::ScanError) -> Problem {
    let mark = error.marker();
    let position = Position { line: mark.line().max(1), column: mark.col() + 1, width: 1 };
    problem(
        position,
        &format!("this is not YAML: {}", error.info()),
        "look at the indentation, quotes and brackets up to here",
    )
}

fn problem(position: Position, message: &str, hint: &str) -> Problem {
    Problem { severity: Severity::Error, position, message: message.to_owned(), hint: Some(hint.to_owned()) }
}
