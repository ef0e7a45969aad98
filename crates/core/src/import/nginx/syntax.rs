//! The syntax of nginx configurations: words, directives, blocks.

mod lua;

use crate::diagnostic::{Diagnostic, Severity, TextPosition};

/// Blocks deeper than this are refused.
const DEEPEST: usize = 64;

/// The end of the names of directives with a block of code.
const CODE_BLOCK: &str = "_by_lua_block";

/// A word, without its quotes and escapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConfigWord {
    pub(super) text: String,
    pub(super) position: TextPosition,
}

/// A directive with its arguments, and its block if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NginxDirective {
    /// The index of its file.
    pub(super) file: usize,
    pub(super) name: ConfigWord,
    pub(super) arguments: Vec<ConfigWord>,
    pub(super) block: Option<Vec<Self>>,
}

impl NginxDirective {
    /// The argument `index`, or an empty text.
    pub(super) fn argument(&self, index: usize) -> &str {
        self.arguments.get(index).map_or("", |word| &word.text)
    }

    /// The directive as it is written, without its block.
    pub(super) fn text(&self) -> String {
        let words = std::iter::once(&self.name).chain(&self.arguments);
        words.map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ")
    }
}

/// Parses the text of a file.
pub(super) fn parse(file: usize, text: &str) -> Result<Vec<NginxDirective>, Diagnostic> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut parser = ConfigParser { file, chars: text.chars().collect(), at: 0, line: 1, column: 1 };
    parser.directives(0)
}

struct ConfigParser {
    file: usize,
    chars: Vec<char>,
    at: usize,
    line: usize,
    column: usize,
}

impl ConfigParser {
    fn directives(&mut self, depth: usize) -> Result<Vec<NginxDirective>, Diagnostic> {
        let mut directives = Vec::new();
        loop {
            self.skip_space();
            let here = self.position();
            match self.peek() {
                None if depth == 0 => return Ok(directives),
                None => return Err(error(here, "a block is not closed", "add `}`")),
                Some('}') if depth > 0 => {
                    self.next();
                    return Ok(directives);
                }
                Some('}') => return Err(error(here, "no block is open here", "remove `}`, or add the `{`")),
                Some(';' | '{') => {
                    return Err(error(here, "a directive must begin with its name", "remove this"));
                }
                Some(_) => directives.push(self.directive(depth)?),
            }
        }
    }

    fn directive(&mut self, depth: usize) -> Result<NginxDirective, Diagnostic> {
        let name = self.word()?;
        let mut arguments = Vec::new();
        loop {
            self.skip_space();
            let here = self.position();
            let block = match self.peek() {
                Some(';') => {
                    self.next();
                    None
                }
                Some('{') if name.text.ends_with(CODE_BLOCK) => {
                    self.skip_code()?;
                    Some(Vec::new())
                }
                Some('{') if depth >= DEEPEST => {
                    return Err(error(here, "blocks are nested too deeply", "64 levels are read"));
                }
                Some('{') => {
                    self.next();
                    Some(self.directives(depth + 1)?)
                }
                Some('}') | None => {
                    let message = format!("the directive `{}` does not end", shown(&name.text));
                    return Err(error(name.position, &message, "add `;` after it"));
                }
                Some(_) => {
                    arguments.push(self.word()?);
                    continue;
                }
            };
            return Ok(NginxDirective { file: self.file, name, arguments, block });
        }
    }

    fn word(&mut self) -> Result<ConfigWord, Diagnostic> {
        let start = self.position();
        let quote = self.peek().filter(|c| matches!(c, '"' | '\''));
        if quote.is_some() {
            self.next();
        }
        let mut text = String::new();
        loop {
            match (self.peek(), quote) {
                (None, Some(_)) => return Err(error(start, "this text is not closed", "add the quote")),
                (None, None) => break,
                (Some('\\'), _) => {
                    self.next();
                    self.escape(&mut text);
                }
                (Some(c), Some(quote)) if c == quote => {
                    self.next();
                    let after = self.peek();
                    if after.is_some_and(|c| !c.is_whitespace() && !matches!(c, ';' | '{' | '}' | ')')) {
                        let hint = "add a space, or remove the quotes";
                        return Err(error(self.position(), "a quoted text must end with its quote", hint));
                    }
                    break;
                }
                (Some('$'), None) if self.chars.get(self.at + 1) == Some(&'{') => {
                    text.push_str("${");
                    self.next();
                    self.next();
                }
                // The brace of a variable was read above, and a brace inside a word opens a block.
                (Some(c), None) if c.is_whitespace() || matches!(c, ';' | '{') => break,
                (Some('}'), None) if !text.contains("${") => break,
                (Some(c), _) => {
                    text.push(c);
                    self.next();
                }
            }
        }
        let width = if self.line == start.line { self.column.saturating_sub(start.column) } else { 1 };
        Ok(ConfigWord { text, position: TextPosition { width: width.max(1), ..start } })
    }

    /// What follows a backslash. Only quotes, the backslash and three letters are escapes.
    fn escape(&mut self, text: &mut String) {
        let Some(c) = self.peek() else {
            text.push('\\');
            return;
        };
        match c {
            '"' | '\'' | '\\' => text.push(c),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            'n' => text.push('\n'),
            _ => text.extend(['\\', c]),
        }
        self.next();
    }

    fn skip_space(&mut self) {
        while let Some(c) = self.peek() {
            if c == '#' {
                while self.peek().is_some_and(|c| c != '\n') {
                    self.next();
                }
            } else if c.is_whitespace() {
                self.next();
            } else {
                return;
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        let is_pair = c == '\r' && self.peek() == Some('\n');
        if c == '\n' || c == '\r' && !is_pair {
            self.line += 1;
            self.column = 1;
        } else {
            self.column += 1;
        }
        Some(c)
    }

    fn position(&self) -> TextPosition {
        TextPosition { line: self.line, column: self.column, width: 1 }
    }
}

/// The beginning of a word, for messages.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

pub(super) fn error(position: TextPosition, message: &str, hint: &str) -> Diagnostic {
    Diagnostic {
        severity: Severity::Error,
        position,
        message: message.to_owned(),
        hint: Some(hint.to_owned()),
    }
}

pub(super) fn warning(position: TextPosition, message: &str, hint: &str) -> Diagnostic {
    Diagnostic { severity: Severity::Warning, ..error(position, message, hint) }
}
