//! The bytes of a refused request, and the comparison with what is read next.

use super::{FastPathState, RefusalAction};
use memchr::memmem;
use std::sync::atomic::Ordering;

/// Longer requests are neither kept nor compared.
const MOST_BYTES: usize = 4 << 10;
/// After so many requests that were kept in vain, the connection is taken for one that never repeats a request.
const MOST_MISSES: u8 = 4;
/// What follows the target of a request.
const AFTER_TARGET: &[u8] = b" HTTP/1.1\r\n";

/// The request that was refused last.
#[derive(Debug, Default)]
pub(super) struct KeptRequest {
    bytes: Vec<u8>,
    /// Where its target starts and ends.
    target: (usize, usize),
    misses: u8,
}

impl KeptRequest {
    /// The target of a request that is the same but for its target.
    fn target<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        // Longer ones would not have been kept, and may be longer than any head may be.
        if bytes.len() > MOST_BYTES {
            return None;
        }
        let (start, end) = self.target;
        let target = bytes.strip_prefix(&self.bytes[..start])?.strip_suffix(&self.bytes[end..])?;
        // With a space or the end of a line in it, it would be more than a target.
        (target == &self.bytes[start..end] || target.iter().all(u8::is_ascii_graphic)).then_some(target)
    }

    /// Keeps `bytes`, which are one request, unless there is a refuser for another, or they are not worth it.
    pub(super) fn keep(&mut self, bytes: &[u8], state: &FastPathState) {
        if self.misses >= MOST_MISSES || bytes.len() > MOST_BYTES || state.refuser.lock().is_some() {
            return;
        }
        let Some(start) = memchr::memchr(b' ', bytes).map(|space| space + 1) else { return };
        let Some(length) = memmem::find(&bytes[start..], AFTER_TARGET) else { return };
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.target = (start, start + length);
        state.is_kept.store(true, Ordering::Relaxed);
    }

    /// Has the refuser answer `bytes` if they are a repeat. If they are not, the refuser is dropped.
    pub(super) fn refuse_repeat(
        &mut self,
        bytes: &[u8],
        state: &FastPathState,
        response: &mut Vec<u8>,
    ) -> RefusalAction {
        let mut refuser = state.refuser.lock();
        let Some(known) = &mut *refuser else { return RefusalAction::Pass };
        if let Some(target) = self.target(bytes) {
            self.misses = 0;
            return known.refuse_repeat(target, response);
        }
        self.misses += 1;
        *refuser = None;
        RefusalAction::Pass
    }
}

#[cfg(test)]
mod tests {
    use super::super::RepeatRefuser;
    use super::*;

    struct EchoRefuser;

    impl RepeatRefuser for EchoRefuser {
        fn refuse_repeat(&mut self, target: &[u8], response: &mut Vec<u8>) -> RefusalAction {
            response.extend_from_slice(target);
            RefusalAction::Refuse
        }
    }

    const REQUEST: &str = "GET /a?b HTTP/1.1\r\nhost: a\r\n\r\n";

    /// The target that the refuser gets of `bytes` after [`REQUEST`] was refused.
    fn repeated_target(kept: &mut KeptRequest, state: &FastPathState, bytes: &str) -> Option<String> {
        kept.keep(REQUEST.as_bytes(), state);
        state.record_refusal(state.take_kept().then(|| Box::new(EchoRefuser) as Box<dyn RepeatRefuser>));
        let mut response = Vec::new();
        let action = kept.refuse_repeat(bytes.as_bytes(), state, &mut response);
        (action == RefusalAction::Refuse).then(|| String::from_utf8(response).unwrap())
    }

    #[test]
    fn repeats_may_differ_in_the_target_only() {
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
            let (mut kept, state) = (KeptRequest::default(), FastPathState::default());
            assert_eq!(repeated_target(&mut kept, &state, bytes).as_deref(), target, "{bytes:?}");
        }
    }

    #[test]
    fn long_requests_are_no_repeats() {
        let request = |bytes: usize| {
            let (start, end) = REQUEST.split_once("a?b").unwrap();
            format!("{start}{}{end}", "a".repeat(bytes - start.len() - end.len()))
        };
        for (bytes, is_repeat) in [(MOST_BYTES, true), (MOST_BYTES + 1, false)] {
            let (mut kept, state) = (KeptRequest::default(), FastPathState::default());
            let target = repeated_target(&mut kept, &state, &request(bytes));
            assert_eq!(target.is_some(), is_repeat, "{bytes}");
        }
    }

    #[test]
    fn nothing_is_kept_after_too_many_misses() {
        let (mut kept, state) = (KeptRequest::default(), FastPathState::default());
        let other = "GET /a?b HTTP/1.1\r\nhost: b\r\n\r\n";
        for _ in 0..MOST_MISSES - 1 {
            assert_eq!(repeated_target(&mut kept, &state, other), None);
        }
        assert_eq!(
            repeated_target(&mut kept, &state, REQUEST).as_deref(),
            Some("/a?b"),
            "a repeat resets the count"
        );
        state.record_other_response();
        for _ in 0..MOST_MISSES {
            assert_eq!(repeated_target(&mut kept, &state, other), None);
        }
        assert_eq!(repeated_target(&mut kept, &state, REQUEST), None);
    }
}
