//! Turning away who was refused and comes again.
//!
//! Who is refused mostly asks again with the same words, and some do so as fast as they can. To put a request
//! together and an answer apart then takes most of the work of saying no. So a connection on which a request was
//! refused keeps the words of the next one. If that is refused too, whoever answers requests may leave a [`RepeatRefuser`]:
//! what comes then in the same words, but for its target, is his to answer, before anybody else has seen it.
//!
//! Nothing is read here but what was read before by the usual way, which found exactly one request in it. Whatever is
//! not known word for word takes the usual way.

use crate::connection_activity::ConnectionActivity;
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
pub trait RepeatRefuser: Send {
    /// Answers the same request, but for `target`, if it is refused again: with a whole HTTP/1.1 answer in `answer`.
    fn refuse_repeat(&mut self, target: &[u8], answer: &mut Vec<u8>) -> RefusalAction;
}

/// What a refuser says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalAction {
    /// The request takes the usual way: nothing was decided or written.
    Pass,
    /// It is refused.
    Refuse,
    /// It is refused, and the connection ends with the answer.
    RefuseAndClose,
}

/// What those who answer requests tell the stream of a connection.
#[derive(Default)]
pub(crate) struct RepeatRefusals {
    /// The last answer was a refusal.
    refused: AtomicBool,
    /// The words of the request that comes next are kept.
    kept: AtomicBool,
    refuser: Mutex<Option<Box<dyn RepeatRefuser>>>,
}

impl RepeatRefusals {
    pub(crate) fn record_refusal(&self, refuser: Option<Box<dyn RepeatRefuser>>) {
        self.refused.store(true, Ordering::Relaxed);
        if refuser.is_some() {
            *self.refuser.lock() = refuser;
        }
    }

    pub(crate) fn record_other_response(&self) {
        if self.refused.load(Ordering::Relaxed) {
            self.refused.store(false, Ordering::Relaxed);
            self.leave();
        }
    }

    /// Whether the words of the request that is being answered are kept; it says so once.
    pub(crate) fn take_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed) && self.kept.swap(false, Ordering::Relaxed)
    }

    fn leave(&self) {
        *self.refuser.lock() = None;
    }
}

impl fmt::Debug for RepeatRefusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepeatRefusals").field("refused", &self.refused).finish_non_exhaustive()
    }
}

/// What a stream remembers of the request that was refused.
#[derive(Debug, Default)]
pub(crate) struct KeptRequest {
    text: Vec<u8>,
    /// Where the target stands.
    target: (usize, usize),
    misses: u8,
}

impl KeptRequest {
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
    pub(crate) fn keep(&mut self, bytes: &[u8], activity: &ConnectionActivity) {
        let repeats = &activity.repeats;
        if self.misses >= MOST_MISSES || bytes.len() > MOST_BYTES || repeats.refuser.lock().is_some() {
            return;
        }
        let Some(start) = memchr::memchr(b' ', bytes).map(|space| space + 1) else { return };
        let Some(length) = memmem::find(&bytes[start..], AFTER_TARGET) else { return };
        self.text.clear();
        self.text.extend_from_slice(bytes);
        self.target = (start, start + length);
        repeats.kept.store(true, Ordering::Relaxed);
    }

    /// Asks the refuser about what was read, if there is one and it is in the words that he knows.
    pub(crate) fn refuse_repeat(
        &mut self,
        bytes: &[u8],
        activity: &ConnectionActivity,
        answer: &mut Vec<u8>,
    ) -> RefusalAction {
        let mut refuser = activity.repeats.refuser.lock();
        let Some(known) = &mut *refuser else { return RefusalAction::Pass };
        if let Some(target) = self.target(bytes) {
            self.misses = 0;
            return known.refuse_repeat(target, answer);
        }
        self.misses += 1;
        *refuser = None;
        RefusalAction::Pass
    }
}

/// Whether the last answer on a connection was a refusal.
#[inline]
pub(crate) fn was_refused(activity: &ConnectionActivity) -> bool {
    activity.repeats.refused.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct EchoRefuser;

    impl RepeatRefuser for EchoRefuser {
        fn refuse_repeat(&mut self, target: &[u8], answer: &mut Vec<u8>) -> RefusalAction {
            answer.extend_from_slice(target);
            RefusalAction::Refuse
        }
    }

    const REQUEST: &str = "GET /a?b HTTP/1.1\r\nhost: a\r\n\r\n";

    /// What the refuser hears of `bytes` after [`REQUEST`] was refused.
    fn heard(words: &mut KeptRequest, activity: &ConnectionActivity, bytes: &str) -> Option<String> {
        words.keep(REQUEST.as_bytes(), activity);
        activity.repeats.record_refusal(
            activity.repeats.take_kept().then(|| Box::new(EchoRefuser) as Box<dyn RepeatRefuser>),
        );
        let mut answer = Vec::new();
        let word = words.refuse_repeat(bytes.as_bytes(), activity, &mut answer);
        (word == RefusalAction::Refuse).then(|| String::from_utf8(answer).unwrap())
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
            let (mut words, activity) = (KeptRequest::default(), ConnectionActivity::default());
            assert_eq!(heard(&mut words, &activity, bytes).as_deref(), target, "{bytes:?}");
        }
    }

    #[test]
    fn nothing_is_known_that_would_not_be_kept() {
        let request = |bytes: usize| {
            let (start, end) = REQUEST.split_once("a?b").unwrap();
            format!("{start}{}{end}", "a".repeat(bytes - start.len() - end.len()))
        };
        for (bytes, is_known) in [(MOST_BYTES, true), (MOST_BYTES + 1, false)] {
            let (mut words, activity) = (KeptRequest::default(), ConnectionActivity::default());
            assert_eq!(heard(&mut words, &activity, &request(bytes)).is_some(), is_known, "{bytes}");
        }
    }

    #[test]
    fn nothing_is_kept_of_who_never_repeats_himself() {
        let (mut words, activity) = (KeptRequest::default(), ConnectionActivity::default());
        let other = "GET /a?b HTTP/1.1\r\nhost: b\r\n\r\n";
        for _ in 0..MOST_MISSES - 1 {
            assert_eq!(heard(&mut words, &activity, other), None);
        }
        assert_eq!(heard(&mut words, &activity, REQUEST).as_deref(), Some("/a?b"), "it began to");
        activity.repeats.record_other_response();
        for _ in 0..MOST_MISSES {
            assert_eq!(heard(&mut words, &activity, other), None);
        }
        assert_eq!(heard(&mut words, &activity, REQUEST), None);
    }
}
