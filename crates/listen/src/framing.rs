//! A second pair of eyes on where requests end.
//!
//! Two servers that disagree on where a request ends let a client hide one request inside another. Hyper
//! reads what the standard allows and sends it on in one clear form, so nothing is hidden from the server
//! behind us; but who writes such a request means harm or is broken, and the standard lets us say so.
//! Hyper has already put the pieces together when a service sees them. So the bytes are watched on their
//! way to it: at the first thing that is ambiguous they are cut off, and something follows that no request
//! may contain. Hyper then answers 400 and closes.
//!
//! Refused are: a length beside a transfer coding, two lengths, two codings, any coding but `chunked`,
//! lengths and chunk sizes that are not plain digits, lengths with leading zeros, lines that do not end in CR LF, folded lines.

#[cfg(test)]
mod fuzz;

use memchr::memchr;

/// What follows instead: the first byte is in no head, no chunk size and no trailer, and the rest is the end
/// of a head, before which hyper does not look at it.
pub(crate) const POISON: &[u8] = b"\0\r\n\r\n";
/// Longer than any head that is let in; a line that was cut by a read is kept up to here.
const LONGEST_LINE: usize = 64 << 10;

/// Where in the stream we are.
#[derive(Debug, PartialEq, Eq)]
enum FramingPosition {
    /// Before a request line, or in it.
    Start,
    Headers,
    /// In a body of which so much is left.
    Body(u64),
    ChunkSize,
    /// In a chunk of which so much is left.
    Chunk(u64),
    /// Before the line's end after a chunk.
    ChunkEnd,
    Trailers,
    /// Something was wrong.
    Over,
}

/// Follows the requests of one connection.
#[derive(Debug)]
pub(crate) struct FramingWatch {
    at: FramingPosition,
    length: Option<u64>,
    chunked: bool,
    /// The beginning of a line that was cut by a read.
    cut: Vec<u8>,
    /// Counts heads.
    requests: u32,
}

/// The line is ambiguous.
struct AmbiguousFraming;

impl FramingWatch {
    pub(crate) fn new() -> Self {
        Self { at: FramingPosition::Start, length: None, chunked: false, cut: Vec::new(), requests: 0 }
    }

    /// How many heads were seen.
    pub(crate) fn requests(&self) -> u32 {
        self.requests
    }

    /// Whether all that was seen are whole requests.
    pub(crate) fn is_between(&self) -> bool {
        self.at == FramingPosition::Start && self.cut.is_empty()
    }

    /// A request was read that was seen before.
    pub(crate) fn skip(&mut self) {
        self.requests = self.requests.wrapping_add(1);
    }

    /// Looks at what was read, and answers how much of it is clear.
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
                        self.cut.extend_from_slice(&bytes[from..]);
                        if self.cut.len() > LONGEST_LINE {
                            self.at = FramingPosition::Over;
                            return from;
                        }
                        return bytes.len();
                    };
                    if self.at == FramingPosition::Headers
                        && self.cut.is_empty()
                        && is_ordinary(&bytes[from..end])
                    {
                        // Nearly all lines are.
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

    /// A line without its LF, of which the beginning may have been cut off before.
    fn line(&mut self, end: &[u8]) -> Result<(), AmbiguousFraming> {
        if self.cut.is_empty() {
            return self.whole_line(end);
        }
        let mut line = std::mem::take(&mut self.cut);
        line.extend_from_slice(end);
        let result = self.whole_line(&line);
        line.clear();
        self.cut = line;
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
                // Extensions are for nobody, but allowed; hyper bounds them.
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

/// The number in a `Content-Length`, of which there is one spelling: no sign, no leading zero, nothing but digits.
pub fn parse_content_length(text: &[u8]) -> Option<u64> {
    let is_plain = text.iter().all(u8::is_ascii_digit) && (text.len() == 1 || text.first() != Some(&b'0'));
    str::from_utf8(text).ok().filter(|_| is_plain)?.parse().ok()
}

/// Whether a line of a head, without its LF, is certainly none that says where the request ends, nor the last one,
/// nor ambiguous.
#[inline]
fn is_ordinary(line: &[u8]) -> bool {
    matches!(line, [first, .., b'\r'] if !matches!(first, b'c' | b'C' | b't' | b'T' | b' ' | b'\t' | b'\r'))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is let through, fed in pieces of `step` bytes.
    fn seen(text: &str, step: usize) -> String {
        let mut watch = FramingWatch::new();
        let mut seen = Vec::new();
        for piece in text.as_bytes().chunks(step) {
            let clear = watch.inspect(piece);
            seen.extend_from_slice(&piece[..clear]);
        }
        String::from_utf8(seen).unwrap()
    }

    const HEAD: &str = "POST / HTTP/1.1\r\nHost: a\r\n";

    #[test]
    fn clear_requests_pass_however_they_are_cut() {
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
                assert_eq!(seen(&text, step), text, "by {step}");
            }
        }
    }

    #[test]
    fn ambiguous_requests_are_cut_off_however_they_are_cut_up() {
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
                assert_eq!(seen(&text, step), good, "by {step}");
            }
        }
    }
}
