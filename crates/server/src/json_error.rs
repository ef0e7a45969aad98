//! Error responses for bodies that are not the expected JSON.

use serde::Deserialize;
use serde_path_to_error::Segment;
use tollgate_core::diagnostic::nearest;
use tollgate_http::HttpError;

/// Error messages repeat what was sent, but no more than this many characters of it.
const LONGEST_MESSAGE: usize = 300;

/// The field names of a JSON object, for hints about unknown ones.
#[derive(Debug, Default)]
pub(crate) struct FieldNames {
    pub(crate) known: &'static [&'static str],
    /// Names of the same things in other formats, and the field each stands for.
    pub(crate) aliases: &'static [(&'static str, &'static str)],
}

impl FieldNames {
    fn hint(&self, unknown: &str) -> String {
        let alias = self.aliases.iter().find(|(alias, _)| *alias == unknown).map(|(_, field)| *field);
        match alias.or_else(|| nearest(unknown, self.known.iter().copied())) {
            Some(field) => format!("did you mean `{field}`?"),
            None => format!("the fields are {}", self.known.join(", ")),
        }
    }
}

/// Why `json` is not a `T`: the error with its position, the field, and a hint. The body is parsed a second time to find
/// the field.
#[cold]
pub(crate) fn json_error<'a, T: Deserialize<'a>>(
    json: &'a [u8],
    error: &serde_json::Error,
    fields: &FieldNames,
    example: &'static str,
) -> HttpError {
    let message = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    let message = message.strip_suffix(&position).unwrap_or(&message);
    let response = HttpError::bad_request(truncated(message)).at(error.line().max(1), error.column().max(1));
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let path = serde_path_to_error::deserialize::<_, T>(&mut deserializer).err();
    let path = path.as_ref().map(|error| error.path());
    let field = path.map(ToString::to_string).filter(|field| field != "." && field != "?");
    let response = match field {
        Some(field) => response.in_field(truncated(&field)),
        None => response,
    };
    let mut segments = path.into_iter().flatten();
    match (segments.next(), segments.next()) {
        (Some(Segment::Map { key }), None) if !fields.known.contains(&key.as_str()) => {
            response.with_hint(fields.hint(key))
        }
        _ if error.is_syntax() || error.is_eof() => response.with_hint(example),
        _ => response,
    }
}

fn truncated(text: &str) -> String {
    text.chars().take(LONGEST_MESSAGE).collect()
}

/// The line and column just after `text`, both from 1.
pub(crate) fn end_of(text: &[u8]) -> (usize, usize) {
    let line = 1 + text.iter().filter(|byte| **byte == b'\n').count();
    let column = 1 + text.iter().rev().take_while(|byte| **byte != b'\n').count();
    (line, column)
}
