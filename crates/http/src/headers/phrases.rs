//! What answers say about a limit whenever they mention it: put together once, remembered by each thread.
//!
//! Of the five headers that come with every answer, two depend on nothing but the limit, and so does most of the
//! body of a refusal.

use crate::body;
use http::HeaderValue;
use std::cell::RefCell;
use tollgate_limiter::Terms;

/// How many limits a thread remembers. Two that want the same place take turns, and are put together anew.
const PLACES: usize = 64;

thread_local! {
    static KNOWN: RefCell<[Option<Box<LimitPhrases>>; PLACES]> = const { RefCell::new([const { None }; PLACES]) };
}

/// What is constant of a limit.
pub(crate) struct LimitPhrases {
    terms: Terms,
    /// Its size.
    pub(crate) limit: HeaderValue,
    /// `"policy";q=100;w=60`, or of requests in flight `"policy";q=100;qu="concurrent-requests"`
    pub(crate) policy: HeaderValue,
    /// `"policy"`, as a string of a structured field.
    pub(crate) name: Box<[u8]>,
    /// The body of a refusal, up to the wait.
    pub(crate) refusal: Box<[u8]>,
}

/// Lends the phrases of a limit to `say`.
#[inline]
pub(crate) fn of<R>(terms: &Terms, say: impl FnOnce(&LimitPhrases) -> R) -> R {
    let names = std::ptr::from_ref(terms.names).addr();
    let mixed = (names ^ terms.quota as usize).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as usize);
    let place = mixed >> (usize::BITS - PLACES.ilog2());
    KNOWN.with_borrow_mut(|known| match &mut known[place] {
        Some(phrases) if phrases.are_of(terms) => say(phrases),
        other => say(other.insert(LimitPhrases::new(terms))),
    })
}

impl LimitPhrases {
    #[cold]
    fn new(terms: &Terms) -> Box<Self> {
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
            refusal: body::beginning(terms).into(),
        })
    }

    /// Names are kept for good, so the same names stand at the same place.
    fn are_of(&self, terms: &Terms) -> bool {
        std::ptr::eq(self.terms.names, terms.names)
            && (self.terms.quota, self.terms.window_seconds) == (terms.quota, terms.window_seconds)
    }
}

/// The policy as a string of a structured field, which takes printable ASCII and nothing else.
fn quoted(policy: &str) -> Vec<u8> {
    let plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
    let letters = policy.chars().map(|letter| match u8::try_from(letter) {
        Ok(byte) if plain(byte) => byte,
        // Names are plain, but a period below a millisecond is written with a µ.
        Ok(b'\xb5') => b'u',
        _ => b'_',
    });
    [b'"'].into_iter().chain(letters).chain([b'"']).collect()
}
