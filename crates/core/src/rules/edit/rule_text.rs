//! A YAML text that is changed one value at a time. Everything else keeps its bytes.
//!
//! Each change is a few splices of the text. The result is parsed again and compared with the value that it must have:
//! a layout that a splice does not fit, such as a value shared by an anchor, gives an error and never a wrong text.

use super::source_tree::{CollectionStyle, SourceEntry, SourceItem, SourceNode, SourceShape};
use super::text_lines::{
    after_line, column, is_blank_between, is_indentation, line_break, line_end, line_start,
};
use super::yaml_text;
use crate::diagnostic::DiagnosticReport;
use crate::document::{Document, DocumentPath, PathSegment};
use serde_json::Value;
use std::ops::Range;

const BYTE_ORDER_MARK: char = '\u{feff}';

/// The text, and its values as JSON.
pub(super) struct RuleText {
    source: String,
    text: String,
    value: Value,
    root: Option<SourceNode>,
    has_byte_order_mark: bool,
}

/// How a new item of a sequence is written in block style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemForm {
    /// A mapping with each field on its line.
    Lines,
    /// In one line.
    Inline,
}

/// A range of the text and what replaces it.
struct Splice(Range<usize>, String);

/// A value and what it belongs to.
#[derive(Clone, Copy)]
struct Place<'n> {
    node: &'n SourceNode,
    owner: PlaceOwner<'n>,
    /// Inside `[…]` or `{…}`, where only the one-line form is valid.
    is_in_flow: bool,
}

#[derive(Clone, Copy)]
enum PlaceOwner<'n> {
    Document,
    Entry(&'n SourceEntry),
    Item,
}

impl RuleText {
    /// The error is a report of what is wrong with the text.
    pub(super) fn parse(source: &str, text: &str) -> Result<Self, DiagnosticReport> {
        let document = Document::parse(source, text)?;
        if document.has_errors() {
            return Err(document.into_report());
        }
        let without_mark = text.strip_prefix(BYTE_ORDER_MARK);
        let has_byte_order_mark = without_mark.is_some();
        let text = without_mark.unwrap_or(text).to_owned();
        let root = SourceNode::parse(&text).filter(|root| root.start < root.end);
        let value = document.to_json();
        let parsed = Self { source: source.to_owned(), text, value, root, has_byte_order_mark };
        if !parsed.value.is_object() {
            let hint = "write `name: value` lines";
            return Err(parsed.error(&DocumentPath::root(), "the document must be a mapping", hint));
        }
        Ok(parsed)
    }

    pub(super) fn into_text(self) -> String {
        if self.has_byte_order_mark { format!("{BYTE_ORDER_MARK}{}", self.text) } else { self.text }
    }

    /// The whole document.
    pub(super) fn value(&self) -> &Value {
        &self.value
    }

    /// The value at `path`.
    pub(super) fn get(&self, path: &DocumentPath) -> Option<&Value> {
        look_up(&self.value, path.segments())
    }

    /// A report of one error about the value at `path`.
    pub(super) fn error(&self, path: &DocumentPath, message: &str, hint: &str) -> DiagnosticReport {
        match Document::parse(&self.source, &self.text) {
            Ok(mut document) => {
                document.error(path, message, hint);
                document.into_report()
            }
            Err(report) => report,
        }
    }

    /// Sets the value at `path`, which may be a new entry of a mapping.
    pub(super) fn set(&mut self, path: &DocumentPath, value: Value) -> Result<(), DiagnosticReport> {
        if self.get(path) == Some(&value) {
            return Ok(());
        }
        let mut wanted = self.value.clone();
        if !assign(&mut wanted, path.segments(), value) {
            return Err(self.error(path, "there is no place for this value", "change the file as a whole"));
        }
        let splices = self.splices_to_set(path.segments(), &wanted);
        self.apply(path, splices, wanted)
    }

    /// Removes the value at `path` from its mapping or sequence. Does nothing if there is none.
    pub(super) fn remove(&mut self, path: &DocumentPath) -> Result<(), DiagnosticReport> {
        if self.get(path).is_none() {
            return Ok(());
        }
        let mut wanted = self.value.clone();
        delete(&mut wanted, path.segments());
        let splices = self.splices_to_remove(path.segments(), &wanted);
        self.apply(path, splices, wanted)
    }

    /// Adds an item to the sequence at `path`, which is created if there is none.
    pub(super) fn append(
        &mut self,
        path: &DocumentPath,
        item: Value,
        form: ItemForm,
    ) -> Result<(), DiagnosticReport> {
        let mut items = match self.get(path) {
            Some(Value::Array(items)) => items.clone(),
            None | Some(Value::Null) => Vec::new(),
            Some(_) => return Err(self.error(path, "expected a list", "write `[…]`, or `- ` lines")),
        };
        items.push(item.clone());
        let mut wanted = self.value.clone();
        if !assign(&mut wanted, path.segments(), Value::Array(items)) {
            return Err(self.error(path, "there is no place for this value", "change the file as a whole"));
        }
        let splices = match self.find(path.segments()) {
            Found::At(place) => match &place.node.shape {
                SourceShape::Sequence(CollectionStyle::Block, items) if !items.is_empty() => {
                    Some(self.splices_to_add_item(items, &item, form))
                }
                SourceShape::Sequence(CollectionStyle::Flow, items)
                    if place.is_in_flow || !items.is_empty() =>
                {
                    Some(self.splices_to_add_in_flow(
                        place.node,
                        items.last().map(SourceItem::end),
                        &yaml_text::inline(&item),
                    ))
                }
                SourceShape::Sequence(..) | SourceShape::Scalar => {
                    self.splices_for_first_item(place, &item, form)
                }
                SourceShape::Alias | SourceShape::Mapping(..) => {
                    self.splices_to_set(path.segments(), &wanted)
                }
            },
            Found::MissingBelow { place, depth } if depth + 1 == path.segments().len() => {
                self.splices_for_new_list(place, path.name().unwrap_or_default(), &item, form)
            }
            Found::MissingBelow { .. } | Found::NoRoot => {
                let name = path.name().unwrap_or_default();
                Some(vec![self.at_the_end(&self.new_list(name, &item, form))])
            }
        };
        self.apply(path, splices, wanted)
    }

    /// Replaces the text by the one with `splices`, if it has the values `wanted`.
    fn apply(
        &mut self,
        path: &DocumentPath,
        splices: Option<Vec<Splice>>,
        wanted: Value,
    ) -> Result<(), DiagnosticReport> {
        let changed = splices.and_then(|splices| spliced(&self.text, splices));
        let changed = changed.and_then(|text| Self::parse(&self.source, &text).ok());
        match changed.filter(|changed| changed.value == wanted) {
            Some(changed) => {
                self.text = changed.text;
                self.value = changed.value;
                self.root = changed.root;
                Ok(())
            }
            None => {
                let message = "this part of the file cannot be changed on its own";
                let hint = "it is shared by an anchor, or its layout is unusual; change the file as a whole";
                Err(self.error(path, message, hint))
            }
        }
    }

    fn splices_to_set(&self, path: &[PathSegment], wanted: &Value) -> Option<Vec<Splice>> {
        match self.find(path) {
            Found::At(place) => self.splices_to_replace(place, look_up(wanted, path)?),
            Found::MissingBelow { place, depth } => {
                let (here, below) = (&path[..depth], &path[..=depth]);
                match (&place.node.shape, below.last()) {
                    (SourceShape::Mapping(..), Some(PathSegment::Field(name))) => {
                        Some(self.splices_to_add_entry(place, name, look_up(wanted, below)?))
                    }
                    // A value that is shared with another part of the file is written out here.
                    (SourceShape::Alias, _) => self.splices_to_replace(place, look_up(wanted, here)?),
                    _ => None,
                }
            }
            Found::NoRoot => {
                let Some(PathSegment::Field(name)) = path.first() else { return None };
                let text = yaml_text::block_entry(name, look_up(wanted, &path[..1])?, 0, self.line_break());
                Some(vec![self.at_the_end(&text)])
            }
        }
    }

    fn splices_to_replace(&self, place: Place<'_>, value: &Value) -> Option<Vec<Splice>> {
        let (node, text) = (place.node, yaml_text::inline(value));
        let is_collection = matches!(value, Value::Array(items) if !items.is_empty())
            || matches!(value, Value::Object(fields) if !fields.is_empty());
        if node.is_block() && is_collection {
            let lines = yaml_text::block(value, column(&self.text, node.start), self.line_break());
            return Some(vec![Splice(node.start..node.end, lines)]);
        }
        match place.owner {
            PlaceOwner::Entry(entry) if node.is_block() => Some(vec![
                Splice(entry.name_end..entry.name_end, format!(" {text}")),
                Splice(line_start(&self.text, node.start)..after_line(&self.text, node.end), String::new()),
            ]),
            PlaceOwner::Entry(entry) if node.start == node.end => {
                Some(vec![Splice(entry.name_end..entry.name_end, format!(" {text}"))])
            }
            _ if node.start == node.end => None,
            _ => Some(vec![Splice(node.start..node.end, text)]),
        }
    }

    fn splices_to_add_entry(&self, place: Place<'_>, name: &str, value: &Value) -> Vec<Splice> {
        let SourceShape::Mapping(style, entries) = &place.node.shape else { return Vec::new() };
        match (style, entries.first(), entries.last()) {
            (CollectionStyle::Block, Some(first), Some(last)) => {
                let indent = column(&self.text, first.start);
                let text = yaml_text::block_entry(name, value, indent, self.line_break());
                vec![self.line_after(last.end(), indent, &text, self.has_blank_before_last_entry(entries))]
            }
            _ => {
                let text = format!("{}: {}", yaml_text::scalar(name), yaml_text::inline(value));
                self.splices_to_add_in_flow(place.node, entries.last().map(SourceEntry::end), &text)
            }
        }
    }

    /// Adds `text` to `[…]` or `{…}`, after the last part if there is one.
    fn splices_to_add_in_flow(&self, node: &SourceNode, last_end: Option<usize>, text: &str) -> Vec<Splice> {
        match last_end {
            Some(end) => vec![Splice(end..end, format!(", {text}"))],
            None if matches!(node.shape, SourceShape::Mapping(..)) => {
                vec![Splice(node.start + 1..node.end.saturating_sub(1), format!(" {text} "))]
            }
            None => vec![Splice(node.start + 1..node.end.saturating_sub(1), text.to_owned())],
        }
    }

    fn splices_to_add_item(&self, items: &[SourceItem], item: &Value, form: ItemForm) -> Vec<Splice> {
        let [.., last] = items else { return Vec::new() };
        let indent = column(&self.text, items[0].start);
        let text = item_text(item, form, indent, self.line_break());
        let is_spaced = match items {
            [.., before, last] => is_blank_between(&self.text, before.end(), last.start),
            _ => form == ItemForm::Lines,
        };
        vec![self.line_after(last.end(), indent, &text, is_spaced)]
    }

    /// The first item of `name: []` or of `name:`.
    fn splices_for_first_item(&self, place: Place<'_>, item: &Value, form: ItemForm) -> Option<Vec<Splice>> {
        let PlaceOwner::Entry(entry) = place.owner else { return None };
        let indent = column(&self.text, entry.start) + 2;
        let text = item_text(item, form, indent, self.line_break());
        let end = entry.end();
        Some(vec![Splice(entry.name_end..end, String::new()), self.line_after(end, indent, &text, false)])
    }

    fn splices_for_new_list(
        &self,
        place: Place<'_>,
        name: &str,
        item: &Value,
        form: ItemForm,
    ) -> Option<Vec<Splice>> {
        match &place.node.shape {
            SourceShape::Mapping(CollectionStyle::Block, entries) => {
                let (first, last) = (entries.first()?, entries.last()?);
                let indent = column(&self.text, first.start);
                let text = self.new_list(name, item, form);
                let is_spaced = self.has_blank_before_last_entry(entries);
                Some(vec![self.line_after(last.end(), indent, &text, is_spaced)])
            }
            SourceShape::Mapping(CollectionStyle::Flow, _) => {
                Some(self.splices_to_add_entry(place, name, &Value::Array(vec![item.clone()])))
            }
            _ => None,
        }
    }

    /// A list at the top of the document.
    fn new_list(&self, name: &str, item: &Value, form: ItemForm) -> String {
        let line_break = self.line_break();
        format!("{}:{line_break}  {}", yaml_text::scalar(name), item_text(item, form, 2, line_break))
    }

    fn splices_to_remove(&self, path: &[PathSegment], wanted: &Value) -> Option<Vec<Splice>> {
        let (last, parent) = path.split_last()?;
        if let Found::MissingBelow { place, depth } = self.find(path)
            && matches!(place.node.shape, SourceShape::Alias)
        {
            return self.splices_to_replace(place, look_up(wanted, &path[..depth])?);
        }
        let (Found::At(place), Found::At(_)) = (self.find(parent), self.find(path)) else { return None };
        match (&place.node.shape, last) {
            (SourceShape::Mapping(style, entries), PathSegment::Field(name)) => {
                let index = entries.iter().position(|entry| entry.name == *name)?;
                let parts: Vec<_> = entries.iter().map(|entry| entry.start..entry.end()).collect();
                self.splices_to_remove_part(place, *style, &parts, index)
            }
            (SourceShape::Sequence(style, items), PathSegment::Index(index)) => {
                let parts: Vec<_> = items.iter().map(|item| item.start..item.end()).collect();
                self.splices_to_remove_part(place, *style, &parts, *index)
            }
            _ => None,
        }
    }

    fn splices_to_remove_part(
        &self,
        place: Place<'_>,
        style: CollectionStyle,
        parts: &[Range<usize>],
        index: usize,
    ) -> Option<Vec<Splice>> {
        let part = parts.get(index)?.clone();
        let next = parts.get(index + 1);
        if parts.len() == 1 {
            let is_mapping = matches!(place.node.shape, SourceShape::Mapping(..));
            let empty =
                if is_mapping { Value::Object(serde_json::Map::new()) } else { Value::Array(Vec::new()) };
            return match place.owner {
                PlaceOwner::Document if style == CollectionStyle::Block => {
                    Some(vec![Splice(place.node.start..place.node.end, yaml_text::inline(&empty))])
                }
                _ => self.splices_to_replace(place, &empty),
            };
        }
        let is_alone = style == CollectionStyle::Block && is_indentation(&self.text, part.start);
        let range = match (style, next) {
            _ if is_alone => self.whole_lines(part),
            // The first field of a list item shares the line of the dash.
            (_, Some(next)) => part.start..next.start,
            (CollectionStyle::Flow, None) => parts[index.checked_sub(1)?].end..part.end,
            (CollectionStyle::Block, None) => return None,
        };
        Some(vec![Splice(range, String::new())])
    }

    /// The lines of `part`, with the blank line after it if there is one before it too.
    fn whole_lines(&self, part: Range<usize>) -> Range<usize> {
        let text = &self.text;
        let (from, to) = (line_start(text, part.start), after_line(text, part.end));
        let before = line_start(text, from.saturating_sub(1));
        let is_blank_before = text[before..from].trim().is_empty();
        let next = &text[to..after_line(text, to)];
        let is_blank_after = !next.is_empty() && next.trim().is_empty();
        if is_blank_before && is_blank_after { from..after_line(text, to) } else { from..to }
    }

    /// A line with `text` after the line in which `end` is.
    fn line_after(&self, end: usize, indent: usize, text: &str, is_spaced: bool) -> Splice {
        let at = line_end(&self.text, end);
        let line_break = self.line_break();
        let blank = if is_spaced { line_break } else { "" };
        Splice(at..at, format!("{blank}{line_break}{}{text}", " ".repeat(indent)))
    }

    /// `text` as the last line of a document that has only comments.
    fn at_the_end(&self, text: &str) -> Splice {
        let end = self.text.len();
        let line_break = self.line_break();
        let before = if self.text.is_empty() || self.text.ends_with(['\n', '\r']) { "" } else { line_break };
        Splice(end..end, format!("{before}{text}{line_break}"))
    }

    fn has_blank_before_last_entry(&self, entries: &[SourceEntry]) -> bool {
        match entries {
            [.., before, last] => is_blank_between(&self.text, before.end(), last.start),
            _ => false,
        }
    }

    fn line_break(&self) -> &'static str {
        line_break(&self.text)
    }

    fn find(&self, path: &[PathSegment]) -> Found<'_> {
        let Some(root) = &self.root else { return Found::NoRoot };
        let mut place = Place { node: root, owner: PlaceOwner::Document, is_in_flow: false };
        for (depth, segment) in path.iter().enumerate() {
            let is_in_flow = place.is_in_flow || place.node.style() == Some(CollectionStyle::Flow);
            let found = match (&place.node.shape, segment) {
                (SourceShape::Mapping(_, entries), PathSegment::Field(name)) => entries
                    .iter()
                    .find(|entry| entry.name == *name)
                    .map(|entry| (&entry.node, PlaceOwner::Entry(entry))),
                (SourceShape::Sequence(_, items), PathSegment::Index(index)) => {
                    items.get(*index).map(|item| (&item.node, PlaceOwner::Item))
                }
                _ => None,
            };
            match found {
                Some((node, owner)) => place = Place { node, owner, is_in_flow },
                None => return Found::MissingBelow { place, depth },
            }
        }
        Found::At(place)
    }
}

/// Where a path leads in the text.
enum Found<'n> {
    At(Place<'n>),
    /// `place` is the value of the first `depth` steps, and has no next one of its own: it is absent, merged, or behind an
    /// alias.
    MissingBelow {
        place: Place<'n>,
        depth: usize,
    },
    /// The document has no value.
    NoRoot,
}

fn item_text(item: &Value, form: ItemForm, indent: usize, line_break: &str) -> String {
    match form {
        ItemForm::Lines => yaml_text::rule_item(item, indent, line_break),
        ItemForm::Inline => format!("- {}", yaml_text::inline(item)),
    }
}

/// The text with all splices, which must not overlap.
fn spliced(text: &str, mut splices: Vec<Splice>) -> Option<String> {
    splices.sort_by_key(|Splice(range, _)| (range.start, range.end));
    let mut out = String::with_capacity(text.len() + 64);
    let mut copied = 0;
    for Splice(range, replacement) in splices {
        out.push_str(text.get(copied..range.start)?);
        out.push_str(&replacement);
        copied = range.end.max(range.start);
    }
    out.push_str(text.get(copied..)?);
    Some(out)
}

fn look_up<'v>(value: &'v Value, path: &[PathSegment]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, segment| match segment {
        PathSegment::Field(name) => value.get(name),
        PathSegment::Index(index) => value.get(index),
    })
}

/// Sets the value at `path`; missing mappings on the way are created. False if the path leads through another value.
fn assign(root: &mut Value, path: &[PathSegment], value: Value) -> bool {
    let mut at = root;
    for segment in path {
        let next = match segment {
            PathSegment::Field(name) => {
                if at.is_null() {
                    *at = Value::Object(serde_json::Map::new());
                }
                at.as_object_mut().map(|fields| fields.entry(name.as_str()).or_insert(Value::Null))
            }
            PathSegment::Index(index) => at.get_mut(index),
        };
        match next {
            Some(next) => at = next,
            None => return false,
        }
    }
    *at = value;
    true
}

fn delete(root: &mut Value, path: &[PathSegment]) {
    let Some((last, parent)) = path.split_last() else { return };
    let parent = parent.iter().try_fold(root, |value, segment| match segment {
        PathSegment::Field(name) => value.get_mut(name),
        PathSegment::Index(index) => value.get_mut(index),
    });
    match (parent, last) {
        (Some(Value::Object(fields)), PathSegment::Field(name)) => drop(fields.remove(name)),
        (Some(Value::Array(items)), PathSegment::Index(index)) if *index < items.len() => {
            items.remove(*index);
        }
        _ => {}
    }
}
