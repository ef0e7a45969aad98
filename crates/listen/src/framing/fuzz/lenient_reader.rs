//! A request parser with leniencies, each of which some server is known to have.

use super::FuzzedRequest;
use http::Uri;

/// The number of leniencies; each is a bit of a number.
pub(super) const LENIENCIES: u32 = 7;

/// Parses requests.
pub(super) struct LenientReader<'a> {
    rest: &'a [u8],
    /// A line may end without CR.
    takes_bare_lf: bool,
    /// The last of several lengths counts, not the first.
    takes_last_length: bool,
    /// A length counts even if there is a coding.
    prefers_length: bool,
    /// `chunked` may be anywhere among the codings.
    takes_any_coding: bool,
    /// Spaces before the colon are skipped.
    trims_names: bool,
    /// A line that begins with a space goes on where the one before ended.
    unfolds: bool,
    /// A size may have spaces, a sign or `0x` before it, and anything behind it.
    takes_loose_sizes: bool,
}

impl<'a> LenientReader<'a> {
    pub(super) fn new(bytes: &'a [u8], leniencies: u32) -> Self {
        let takes = |number: u32| leniencies & 1 << number != 0;
        Self {
            rest: bytes,
            takes_bare_lf: takes(0),
            takes_last_length: takes(1),
            prefers_length: takes(2),
            takes_any_coding: takes(3),
            trims_names: takes(4),
            unfolds: takes(5),
            takes_loose_sizes: takes(6),
        }
    }

    /// The first requests, `most` of them at most.
    pub(super) fn messages(mut self, most: usize) -> Vec<FuzzedRequest> {
        let mut messages = Vec::new();
        while messages.len() < most
            && let Some(message) = self.message()
        {
            messages.push(message);
        }
        messages
    }

    fn message(&mut self) -> Option<FuzzedRequest> {
        let mut line = self.line()?;
        while line.is_empty() {
            line = self.line()?;
        }
        // In the form in which hyper returns it.
        let target = Uri::try_from(line.split(|byte| *byte == b' ').nth(1)?).ok()?.to_string();
        let headers = self.headers()?;
        let values = |wanted: &str| -> Vec<&Vec<u8>> {
            headers.iter().filter(|(name, _)| self.is_name(name, wanted)).map(|(_, value)| value).collect()
        };
        let (lengths, codings) = (values("content-length"), values("transfer-encoding"));
        let length = self.length(&lengths);
        let is_chunked = codings.iter().any(|value| {
            let value = value.to_ascii_lowercase();
            let mut tokens = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
            if self.takes_any_coding {
                tokens.any(|token| token == b"chunked")
            } else {
                tokens.next_back() == Some(b"chunked")
            }
        });
        let body = match (is_chunked, length) {
            (true, Some(length)) if self.prefers_length => self.take(length)?.to_vec(),
            (true, _) => self.chunks()?,
            (false, length) => self.take(length.unwrap_or(0))?.to_vec(),
        };
        Some(FuzzedRequest { target, body })
    }

    fn length(&self, lengths: &[&Vec<u8>]) -> Option<usize> {
        let mut parts = lengths.iter().flat_map(|value| value.split(|byte| *byte == b','));
        let part = if self.takes_last_length { parts.next_back() } else { parts.next() }?;
        self.number(part, 10)
    }

    /// A number, loosely read or by its leading digits.
    fn number(&self, text: &[u8], radix: u32) -> Option<usize> {
        let mut text = text.trim_ascii();
        if self.takes_loose_sizes {
            text = text.strip_prefix(b"+").unwrap_or(text);
            text = text.strip_prefix(b"0x").unwrap_or(text);
        }
        let digits = text.iter().take_while(|byte| char::from(**byte).is_digit(radix)).count();
        usize::from_str_radix(str::from_utf8(&text[..digits]).ok()?, radix).ok()
    }

    fn is_name(&self, name: &[u8], wanted: &str) -> bool {
        let name = if self.trims_names { name.trim_ascii() } else { name };
        name.eq_ignore_ascii_case(wanted.as_bytes())
    }

    fn headers(&mut self) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut headers: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Some(headers);
            }
            if self.unfolds
                && line[0].is_ascii_whitespace()
                && let Some((_, value)) = headers.last_mut()
            {
                value.extend_from_slice(line);
                continue;
            }
            let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
            let value = line.get(colon + 1..).unwrap_or_default();
            headers.push((line[..colon].to_vec(), value.trim_ascii().to_vec()));
        }
    }

    fn chunks(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.line()?;
            let size = self.number(line.split(|byte| *byte == b';').next()?, 16)?;
            if size == 0 {
                self.headers()?;
                return Some(body);
            }
            body.extend_from_slice(self.take(size)?);
            self.line()?;
        }
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    /// The next line without its end.
    fn line(&mut self) -> Option<&'a [u8]> {
        let mut from = 0;
        loop {
            let end = from + self.rest[from..].iter().position(|byte| *byte == b'\n')?;
            match self.rest[..end].strip_suffix(b"\r") {
                Some(line) => {
                    self.rest = &self.rest[end + 1..];
                    return Some(line);
                }
                None if self.takes_bare_lf => {
                    let line = &self.rest[..end];
                    self.rest = &self.rest[end + 1..];
                    return Some(line);
                }
                None => from = end + 1,
            }
        }
    }
}
