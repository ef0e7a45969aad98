//! Turning away who was refused and comes again.
//!
//! Who is refused mostly asks again with the same words, and some do so as fast as they can. To put a request
//! together and an answer apart then takes most of the work of saying no. So a connection on which a request was
//! refused keeps the words of the next one. If that is refused too, whoever answers requests may leave a [`Doorman`]:
//! what comes then in the same words, but for its target, is his to answer, before anybody else has seen it.
//!
//! Nothing is read here but what was read before by the usual way, which found exactly one request in it. Whatever is
//! not known word for word takes the usual way.

use super::marks::Marks;
use memchr::memmem;
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Longer requests are neither kept nor known.
const MOST_BYTES: usize = 4 << 10;
/// So many requests are kept in vain before a connection is taken for one that never repeats itself.
const MOST_MISSES: u8 = 4;
/// What stands behind the target of a request.
const AFTER_TARGET: &[u8] = b" HTTP/1.1\r\n";

/// Answers requests that were refused before.
pub trait Doorman: Send {
    /// Answers the same request, but for `target`, if it is refused again: with a whole HTTP/1.1 answer in `answer`.
    fn turn_away(&mut self, target: &[u8], answer: &mut Vec<u8>) -> Word;
}

/// What a doorman says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The request takes the usual way: nothing was decided or written.
    Pass,
    /// It is refused.
    Refused,
    /// It is refused, and the connection ends with the answer.
    Farewell,
}

/// What those who answer requests tell the stream of a connection.
#[derive(Default)]
pub(super) struct Post {
    /// The last answer was a refusal.
    refused: AtomicBool,
    /// The words of the request that comes next are kept.
    kept: AtomicBool,
    doorman: Mutex<Option<Box<dyn Doorman>>>,
}

impl Post {
    pub(super) fn refused(&self, doorman: Option<Box<dyn Doorman>>) {
        self.refused.store(true, Ordering::Relaxed);
        if doorman.is_some() {
            *self.doorman.lock() = doorman;
        }
    }

    pub(super) fn passed(&self) {
        if self.refused.load(Ordering::Relaxed) {
            self.refused.store(false, Ordering::Relaxed);
            self.leave();
        }
    }

    /// Whether the words of the request that is being answered are kept; it says so once.
    pub(super) fn take_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed) && self.kept.swap(false, Ordering::Relaxed)
    }

    fn leave(&self) {
        *self.doorman.lock() = None;
    }
}

impl fmt::Debug for Post {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Post").field("refused", &self.refused).finish_non_exhaustive()
    }
}

/// What a stream remembers of the request that was refused.
#[derive(Debug, Default)]
pub(super) struct Words {
    text: Vec<u8>,
    /// Where the target stands.
    target: (usize, usize),
    misses: u8,
}

impl Words {
    /// The target of a request that is the same but for it.
    fn target<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        // Longer ones would be kept with their target, and may be longer than any head may be.
        if bytes.len() > MOST_BYTES {
            return None;
        }
        let (start, end) = self.target;
        let target = bytes.strip_prefix(&self.text[..start])?.strip_suffix(&self.text[end..])?;
        // With a space or the end of a line in it, it would be more than a target.
        (target == &self.text[start..end] || target.iter().all(u8::is_ascii_graphic)).then_some(target)
    }

    /// Keeps `bytes`, which are one request, if they may be of use.
    pub(super) fn keep(&mut self, bytes: &[u8], marks: &Marks) {
        let post = &marks.post;
        if self.misses >= MOST_MISSES || bytes.len() > MOST_BYTES || post.doorman.lock().is_some() {
            return;
        }
        let Some(start) = memchr::memchr(b' ', bytes).map(|space| space + 1) else { return };
        let Some(length) = memmem::find(&bytes[start..], AFTER_TARGET) else { return };
        self.text.clear();
        self.text.extend_from_slice(bytes);
        self.target = (start, start + length);
        post.kept.store(true, Ordering::Relaxed);
    }

    /// Asks the doorman about what was read, if there is one and it is in the words that he knows.
    pub(super) fn turn_away(&mut self, bytes: &[u8], marks: &Marks, answer: &mut Vec<u8>) -> Word {
        let mut doorman = marks.post.doorman.lock();
        let Some(known) = &mut *doorman else { return Word::Pass };
        if let Some(target) = self.target(bytes) {
            self.misses = 0;
            return known.turn_away(target, answer);
        }
        self.misses += 1;
        *doorman = None;
        Word::Pass
    }
}

/// Whether the last answer on a connection was a refusal.
#[inline]
pub(super) fn was_refused(marks: &Marks) -> bool {
    marks.post.refused.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo;

    impl Doorman for Echo {
        fn turn_away(&mut self, target: &[u8], answer: &mut Vec<u8>) -> Word {
            answer.extend_from_slice(target);
            Word::Refused
        }
    }

    const REQUEST: &str = "GET /a?b HTTP/1.1\r\nhost: a\r\n\r\n";

    /// What the doorman hears of `bytes` after [`REQUEST`] was refused.
    fn heard(words: &mut Words, marks: &Marks, bytes: &str) -> Option<String> {
        words.keep(REQUEST.as_bytes(), marks);
        marks.post.refused(marks.post.take_kept().then(|| Box::new(Echo) as Box<dyn Doorman>));
        let mut answer = Vec::new();
        let word = words.turn_away(bytes.as_bytes(), marks, &mut answer);
        (word == Word::Refused).then(|| String::from_utf8(answer).unwrap())
    }

    #[test]
    fn the_same_words_are_known_but_for_the_target() {
        let table = [
            (REQUEST, Some("/a?b")),
            ("GET /other HTTP/1.1\r\nhost: a\r\n\r\n", Some("/other")),
            ("GET  HTTP/1.1\r\nhost: a\r\n\r\n", Some("")),
            ("POST /a?b HTTP/1.1\r\nhost: a\r\n\r\n", None),
            ("GET /a?b HTTP/1.0\r\nhost: a\r\n\r\n", None),
            ("GET /a?b HTTP/1.1\r\nhost: b\r\n\r\n", None),
            ("GET /a?b HTTP/1.1\r\nhost: a\r\n\r\nGET", None),
            ("GET /a?b HTTP/1.1\r\nhost: a\r\n\r\nGET /a?b HTTP/1.1\r\nhost: a\r\n\r\n", None),
            ("GET /a?b HTTP/1.1\r\nx: y HTTP/1.1\r\nhost: a\r\n\r\n", None),
            ("GET /a b HTTP/1.1\r\nhost: a\r\n\r\n", None),
            ("GET /\u{e4} HTTP/1.1\r\nhost: a\r\n\r\n", None),
            ("GET /a?b HTTP/1.1\r\nhost: a\r\n", None),
            ("GET /a?b", None),
            ("", None),
        ];
        for (bytes, target) in table {
            let (mut words, marks) = (Words::default(), Marks::default());
            assert_eq!(heard(&mut words, &marks, bytes).as_deref(), target, "{bytes:?}");
        }
    }

    #[test]
    fn nothing_is_known_that_would_not_be_kept() {
        let request = |bytes: usize| {
            let (start, end) = REQUEST.split_once("a?b").unwrap();
            format!("{start}{}{end}", "a".repeat(bytes - start.len() - end.len()))
        };
        for (bytes, is_known) in [(MOST_BYTES, true), (MOST_BYTES + 1, false)] {
            let (mut words, marks) = (Words::default(), Marks::default());
            assert_eq!(heard(&mut words, &marks, &request(bytes)).is_some(), is_known, "{bytes}");
        }
    }

    #[test]
    fn nothing_is_kept_of_who_never_repeats_himself() {
        let (mut words, marks) = (Words::default(), Marks::default());
        let other = "GET /a?b HTTP/1.1\r\nhost: b\r\n\r\n";
        for _ in 0..MOST_MISSES - 1 {
            assert_eq!(heard(&mut words, &marks, other), None);
        }
        assert_eq!(heard(&mut words, &marks, REQUEST).as_deref(), Some("/a?b"), "it began to");
        marks.post.passed();
        for _ in 0..MOST_MISSES {
            assert_eq!(heard(&mut words, &marks, other), None);
        }
        assert_eq!(heard(&mut words, &marks, REQUEST), None);
    }
}
