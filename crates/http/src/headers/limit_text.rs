//! The constant text of a limit, formatted once and cached by each thread.
//!
//! Of the five default headers of a response, two depend on nothing but the limit, and so does most of the body of a 429.

use crate::body;
use http::HeaderValue;
use std::cell::RefCell;
use tollgate_limiter::LimitTerms;

/// The limits that a thread caches. Two with the same slot evict each other.
const SLOTS: usize = 64;

thread_local! {
    static CACHE: RefCell<[Option<Box<LimitText>>; SLOTS]> = const { RefCell::new([const { None }; SLOTS]) };
}

/// The constant text of a limit.
pub(crate) struct LimitText {
    terms: LimitTerms,
    /// Its quota.
    pub(crate) limit: HeaderValue,
    /// `"policy";q=100;w=60`, or of requests in flight `"policy";q=100;qu="concurrent-requests"`
    pub(crate) policy: HeaderValue,
    /// `"policy"`, as a string of a structured field.
    pub(crate) name: Box<[u8]>,
    /// The body of a 429 up to the retry time.
    pub(crate) refusal_prefix: Box<[u8]>,
}

/// Calls `read` with the text of a limit.
#[inline]
pub(crate) fn with<R>(terms: &LimitTerms, read: impl FnOnce(&LimitText) -> R) -> R {
    let names = std::ptr::from_ref(terms.names).addr();
    let mixed = (names ^ terms.quota as usize).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as usize);
    let slot = mixed >> (usize::BITS - SLOTS.ilog2());
    CACHE.with_borrow_mut(|cache| match &mut cache[slot] {
        Some(text) if text.is_of(terms) => read(text),
        other => read(other.insert(LimitText::new(terms))),
    })
}

impl LimitText {
    #[cold]
    fn new(terms: &LimitTerms) -> Box<Self> {
        let name = quoted(&terms.names.policy);
        let mut policy = name.clone();
        policy.extend_from_slice(format!(";q={}", terms.quota).as_bytes());
        if terms.window_seconds > 0 {
            policy.extend_from_slice(format!(";w={}", terms.window_seconds).as_bytes());
        } else {
            policy.extend_from_slice(br#";qu="concurrent-requests""#);
        }
        Box::new(Self {
            terms: *terms,
            limit: HeaderValue::from(terms.quota),
            policy: HeaderValue::try_from(policy).expect("printable names and numbers are header text"),
            name: name.into(),
            refusal_prefix: body::limited_prefix(terms).into(),
        })
    }

    /// Names are never freed, so equal names have equal addresses.
    fn is_of(&self, terms: &LimitTerms) -> bool {
        std::ptr::eq(self.terms.names, terms.names)
            && (self.terms.quota, self.terms.window_seconds) == (terms.quota, terms.window_seconds)
    }
}

/// The policy as a string of a structured field, which may hold printable ASCII only.
fn quoted(policy: &str) -> Vec<u8> {
    let plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
    let letters = policy.chars().map(|letter| match u8::try_from(letter) {
        Ok(byte) if plain(byte) => byte,
        // Names are ASCII, but for the µ of periods below a millisecond.
        Ok(b'\xb5') => b'u',
        _ => b'_',
    });
    [b'"'].into_iter().chain(letters).chain([b'"']).collect()
}
