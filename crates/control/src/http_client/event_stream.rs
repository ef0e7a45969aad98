//! A stream of server-sent events.

use super::ClientConnection;
use http_body_util::BodyExt;
use hyper::body::Incoming;

/// The longest event. What is longer ends the stream.
const MOST_EVENT_BYTES: usize = 1 << 20;

/// An event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerEvent {
    /// Its name; empty if it has none.
    pub name: String,
    /// Its data.
    pub data: String,
}

/// An open stream of events. The connection is closed when it is dropped.
#[derive(Debug)]
pub struct EventStream {
    body: Incoming,
    parser: EventParser,
    _connection: ClientConnection,
}

/// Parses the bytes of a stream.
#[derive(Debug, Default)]
struct EventParser {
    /// Bytes that are not parsed yet.
    pending: Vec<u8>,
    /// The event that is not complete yet.
    event: ServerEvent,
    has_data: bool,
}

impl EventStream {
    pub(super) fn new(body: Incoming, connection: ClientConnection) -> Self {
        Self { body, parser: EventParser::default(), _connection: connection }
    }

    /// The next event, or none at the end of the stream. Comments, which a server sends to keep the stream alive, are an
    /// event without a name and data, so that a reader can tell a quiet stream from a dead one.
    pub async fn next(&mut self) -> Option<ServerEvent> {
        loop {
            if let Some(event) = self.parser.next_event() {
                return Some(event);
            }
            if self.parser.is_too_long() {
                return None;
            }
            let frame = self.body.frame().await?.ok()?;
            if let Ok(bytes) = frame.into_data() {
                self.parser.pending.extend_from_slice(&bytes);
            }
        }
    }
}

impl EventParser {
    fn is_too_long(&self) -> bool {
        self.pending.len() + self.event.data.len() > MOST_EVENT_BYTES
    }

    /// The next event that is complete.
    fn next_event(&mut self) -> Option<ServerEvent> {
        while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\n', '\r']);
            if line.is_empty() {
                if std::mem::take(&mut self.has_data) {
                    return Some(std::mem::take(&mut self.event));
                }
                self.event = ServerEvent::default();
                continue;
            }
            if line.starts_with(':') {
                return Some(ServerEvent::default());
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut self.event.name),
                "data" => {
                    if self.has_data {
                        self.event.data.push('\n');
                    }
                    self.has_data = true;
                    self.event.data.push_str(value);
                }
                _ => {}
            }
            if self.is_too_long() {
                return None;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_parsed_however_they_are_cut() {
        let stream =
            "retry: 1000\n\nevent: revision\ndata: 7\n\n: keep-alive\n\r\ndata:a\r\ndata: b\r\n\r\nid: 4\n\n";
        for size in [1, 2, 5, 1_000] {
            let mut parser = EventParser::default();
            let mut events = Vec::new();
            for piece in stream.as_bytes().chunks(size) {
                parser.pending.extend_from_slice(piece);
                while let Some(event) = parser.next_event() {
                    events.push((event.name, event.data));
                }
            }
            let expected = [("revision", "7"), ("", ""), ("", "a\nb")];
            let expected = expected.map(|(name, data)| (name.to_owned(), data.to_owned()));
            assert_eq!(events, expected, "{size}");
        }
    }
}
