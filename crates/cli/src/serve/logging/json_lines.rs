//! The log as JSON: one object per line, with the fields of the event beside the message.

use std::fmt::{self, Write};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The names that every line has. A field of the same name gets a `_` at its end.
const LINE_NAMES: [&str; 4] = ["timestamp", "level", "target", "message"];

/// Formats events as JSON.
pub struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = EventFields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        writer.write_str(&line(*metadata.level(), metadata.target(), &fields.message, &fields.rest))
    }
}

/// One line. `fields` are further members of the object, each with a comma before it.
pub fn line(level: Level, target: &str, message: &str, fields: &str) -> String {
    let (target, message) = (json(target), json(message));
    format!(
        "{{\"timestamp\":\"{}\",\"level\":\"{level}\",\"target\":{target},\"message\":{message}{fields}}}\n",
        timestamp()
    )
}

/// The current time by RFC 3339 in UTC, with microseconds.
pub fn timestamp() -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The fields of an event.
#[derive(Default)]
struct EventFields {
    message: String,
    rest: String,
}

impl EventFields {
    fn add(&mut self, field: &Field, value: impl Into<serde_json::Value>) {
        let suffix = if LINE_NAMES.contains(&field.name()) { "_" } else { "" };
        let name = json(&format!("{}{suffix}", field.name()));
        // Writing to a string does not fail.
        let _ = write!(self.rest, ",{name}:{}", value.into());
    }
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" { self.message = text } else { self.add(field, text) }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" { value.clone_into(&mut self.message) } else { self.add(field, value) }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::io;
    use std::sync::Arc;
    use tracing_subscriber::layer::SubscriberExt;

    #[derive(Clone, Default)]
    struct WrittenText(Arc<Mutex<Vec<u8>>>);

    impl io::Write for WrittenText {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_an_object_with_the_fields_of_the_event() {
        let written = WrittenText::default();
        let target = written.clone();
        let layer =
            tracing_subscriber::fmt::layer().with_writer(move || target.clone()).event_format(JsonLines);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let error = io::Error::from(io::ErrorKind::BrokenPipe);
            tracing::warn!(%error, count = 3, ratio = 0.5, is_on = true, level = "own", "two\nlines, \"quoted\"");
        });
        let text = String::from_utf8(written.0.lock().clone()).unwrap();
        assert_eq!((text.matches('\n').count(), text.ends_with('\n')), (1, true), "{text}");
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        for (name, expected) in [
            ("level", serde_json::json!("WARN")),
            ("target", serde_json::json!(module_path!())),
            ("message", serde_json::json!("two\nlines, \"quoted\"")),
            ("error", serde_json::json!("broken pipe")),
            ("count", serde_json::json!(3)),
            ("ratio", serde_json::json!(0.5)),
            ("is_on", serde_json::json!(true)),
            ("level_", serde_json::json!("own")),
        ] {
            assert_eq!(line[name], expected, "{name}: {text}");
        }
        let timestamp = line["timestamp"].as_str().unwrap();
        assert_eq!(timestamp.len(), "2026-11-15T23:25:48.253033Z".len(), "{timestamp}");
        assert!(timestamp.ends_with('Z') && timestamp.as_bytes()[10] == b'T', "{timestamp}");
    }
}
