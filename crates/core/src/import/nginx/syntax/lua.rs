//! Blocks of Lua code: where they end. Braces in texts and comments are none of the block.

use super::{ConfigParser, error};
use crate::diagnostic::Diagnostic;

impl ConfigParser {
    /// Skips a block of code with balanced braces.
    pub(super) fn skip_code(&mut self) -> Result<(), Diagnostic> {
        let start = self.position();
        let mut open = 0usize;
        while let Some(c) = self.next() {
            match c {
                '{' => open += 1,
                '}' if open <= 1 => return Ok(()),
                '}' => open -= 1,
                '"' | '\'' => self.skip_text(c),
                '[' => {
                    self.skip_long_text();
                }
                '-' if self.peek() == Some('-') => {
                    self.next();
                    self.skip_comment();
                }
                _ => {}
            }
        }
        Err(error(start, "a block is not closed", "add `}`, and close all texts and comments in it"))
    }

    /// Skips a text up to its quote. It also ends with its line: a broken text must not hide the rest of the file.
    fn skip_text(&mut self, quote: char) {
        while let Some(c) = self.peek().filter(|c| !matches!(c, '\n' | '\r')) {
            self.next();
            match c {
                // Also a line end may be escaped.
                '\\' => {
                    self.next();
                }
                c if c == quote => return,
                _ => {}
            }
        }
    }

    fn skip_comment(&mut self) {
        if self.peek() == Some('[') {
            self.next();
            if self.skip_long_text() {
                return;
            }
        }
        while self.peek().is_some_and(|c| !matches!(c, '\n' | '\r')) {
            self.next();
        }
    }

    /// Skips a text such as `[[…]]` or `[==[…]==]` after its first bracket. Returns whether there is one.
    fn skip_long_text(&mut self) -> bool {
        let rest = &self.chars[self.at..];
        let level = rest.iter().take_while(|c| **c == '=').count();
        if rest.get(level) != Some(&'[') {
            return false;
        }
        let end: Vec<char> =
            std::iter::once(']').chain(std::iter::repeat_n('=', level)).chain([']']).collect();
        while self.at < self.chars.len() {
            if self.chars[self.at..].starts_with(&end) {
                for _ in &end {
                    self.next();
                }
                return true;
            }
            self.next();
        }
        true
    }
}
