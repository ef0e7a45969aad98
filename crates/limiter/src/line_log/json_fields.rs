//! One line of JSON, field by field.

use std::fmt::Display;
use std::io::Write;

/// Whether a character is not written to a log as it is: control characters, also those of eight bits that some terminals
/// obey, line separators, and characters that change the direction of text.
pub fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Writes an object to a line. Texts are escaped, so that a line contains no [hidden](is_hidden) character.
#[derive(Debug)]
pub struct JsonFields<'o> {
    out: &'o mut Vec<u8>,
    has_fields: bool,
}

impl<'o> JsonFields<'o> {
    /// Begins an object.
    pub fn begin(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, has_fields: false }
    }

    /// A text.
    pub fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        write_text(self.out, text);
    }

    /// A text, or null if it is absent or empty.
    pub fn optional_text(&mut self, name: &str, text: Option<&str>) {
        match text.filter(|text| !text.is_empty()) {
            Some(text) => self.text(name, text),
            None => self.null(name),
        }
    }

    /// A list of texts.
    pub fn texts(&mut self, name: &str, texts: impl IntoIterator<Item = String>) {
        self.name(name);
        self.out.push(b'[');
        for (index, text) in texts.into_iter().enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            write_text(self.out, &text);
        }
        self.out.push(b']');
    }

    /// A number, or null if there is none.
    pub fn number(&mut self, name: &str, number: Option<impl Into<u64>>) {
        match number {
            Some(number) => self.display(name, number.into()),
            None => self.null(name),
        }
    }

    /// Microseconds in milliseconds, with a fraction; or null if there are none.
    pub fn milliseconds(&mut self, name: &str, us: Option<u64>) {
        match us {
            Some(us) => self.display(name, format_args!("{}.{:03}", us / 1_000, us % 1_000)),
            None => self.null(name),
        }
    }

    /// A truth value.
    pub fn flag(&mut self, name: &str, is_set: bool) {
        self.display(name, is_set);
    }

    /// Ends the object.
    pub fn end(self) {
        self.out.push(b'}');
    }

    fn null(&mut self, name: &str) {
        self.display(name, "null");
    }

    fn display(&mut self, name: &str, value: impl Display) {
        self.name(name);
        write!(self.out, "{value}").expect("writes to a vector do not fail");
    }

    fn name(&mut self, name: &str) {
        if self.has_fields {
            self.out.push(b',');
        }
        self.has_fields = true;
        write_text(self.out, name);
        self.out.push(b':');
    }
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    // JSON escapes the control characters of ASCII but DEL.
    if !text.chars().any(|letter| letter >= '\u{7f}' && is_hidden(letter)) {
        serde_json::to_writer(out, text).expect("writes of text to a vector do not fail");
        return;
    }
    let quoted = serde_json::to_string(text).expect("a text is always JSON");
    for letter in quoted.chars() {
        if is_hidden(letter) {
            write!(out, "\\u{:04x}", u32::from(letter)).expect("writes to a vector do not fail");
        } else {
            out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_quotes_are_escaped() {
        let mut line = Vec::new();
        let mut fields = JsonFields::begin(&mut line);
        fields.text("a", "\"quoted\" \\ \n\r\t\0\u{1b}[0m ü");
        fields.optional_text("b", Some(""));
        fields.texts("c", ["x\n".to_owned(), "y".to_owned()]);
        fields.number("d", Some(7_u32));
        fields.milliseconds("e", Some(1_002_003));
        fields.flag("f", true);
        fields.number("g", None::<u64>);
        fields.end();
        let expected = r#"{"a":"\"quoted\" \\ \n\r\t\u0000\u001b[0m ü","b":null,"c":["x\n","y"],"d":7,"e":1002.003,"f":true,"g":null}"#;
        assert_eq!(String::from_utf8(line).unwrap(), expected);
    }

    #[test]
    fn what_terminals_and_editors_obey_is_escaped() {
        let text = "\u{9b}31m \u{85} \u{7f} \u{2028} \u{202e} \u{2066} ü € 🙂 \"";
        let mut line = Vec::new();
        let mut fields = JsonFields::begin(&mut line);
        fields.text("a", text);
        fields.end();
        let line = String::from_utf8(line).unwrap();
        let expected = r#"{"a":"\u009b31m \u0085 \u007f \u2028 \u202e \u2066 ü € 🙂 \""}"#;
        assert_eq!(line, expected);
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["a"], text, "a reader gets the same text");
    }
}
