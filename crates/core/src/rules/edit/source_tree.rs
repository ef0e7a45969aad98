//! The layout of a YAML text: the byte range of each value, and the punctuation around it.
//!
//! The parser reports where values start. Where a block value ends, and where its dash or colon is, follows from the
//! text between two values, which holds only spaces, comments, anchors and tags besides.

use granit_parser::{Event, Parser, ScalarStyle, Span, StrInput, StructureStyle};

/// A value in the text.
#[derive(Debug)]
pub(super) struct SourceNode {
    /// The first byte. For a block sequence, its first dash.
    pub(super) start: usize,
    /// After the last byte, without the comments and spaces that follow.
    pub(super) end: usize,
    pub(super) shape: SourceShape,
}

#[derive(Debug)]
pub(super) enum SourceShape {
    /// A scalar, or nothing if `start` is `end`.
    Scalar,
    /// `*name`.
    Alias,
    Sequence(CollectionStyle, Vec<SourceItem>),
    Mapping(CollectionStyle, Vec<SourceEntry>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CollectionStyle {
    /// `[a, b]` or `{ a: b }`.
    Flow,
    /// One line or more for each item.
    Block,
}

/// An item of a sequence.
#[derive(Debug)]
pub(super) struct SourceItem {
    /// Its first byte: the dash in a block sequence.
    pub(super) start: usize,
    pub(super) node: SourceNode,
}

/// An entry of a mapping.
#[derive(Debug)]
pub(super) struct SourceEntry {
    pub(super) name: String,
    pub(super) start: usize,
    /// After the colon; after the name if there is no colon.
    pub(super) name_end: usize,
    pub(super) node: SourceNode,
}

impl SourceItem {
    pub(super) fn end(&self) -> usize {
        self.node.end.max(self.start + 1)
    }
}

impl SourceEntry {
    pub(super) fn end(&self) -> usize {
        self.node.end.max(self.name_end)
    }
}

impl SourceNode {
    /// Parses `text`, which must be a valid document of bounded depth. `None` if it has no value.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut builder = SourceTreeBuilder { text, events: Parser::new_from_str(text) };
        loop {
            match builder.events.next()?.ok()? {
                (Event::StreamStart, _) => {}
                (Event::DocumentStart(..), span) => {
                    let after = offset(span.end)?;
                    let (event, span) = builder.events.next()?.ok()?;
                    return builder.node(event, span, after);
                }
                _ => return None,
            }
        }
    }

    /// The style, if it is a collection.
    pub(super) fn style(&self) -> Option<CollectionStyle> {
        match &self.shape {
            SourceShape::Sequence(style, _) | SourceShape::Mapping(style, _) => Some(*style),
            SourceShape::Scalar | SourceShape::Alias => None,
        }
    }

    pub(super) fn is_block(&self) -> bool {
        self.style() == Some(CollectionStyle::Block)
    }
}

struct SourceTreeBuilder<'t> {
    text: &'t str,
    events: Parser<'t, StrInput<'t>>,
}

impl<'t> SourceTreeBuilder<'t> {
    /// The value that begins with `event`. Everything up to `after` belongs to what precedes it.
    fn node(&mut self, event: Event<'t>, span: Span, after: usize) -> Option<SourceNode> {
        let (start, end) = (offset(span.start)?, offset(span.end)?);
        match event {
            Event::Alias(_) => Some(SourceNode { start, end, shape: SourceShape::Alias }),
            Event::Scalar(_, style, ..) => {
                let is_block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
                let start = if is_block { self.skip_to(after, &['|', '>'])? } else { start };
                // The range of a block scalar reaches to the next token.
                let length = self.text.get(start..end.max(start))?.trim_end().len();
                Some(SourceNode { start, end: start + length, shape: SourceShape::Scalar })
            }
            Event::SequenceStart(StructureStyle::Flow, ..) => self.flow_sequence(start, end),
            Event::SequenceStart(StructureStyle::Block, ..) => self.block_sequence(after),
            Event::MappingStart(StructureStyle::Flow, ..) => self.mapping(start, end, CollectionStyle::Flow),
            Event::MappingStart(StructureStyle::Block, ..) => {
                self.mapping(start, after, CollectionStyle::Block)
            }
            _ => None,
        }
    }

    fn flow_sequence(&mut self, start: usize, mut after: usize) -> Option<SourceNode> {
        let mut items = Vec::new();
        loop {
            match self.events.next()?.ok()? {
                (Event::SequenceEnd, span) => {
                    let shape = SourceShape::Sequence(CollectionStyle::Flow, items);
                    return Some(SourceNode { start, end: offset(span.end)?, shape });
                }
                (event, span) => {
                    let node = self.node(event, span, after)?;
                    after = node.end;
                    items.push(SourceItem { start: node.start, node });
                }
            }
        }
    }

    fn block_sequence(&mut self, mut after: usize) -> Option<SourceNode> {
        let mut items: Vec<SourceItem> = Vec::new();
        loop {
            match self.events.next()?.ok()? {
                (Event::SequenceEnd, _) => {
                    let (start, end) = (items.first()?.start, items.last()?.end());
                    let shape = SourceShape::Sequence(CollectionStyle::Block, items);
                    return Some(SourceNode { start, end, shape });
                }
                (event, span) => {
                    let start = self.skip_to(after, &['-'])?;
                    let node = self.node(event, span, start + 1)?;
                    let item = SourceItem { start, node };
                    after = item.end();
                    items.push(item);
                }
            }
        }
    }

    fn mapping(&mut self, start: usize, mut after: usize, style: CollectionStyle) -> Option<SourceNode> {
        let mut entries: Vec<SourceEntry> = Vec::new();
        loop {
            match self.events.next()?.ok()? {
                (Event::MappingEnd, span) => {
                    let end = match style {
                        CollectionStyle::Flow => offset(span.end)?,
                        CollectionStyle::Block => entries.last().map_or(after, SourceEntry::end),
                    };
                    return Some(SourceNode { start, end, shape: SourceShape::Mapping(style, entries) });
                }
                (Event::Scalar(name, ..), name_span) => {
                    let (start, end) = (offset(name_span.start)?, offset(name_span.end)?);
                    let name_end = self.colon_after(end).map_or(end, |colon| colon + 1);
                    let (event, span) = self.events.next()?.ok()?;
                    let node = self.node(event, span, name_end)?;
                    let entry = SourceEntry { name: name.into_owned(), start, name_end, node };
                    after = after.max(entry.end());
                    entries.push(entry);
                }
                _ => return None,
            }
        }
    }

    /// The first of `wanted` after spaces, comments, anchors and tags.
    fn skip_to(&self, from: usize, wanted: &[char]) -> Option<usize> {
        let mut at = from;
        loop {
            let rest = self.text.get(at..)?;
            let next = rest.chars().next()?;
            if wanted.contains(&next) {
                return Some(at);
            }
            at += match next {
                '#' => rest.find(['\n', '\r']).unwrap_or(rest.len()),
                '&' | '!' => rest.find(char::is_whitespace).unwrap_or(rest.len()),
                // The colon of the entry whose value this is, and the comma before an item.
                ':' | ',' => 1,
                c if c.is_whitespace() => c.len_utf8(),
                _ => return None,
            };
        }
    }

    fn colon_after(&self, name_end: usize) -> Option<usize> {
        let rest = self.text.get(name_end..)?;
        let spaces = rest.len() - rest.trim_start().len();
        rest[spaces..].starts_with(':').then_some(name_end + spaces)
    }
}

fn offset(mark: granit_parser::Marker) -> Option<usize> {
    mark.byte_offset()
}
