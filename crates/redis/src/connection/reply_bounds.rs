//! Bounds on the replies of a server, enforced while the bytes come in.
//!
//! The client library believes the lengths that a server states, and holds whatever follows until the reply is
//! complete. A server that is broken, or not the one that it should be, could so take all memory of a node. So the
//! bytes pass through here first: the scanner knows no more of the protocol than where replies begin and end, and
//! refuses a reply as soon as its header says, or its bytes show, that it is beyond all that is ever asked for. The
//! largest honest reply is that of CLUSTER SLOTS: a slot range and its servers are some 200 bytes and 20 elements.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Of one reply, headers included.
pub(super) const MOST_BYTES: usize = 4 << 20;
/// A line: an error message, or a number.
const LONGEST_LINE: usize = 64 << 10;
/// A line that states a length.
const LONGEST_HEADER: usize = 32;
/// All elements of all arrays of one reply.
const MOST_ELEMENTS: u64 = 1 << 18;
/// Arrays within arrays. Nothing that is asked for has more than four.
const DEEPEST: usize = 16;
/// Replies to what the client library asks by itself while a connection is opened.
const MOST_WHILE_OPENING: u64 = 16;

/// What is known of the replies on one connection, to the stream and to its connection.
#[derive(Debug)]
pub(super) struct ReplyWatch {
    /// Why no further byte is read.
    fault: OnceLock<&'static str>,
    asked: AtomicU64,
    answered: AtomicU64,
}

impl Default for ReplyWatch {
    fn default() -> Self {
        let asked = AtomicU64::new(MOST_WHILE_OPENING);
        Self { fault: OnceLock::new(), asked, answered: AtomicU64::new(0) }
    }
}

impl ReplyWatch {
    /// The connection is open: from now on, every reply needs a question.
    pub(super) fn opened(&self) {
        self.asked.store(self.answered.load(Ordering::Acquire), Ordering::Release);
    }

    /// So many replies are going to come.
    pub(super) fn ask(&self, replies: usize) {
        self.asked.fetch_add(replies as u64, Ordering::AcqRel);
    }

    /// What was wrong with a reply, if one was.
    pub(super) fn fault(&self) -> Option<&'static str> {
        self.fault.get().copied()
    }
}

/// Follows the replies in a stream of bytes.
#[derive(Debug, Default)]
pub(super) struct ReplyScanner {
    state: ScanState,
    /// For each array that is open, how many elements are still to come.
    open: Vec<u64>,
    /// Of the reply that is being read.
    bytes: usize,
    elements: u64,
    is_push: bool,
}

#[derive(Debug, Default)]
enum ScanState {
    /// A reply or an element begins.
    #[default]
    StoreKind,
    /// A line of text; whether its last byte was a carriage return.
    Line { length: usize, after_return: bool },
    /// The line that states a length.
    Header { kind: u8, text: [u8; LONGEST_HEADER], length: usize },
    /// The text of a bulk string, and its line end.
    Bulk { left: usize },
}

impl ReplyScanner {
    /// Reads on. An error is what is wrong with a reply; then no further byte must be used.
    pub(super) fn read(&mut self, mut bytes: &[u8], watch: &ReplyWatch) -> Result<(), &'static str> {
        if let Some(fault) = watch.fault() {
            return Err(fault);
        }
        while !bytes.is_empty() {
            let used = self.step(bytes, watch).inspect_err(|fault| {
                // The first is the one that is told.
                let _ = watch.fault.set(fault);
            })?;
            bytes = &bytes[used..];
        }
        Ok(())
    }

    fn step(&mut self, bytes: &[u8], watch: &ReplyWatch) -> Result<usize, &'static str> {
        let used = match &mut self.state {
            ScanState::StoreKind => {
                self.bytes += 1;
                self.begin(bytes[0])?;
                1
            }
            ScanState::Line { length, after_return } => {
                let (used, is_over) = line_end(bytes, after_return);
                *length += used;
                if *length > LONGEST_LINE {
                    return Err("a line without an end");
                }
                self.bytes += used;
                if is_over {
                    self.end_value(watch)?;
                }
                used
            }
            ScanState::Header { kind, text, length } => {
                let byte = bytes[0];
                self.bytes += 1;
                if byte == b'\n' && *length > 0 && text[*length - 1] == b'\r' {
                    let (kind, stated) = (*kind, number(&text[..*length - 1])?);
                    self.enter(kind, stated, watch)?;
                } else if *length == LONGEST_HEADER {
                    return Err("a length that is no number");
                } else {
                    text[*length] = byte;
                    *length += 1;
                }
                1
            }
            // It was counted when its length was stated.
            ScanState::Bulk { left } => {
                let used = bytes.len().min(*left);
                *left -= used;
                if *left == 0 {
                    self.end_value(watch)?;
                }
                used
            }
        };
        if self.bytes > MOST_BYTES { Err("more bytes than any reply has") } else { Ok(used) }
    }

    fn begin(&mut self, kind: u8) -> Result<(), &'static str> {
        if self.open.is_empty() {
            self.is_push = kind == b'>';
        }
        self.state = match kind {
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => {
                ScanState::Line { length: 0, after_return: false }
            }
            b'$' | b'!' | b'=' | b'*' | b'~' | b'>' | b'%' | b'|' => {
                ScanState::Header { kind, text: [0; LONGEST_HEADER], length: 0 }
            }
            _ => return Err("not in the protocol of Redis"),
        };
        Ok(())
    }

    /// Begins what has this length.
    fn enter(&mut self, kind: u8, stated: i64, watch: &ReplyWatch) -> Result<(), &'static str> {
        let Ok(stated) = u64::try_from(stated) else {
            // What is not there.
            return match kind {
                b'$' | b'*' | b'~' | b'>' => self.end_value(watch),
                _ => Err("a length below zero"),
            };
        };
        let elements = match kind {
            b'$' | b'!' | b'=' => {
                let left = usize::try_from(stated).unwrap_or(usize::MAX).saturating_add(2);
                self.bytes = self.bytes.saturating_add(left);
                if self.bytes > MOST_BYTES {
                    return Err("a longer text than any reply has");
                }
                self.state = ScanState::Bulk { left };
                return Ok(());
            }
            b'%' => stated.saturating_mul(2),
            b'|' => stated.saturating_mul(2).saturating_add(1),
            _ => stated,
        };
        self.elements = self.elements.saturating_add(elements);
        if self.elements > MOST_ELEMENTS {
            return Err("more elements than any reply has");
        }
        if elements == 0 {
            return self.end_value(watch);
        }
        if self.open.len() >= DEEPEST {
            return Err("nested too deeply");
        }
        self.open.push(elements);
        self.state = ScanState::StoreKind;
        Ok(())
    }

    /// An element is complete, and with it the arrays whose last it was.
    fn end_value(&mut self, watch: &ReplyWatch) -> Result<(), &'static str> {
        self.state = ScanState::StoreKind;
        while let Some(left) = self.open.last_mut() {
            *left -= 1;
            if *left > 0 {
                return Ok(());
            }
            self.open.pop();
        }
        (self.bytes, self.elements) = (0, 0);
        if self.is_push {
            return Ok(());
        }
        let answered = watch.answered.fetch_add(1, Ordering::AcqRel) + 1;
        if answered > watch.asked.load(Ordering::Acquire) {
            return Err("a reply to nothing that was asked");
        }
        Ok(())
    }
}

/// How many of `bytes` belong to a line, and whether it ends with them.
fn line_end(bytes: &[u8], after_return: &mut bool) -> (usize, bool) {
    for (index, byte) in bytes.iter().enumerate() {
        if *after_return && *byte == b'\n' {
            return (index + 1, true);
        }
        *after_return = *byte == b'\r';
    }
    (bytes.len(), false)
}

fn number(text: &[u8]) -> Result<i64, &'static str> {
    let text = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok());
    text.ok_or("a length that is no number")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of `bytes`, and how many were read until then, in pieces of `size`.
    fn scan(bytes: impl Iterator<Item = u8>, size: usize) -> (Option<&'static str>, usize) {
        let watch = ReplyWatch::default();
        let mut scanner = ReplyScanner::default();
        let mut read = 0;
        let mut piece = Vec::new();
        let mut bytes = bytes.peekable();
        while bytes.peek().is_some() {
            piece.clear();
            piece.extend(bytes.by_ref().take(size));
            if let Err(fault) = scanner.read(&piece, &watch) {
                assert_eq!(watch.fault(), Some(fault));
                assert_eq!(scanner.read(b"+OK\r\n", &watch), Err(fault), "nothing is read afterwards");
                return (Some(fault), read);
            }
            read += piece.len();
        }
        (None, read)
    }

    #[test]
    fn honest_replies_pass_however_they_are_cut() {
        let long = format!("${}\r\n{}\r\n", 1 << 20, "x".repeat(1 << 20));
        let honest = [
            "+OK\r\n",
            "-ERR a \r b \n c\r\n",
            ":-5\r\n",
            "$0\r\n\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "*0\r\n",
            "$4\r\na\r\nb\r\n",
            "*3\r\n:1\r\n*2\r\n$1\r\na\r\n$-1\r\n*0\r\n",
            "%1\r\n+a\r\n#t\r\n",
            "|1\r\n+a\r\n:1\r\n+x\r\n",
            "=7\r\ntxt:abc\r\n",
            "_\r\n",
            long.as_str(),
        ];
        for size in [1, 2, 3, 7, 4096, usize::MAX] {
            let whole: String = honest.concat();
            assert_eq!(scan(whole.bytes(), size), (None, whole.len()), "{size}");
        }
        let pushes = ">2\r\n+message\r\n+x\r\n".repeat(10_000);
        assert_eq!(scan(pushes.bytes(), 4096).0, None, "pushes need no question");
    }

    #[test]
    fn hostile_replies_are_refused_before_they_are_held() {
        let endless = |start: &'static str, byte: u8| start.bytes().chain(std::iter::repeat(byte));
        let table: Vec<(Box<dyn Iterator<Item = u8>>, &str, usize)> = vec![
            (Box::new(b"$200000000\r\n".iter().copied()), "a longer text than any reply has", 64),
            (Box::new(b"$9223372036854775807\r\n".iter().copied()), "a longer text than any reply has", 64),
            (Box::new(b"*1000000000\r\n".iter().copied()), "more elements than any reply has", 64),
            (Box::new(b"%9223372036854775807\r\n".iter().copied()), "more elements than any reply has", 64),
            (Box::new(b"*99999999999999999999\r\n".iter().copied()), "a length that is no number", 64),
            (Box::new(b"=-1\r\n".iter().copied()), "a length below zero", 64),
            (Box::new(endless("+", b'x')), "a line without an end", LONGEST_LINE),
            (Box::new(endless("$", b'1')), "a length that is no number", 64),
            (Box::new(endless(":", b'\n')), "a line without an end", LONGEST_LINE),
            (Box::new(endless("", b'x')), "not in the protocol of Redis", 0),
            (Box::new("*1\r\n".bytes().cycle()), "nested too deeply", 256),
            (Box::new("*2\r\n".bytes().cycle()), "nested too deeply", 256),
            (
                Box::new(
                    format!("*3\r\n*100000\r\n{}*200000\r\n", "_\r\n".repeat(100_000))
                        .into_bytes()
                        .into_iter(),
                ),
                "more elements than any reply has",
                500_000,
            ),
            (
                Box::new(
                    "*250000\r\n"
                        .bytes()
                        .chain("$1000\r\n".bytes().chain([b'x'; 1000]).chain(*b"\r\n").cycle()),
                ),
                "more bytes than any reply has",
                MOST_BYTES,
            ),
            (Box::new("+OK\r\n".bytes().cycle()), "a reply to nothing that was asked", 256),
        ];
        for (bytes, expected, most) in table {
            let (fault, read) = scan(bytes, 16);
            // A text that no longer fits may be what is seen first.
            let is_expected = fault == Some(expected)
                || expected == "more bytes than any reply has"
                    && fault == Some("a longer text than any reply has");
            assert!(is_expected, "{fault:?} instead of {expected}");
            assert!(read <= most, "{expected}: {read} bytes were read before it was seen");
        }
    }
}
