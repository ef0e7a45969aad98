//! Builds the tree of a document from the events of the YAML parser.

use super::yaml_tree::{BYTES_PER_NODE, YamlContent, YamlEntry, YamlNode, YamlScalar};
use crate::diagnostic::{Diagnostic, Severity, TextPosition};
use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span, StrInput};
use std::collections::{HashMap, HashSet};

/// The largest document, in nodes; aliases count at each use.
const MOST_NODES: usize = 500_000;
const DEEPEST: usize = 64;

/// Parses the only document in `text`, and returns it with the errors that do not end the parse. An empty document is
/// an empty mapping.
pub(super) fn parse(text: &str) -> Result<(YamlNode, Vec<Diagnostic>), Diagnostic> {
    let mut builder = YamlTreeBuilder {
        events: Parser::new_from_str(text),
        anchors: HashMap::new(),
        nodes: 0,
        errors: Vec::new(),
    };
    let start = TextPosition { line: 1, column: 1, width: 1 };
    let mut root = None;
    while let Some(event) = builder.events.next() {
        match event.map_err(|error| syntax_error(&error))? {
            (Event::StreamStart | Event::StreamEnd | Event::DocumentEnd, _) => {}
            (Event::DocumentStart(..), span) if root.is_some() => {
                return Err(error(position(&span), "a second document starts here", "keep one per file"));
            }
            (Event::DocumentStart(..), _) => {}
            (event, span) => root = Some(builder.node(event, span, 0)?),
        }
    }
    let root = root.filter(|node| !node.is_null());
    let root = root.unwrap_or_else(|| YamlNode::new(start, (1, 1), YamlContent::Mapping(Vec::new())));
    Ok((root, builder.errors))
}

struct YamlTreeBuilder<'t> {
    events: Parser<'t, StrInput<'t>>,
    anchors: HashMap<usize, YamlNode>,
    nodes: usize,
    errors: Vec<Diagnostic>,
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
                    return Err(error(position, "this alias refers to itself", "write the value out"));
                };
                let size = target.size();
                self.count(size, position)?;
                return Ok(self.anchors[&anchor].clone());
            }
            _ => {
                return Err(error(position, "this is not a value", "expected a scalar, a list or a mapping"));
            }
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
                return Err(error(position, "expected a name here", "the name of an entry is a plain word"));
            };
            self.count(name.len() / BYTES_PER_NODE, position)?;
            let Some((event, span)) = self.next_in_collection()? else { break };
            let value = self.node(event, span, depth + 1)?;
            if name == "<<" {
                merged.push(value);
            } else if let Some(line) = lines.get(name.as_ref()) {
                let hint = format!("the first is on line {line}; keep one of them");
                self.errors.push(error(position, &format!("`{name}` is given twice"), &hint));
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
            Some(Err(error)) => Err(syntax_error(&error)),
        }
    }

    fn count(&mut self, nodes: usize, position: TextPosition) -> Result<(), Diagnostic> {
        self.nodes += nodes;
        if self.nodes > MOST_NODES {
            return Err(error(position, "the document is too large", "check whether aliases multiply it"));
        }
        Ok(())
    }
}

/// `<<: *base`: the entries of another mapping, except those that are given here.
fn merge(
    node: YamlNode,
    known: &mut HashSet<String>,
    into: &mut Vec<YamlEntry>,
    repeated: &mut Vec<YamlEntry>,
) -> Result<(), Diagnostic> {
    let position = node.position();
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
        YamlContent::Scalar(_) => Err(error(position, "only a mapping can be merged", "write `<<: *name`")),
    }
}

/// A scalar by YAML 1.2's core schema; a quoted scalar is text.
fn scalar(text: &str, style: ScalarStyle) -> YamlScalar {
    if style != ScalarStyle::Plain {
        return YamlScalar::Text(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => YamlScalar::Null,
        "true" | "True" | "TRUE" => YamlScalar::Bool(true),
        "false" | "False" | "FALSE" => YamlScalar::Bool(false),
        _ => number(text).unwrap_or_else(|| YamlScalar::Text(text.to_owned())),
    }
}

/// A whole number only as JSON writes it: `007` and `+5` may be keys, and stay texts.
fn number(text: &str) -> Option<YamlScalar> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) {
        return None;
    }
    if let Some(whole) = text.parse::<u64>().ok().filter(|whole| whole.to_string() == text) {
        return Some(YamlScalar::Unsigned(whole));
    }
    if let Some(whole) = text.parse::<i64>().ok().filter(|whole| whole.to_string() == text) {
        return Some(YamlScalar::Signed(whole));
    }
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'+') && text.len() < 20 {
        return None;
    }
    // A double prints the shortest decimal that parses to itself: up to 15 digits, the text as written.
    text.parse::<f64>().ok().filter(|number| number.is_finite()).map(YamlScalar::Float)
}

fn position(span: &Span) -> TextPosition {
    let (start, end) = (span.start, span.end);
    let width = if start.line() == end.line() { end.col().saturating_sub(start.col()) } else { 1 };
    TextPosition { line: start.line().max(1), column: start.col() + 1, width: width.max(1) }
}

fn end(span: &Span) -> (usize, usize) {
    (span.end.line().max(1), span.end.col() + 1)
}

fn syntax_error(scan: &ScanError) -> Diagnostic {
    let mark = scan.marker();
    let position = TextPosition { line: mark.line().max(1), column: mark.col() + 1, width: 1 };
    let hint = match scan.kind() {
        ErrorKind::RecursionLimitExceeded => return too_deep(position),
        ErrorKind::UnknownAnchor => {
            return error(position, "there is no anchor of this name above", "set one with `&name`");
        }
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabAtBlockScalarStart
        | ErrorKind::TabInPlainScalar => "indent with spaces",
        _ => "check the indentation, quotes and brackets up to here",
    };
    error(position, &format!("this is not YAML: {}", scan.info()), hint)
}

fn too_deep(position: TextPosition) -> Diagnostic {
    error(position, "nested too deeply", "at most 64 levels")
}

fn error(position: TextPosition, message: &str, hint: &str) -> Diagnostic {
    Diagnostic {
        severity: Severity::Error,
        position,
        message: message.to_owned(),
        hint: Some(hint.to_owned()),
    }
}
