//! Apache's combined format, with more fields behind it.

use super::entry::{AccessLogEntry, text};
use std::fmt::{self, Display, Write};
use tollgate_limiter::line_log::{common_log_time, is_hidden};

/// Writes an entry. Fields that have no value are `-`.
pub(super) fn write(entry: &AccessLogEntry, out: &mut Vec<u8>) {
    let header = |value: &Option<http::HeaderValue>| Quoted(value.as_ref().map(text));
    let key: Vec<String> = entry.key().collect();
    let upstream = entry.upstream.as_ref();
    let mut line = String::new();
    let written = write!(
        line,
        "{client} - - [{time}] {request} {status} {sent} {referer} {agent} host={host} outcome={outcome} rule={rule} \
         shadowed_by={shadowed_by} retry_after={retry_after} key={key} upstream={upstream} \
         upstream_time={upstream_time} time={duration} received={received} request_id={request_id} complete={complete}",
        client = entry.client,
        time = common_log_time(entry.start),
        request = Quoted(Some(format!("{} {} {:?}", entry.method, entry.shown_target(), entry.version))),
        status = entry.status,
        sent = entry.bytes_sent,
        referer = Quoted(entry.shown_referer()),
        agent = header(&entry.user_agent),
        host = header(&entry.host),
        outcome = entry.outcome().unwrap_or("-"),
        rule = Quoted(entry.rule().map(str::to_owned)),
        shadowed_by = Quoted(entry.shadowed_by().map(str::to_owned)),
        retry_after = Seconds(entry.retry_after_us()),
        key = Quoted(Some(key.join(","))),
        upstream = Quoted(upstream.map(|upstream| upstream.server.address.to_string())),
        upstream_time = Seconds(upstream.and_then(|upstream| upstream.time_us)),
        duration = Seconds(Some(entry.duration_us)),
        received = entry.bytes_received,
        request_id = header(&entry.request_id),
        complete = entry.is_complete,
    );
    written.expect("writes to a string do not fail");
    out.extend_from_slice(line.as_bytes());
}

/// A text in quotes, with quotes, backslashes and hidden characters escaped; `"-"` if it is absent or empty.
struct Quoted(Option<String>);

impl Display for Quoted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.as_deref().filter(|text| !text.is_empty()).unwrap_or("-");
        f.write_char('"')?;
        for letter in text.chars() {
            match letter {
                '"' | '\\' => write!(f, "\\{letter}")?,
                letter if is_hidden(letter) => {
                    let mut bytes = [0; 4];
                    letter.encode_utf8(&mut bytes).bytes().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
                }
                letter => f.write_char(letter)?,
            }
        }
        f.write_char('"')
    }
}

/// Microseconds in seconds, with a fraction; `-` if there are none.
struct Seconds(Option<u64>);

impl Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(us) => write!(f, "{}.{:06}", us / 1_000_000, us % 1_000_000),
            None => f.write_char('-'),
        }
    }
}
