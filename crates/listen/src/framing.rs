//! Refuses requests whose end is ambiguous.
//!
//! Two servers that disagree on where a request ends let a client hide one request inside another (request smuggling). Hyper
//! accepts what the standard allows and forwards it in one clear form, so nothing is hidden from an upstream. But a client that
//! sends such a request is malicious or broken, and the standard allows a refusal. A service sees requests only after hyper has
//! parsed them, so the bytes are inspected before: at the first ambiguous one they are cut off, and bytes follow that no request
//! may contain. Hyper then responds with 400 and closes the connection.
//!
//! Refused are: a length beside a transfer coding, two lengths, two codings, any coding but `chunked`,
//! lengths and chunk sizes that are not plain digits, lengths with leading zeros, lines that do not end in CR LF, folded lines.

#[cfg(test)]
mod fuzz;

use memchr::memchr;

/// What follows instead. The first byte is valid in no head, chunk size or trailer; the rest ends a head, before which hyper does
/// not parse it.
pub(crate) const POISON: &[u8] = b"\0\r\n\r\n";
/// Longer than any head that is accepted. A line that spans several reads is buffered up to this length.
const LONGEST_LINE: usize = 64 << 10;

/// Where in a request the stream is.
#[derive(Debug, PartialEq, Eq)]
enum FramingPosition {
    /// Before a request line, or in it.
    Start,
    Headers,
    /// In a body with so many bytes left.
    Body(u64),
    ChunkSize,
    /// In a chunk with so many bytes left.
    Chunk(u64),
    /// Before the end of the line after a chunk.
    ChunkEnd,
    Trailers,
    /// Behind something ambiguous.
    Over,
}

/// Inspects the bytes of one connection.
#[derive(Debug)]
pub(crate) struct FramingWatch {
    at: FramingPosition,
    length: Option<u64>,
    chunked: bool,
    /// The beginning of a line that spans several reads.
    partial_line: Vec<u8>,
    /// Counts heads.
    requests: u32,
}

/// The line is ambiguous.
struct AmbiguousFraming;

impl FramingWatch {
    pub(crate) fn new() -> Self {
        Self {
            at: FramingPosition::Start,
            length: None,
            chunked: false,
            partial_line: Vec::new(),
            requests: 0,
        }
    }

    /// The number of heads that were inspected or skipped.
    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }

    /// Whether everything that was inspected are whole requests.
    pub(crate) fn is_between(&self) -> bool {
        self.at == FramingPosition::Start && self.partial_line.is_empty()
    }

    /// Counts a request that is not inspected.
    pub(crate) fn skip_request(&mut self) {
        self.requests = self.requests.wrapping_add(1);
    }

    /// Inspects what was read. Returns how many bytes come before anything ambiguous.
    pub(crate) fn inspect(&mut self, bytes: &[u8]) -> usize {
        let mut from = 0;
        while from < bytes.len() {
            match self.at {
                FramingPosition::Over => return from,
                FramingPosition::Body(left) => {
                    let step = left.min((bytes.len() - from) as u64);
                    from += step as usize;
                    self.at = if step == left {
                        FramingPosition::Start
                    } else {
                        FramingPosition::Body(left - step)
                    };
                }
                FramingPosition::Chunk(left) => {
                    let step = left.min((bytes.len() - from) as u64);
                    from += step as usize;
                    self.at = if step == left {
                        FramingPosition::ChunkEnd
                    } else {
                        FramingPosition::Chunk(left - step)
                    };
                }
                FramingPosition::Start
                | FramingPosition::Headers
                | FramingPosition::ChunkSize
                | FramingPosition::ChunkEnd
                | FramingPosition::Trailers => {
                    let Some(end) = memchr(b'\n', &bytes[from..]).map(|offset| from + offset) else {
                        self.partial_line.extend_from_slice(&bytes[from..]);
                        if self.partial_line.len() > LONGEST_LINE {
                            self.at = FramingPosition::Over;
                            return from;
                        }
                        return bytes.len();
                    };
                    if self.at == FramingPosition::Headers
                        && self.partial_line.is_empty()
                        && is_ordinary(&bytes[from..end])
                    {
                        // Nothing to do, for nearly all lines.
                    } else if self.line(&bytes[from..end]).is_err() {
                        self.at = FramingPosition::Over;
                        return end;
                    }
                    from = end + 1;
                }
            }
        }
        bytes.len()
    }

    /// A line without its LF; its beginning may be in `partial_line`.
    fn line(&mut self, end: &[u8]) -> Result<(), AmbiguousFraming> {
        if self.partial_line.is_empty() {
            return self.whole_line(end);
        }
        let mut line = std::mem::take(&mut self.partial_line);
        line.extend_from_slice(end);
        let result = self.whole_line(&line);
        line.clear();
        self.partial_line = line;
        result
    }

    fn whole_line(&mut self, line: &[u8]) -> Result<(), AmbiguousFraming> {
        let Some((b'\r', line)) = line.split_last() else { return Err(AmbiguousFraming) };
        match self.at {
            // Empty lines before a request are tolerated everywhere.
            FramingPosition::Start if line.is_empty() => {}
            FramingPosition::Start => {
                (self.at, self.length, self.chunked) = (FramingPosition::Headers, None, false)
            }
            FramingPosition::Headers if line.is_empty() => {
                self.requests = self.requests.wrapping_add(1);
                self.at = match (self.length, self.chunked) {
                    (Some(_), true) => return Err(AmbiguousFraming),
                    (None | Some(0), false) => FramingPosition::Start,
                    (Some(length), false) => FramingPosition::Body(length),
                    (None, true) => FramingPosition::ChunkSize,
                }
            }
            FramingPosition::Headers => self.header(line)?,
            FramingPosition::ChunkSize => {
                let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
                // Extensions are allowed; hyper bounds their length.
                if digits == 0 || digits > 15 || !matches!(line.get(digits), None | Some(b';')) {
                    return Err(AmbiguousFraming);
                }
                let digits = str::from_utf8(&line[..digits]).map_err(|_| AmbiguousFraming)?;
                let size = u64::from_str_radix(digits, 16).map_err(|_| AmbiguousFraming)?;
                self.at = if size == 0 { FramingPosition::Trailers } else { FramingPosition::Chunk(size) };
            }
            FramingPosition::ChunkEnd if line.is_empty() => self.at = FramingPosition::ChunkSize,
            FramingPosition::Trailers if line.is_empty() => self.at = FramingPosition::Start,
            FramingPosition::Trailers if line.starts_with(b" ") || line.starts_with(b"\t") => {
                return Err(AmbiguousFraming);
            }
            FramingPosition::Trailers => {}
            FramingPosition::ChunkEnd
            | FramingPosition::Body(_)
            | FramingPosition::Chunk(_)
            | FramingPosition::Over => return Err(AmbiguousFraming),
        }
        Ok(())
    }

    fn header(&mut self, line: &[u8]) -> Result<(), AmbiguousFraming> {
        let first = line.first().copied().unwrap_or_default();
        if matches!(first, b' ' | b'\t') {
            return Err(AmbiguousFraming);
        }
        if !matches!(first, b'c' | b'C' | b't' | b'T') {
            return Ok(());
        }
        let Some(colon) = memchr(b':', line) else { return Err(AmbiguousFraming) };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = parse_content_length(value).ok_or(AmbiguousFraming)?;
            if self.length.replace(length).is_some() {
                return Err(AmbiguousFraming);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding")
            && (std::mem::replace(&mut self.chunked, true) || !value.eq_ignore_ascii_case(b"chunked"))
        {
            return Err(AmbiguousFraming);
        }
        Ok(())
    }
}

/// The value of a `Content-Length`. Only digits without a leading zero are accepted, so that a number has one spelling.
pub fn parse_content_length(text: &[u8]) -> Option<u64> {
    let is_plain = text.iter().all(u8::is_ascii_digit) && (text.len() == 1 || text.first() != Some(&b'0'));
    str::from_utf8(text).ok().filter(|_| is_plain)?.parse().ok()
}

/// Whether a line of a head, without its LF, certainly does not matter: it is not the last one, not ambiguous, and does not say
/// where the request ends.
#[inline]
fn is_ordinary(line: &[u8]) -> bool {
    matches!(line, [first, .., b'\r'] if !matches!(first, b'c' | b'C' | b't' | b'T' | b' ' | b'\t' | b'\r'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What passes the watch, in reads of `step` bytes.
    fn passed(text: &str, step: usize) -> String {
        let mut watch = FramingWatch::new();
        let mut passed = Vec::new();
        for piece in text.as_bytes().chunks(step) {
            let clear = watch.inspect(piece);
            passed.extend_from_slice(&piece[..clear]);
        }
        String::from_utf8(passed).unwrap()
    }

    const HEAD: &str = "POST / HTTP/1.1\r\nHost: a\r\n";

    #[test]
    fn clear_requests_pass_in_reads_of_any_length() {
        let table = [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            format!("{HEAD}Content-Length: 5\r\n\r\na\nb\nc{HEAD}content-length: 0\r\n\r\n\r\n{HEAD}\r\n"),
            format!(
                "{HEAD}transfer-Encoding:  chunked \r\n\r\n3;x=y\r\na\nb\r\n1A\r\n{}\r\n0\r\nX: y\r\n\r\n{HEAD}\r\n",
                "z".repeat(26)
            ),
            format!(
                "{HEAD}Cookie: a\r\nTE: trailers\r\nContent-Length-X: 1\r\nContent-Length: 1\r\n\r\n\n{HEAD}\r\n"
            ),
        ];
        for text in table {
            for step in [1, 2, 3, 7, 16, 1000] {
                assert_eq!(passed(&text, step), text, "by {step}");
            }
        }
    }

    #[test]
    fn ambiguous_requests_are_cut_off_in_reads_of_any_length() {
        let table = [
            format!("{HEAD}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r|\n"),
            format!("{HEAD}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r|\n"),
            format!("{HEAD}Content-Length: 5\r\nContent-Length: 5\r|\n"),
            format!("{HEAD}Content-Length: 5, 5\r|\n"),
            format!("{HEAD}Content-Length: +5\r|\n"),
            format!("{HEAD}Content-Length: 0x5\r|\n"),
            format!("{HEAD}Content-Length:\r|\n"),
            format!("{HEAD}Content-Length: 99999999999999999999\r|\n"),
            format!("{HEAD}Transfer-Encoding: xchunked\r|\n"),
            format!("{HEAD}Transfer-Encoding: chunked, identity\r|\n"),
            format!("{HEAD}Transfer-Encoding: gzip, chunked\r|\n"),
            format!("{HEAD}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r|\n"),
            format!("{HEAD} folded: x\r|\n"),
            "GET / HTTP/1.1|\n".to_owned(),
            format!("{HEAD}X: y|\n"),
            format!("{HEAD}|\n"),
            format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n0x3\r|\n"),
            format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n-1\r|\n"),
            format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n\r|\n"),
            format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n3 \r|\n"),
            format!("{HEAD}Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r|\n"),
            format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n3|\n"),
            format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r|\n"),
            format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n0\r\nX: y|\n"),
            format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n0\r\n x\r|\n"),
        ];
        for row in table {
            let (good, bad) = row.split_once('|').unwrap();
            for step in [1, 2, 3, 7, 16, 1000] {
                let text = format!("{good}{bad}GET /hidden HTTP/1.1\r\n\r\n");
                assert_eq!(passed(&text, step), good, "by {step}");
            }
        }
    }
}
