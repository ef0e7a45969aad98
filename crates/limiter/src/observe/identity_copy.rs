//! The identities of a request, for a decision that is made when the request is gone.

use smallvec::SmallVec;
use std::net::IpAddr;
use tollgate_core::request::{NamedIdentity, PerIdentity, Request};

/// The bytes of identities that are kept without an allocation.
const INLINE_BYTES: usize = 96;
/// The custom identities that are kept without an allocation.
const INLINE_IDS: usize = 2;

/// A copy of what the key and the record of a request depend on.
#[derive(Debug)]
pub(crate) struct IdentityCopy {
    /// All texts, one after the other: the named identities, then names and values of the custom ones.
    text: SmallVec<[u8; INLINE_BYTES]>,
    named: PerIdentity<Option<u32>>,
    /// The lengths of name and value.
    ids: SmallVec<[(u32, u32); INLINE_IDS]>,
    ip: Option<IpAddr>,
    cost: u64,
}

/// Whether a copy may allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyMemory {
    /// Of any size.
    Any,
    /// Only what fits without an allocation.
    Inline,
}

impl IdentityCopy {
    /// A copy of `request`; none if it does not fit.
    pub(crate) fn new(request: &Request<'_>, memory: CopyMemory) -> Option<Self> {
        let named = NamedIdentity::ALL.into_iter().filter_map(|kind| request.named(kind));
        let bytes: usize = named.map(str::len).sum::<usize>()
            + request.ids.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        let fits = bytes <= INLINE_BYTES && request.ids.len() <= INLINE_IDS;
        if memory == CopyMemory::Inline && !fits {
            return None;
        }
        let mut text = SmallVec::with_capacity(bytes);
        let mut add = |part: &str| {
            text.extend_from_slice(part.as_bytes());
            part.len() as u32
        };
        let named = PerIdentity::from_fn(|kind| request.named(kind).map(&mut add));
        let ids = request.ids.iter().map(|(name, value)| (add(name), add(value))).collect();
        Some(Self { text, named, ids, ip: request.ip, cost: request.cost })
    }

    /// Calls `with` with a request that has the same identities and cost.
    pub(crate) fn with_request<T>(&self, with: impl FnOnce(&Request<'_>) -> T) -> T {
        let mut rest = self.text.as_slice();
        let mut next = |length: u32| {
            let (part, after) = rest.split_at_checked(length as usize).unwrap_or_default();
            rest = after;
            str::from_utf8(part).unwrap_or_default()
        };
        let mut request = Request { ip: self.ip, cost: self.cost, ..Request::default() };
        for (kind, length) in self.named.iter() {
            *request.named_mut(kind) = length.map(&mut next);
        }
        let ids: SmallVec<[(&str, &str); INLINE_IDS]> =
            self.ids.iter().map(|(name, value)| (next(*name), next(*value))).collect();
        with(&Request { ids: &ids, ..request })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_the_same_identities() {
        let long = "ü".repeat(100);
        let ip = Some([192, 0, 2, 1].into());
        for (request, is_inline) in [
            (Request::default(), true),
            (Request { api_key: Some("k"), user: Some(""), ip, cost: 3, ..Request::default() }, true),
            (Request { tenant: Some("t"), ids: &[("a", "b"), ("", "ü")], ..Request::default() }, true),
            (Request { ids: &[("a", "b"), ("c", "d"), ("e", "f")], ..Request::default() }, false),
            (Request { user: Some(&long), ..Request::default() }, false),
        ] {
            assert_eq!(IdentityCopy::new(&request, CopyMemory::Inline).is_some(), is_inline);
            let copy = IdentityCopy::new(&request, CopyMemory::Any).unwrap();
            copy.with_request(|copied| {
                for kind in NamedIdentity::ALL {
                    assert_eq!(copied.named(kind), request.named(kind));
                }
                assert_eq!((copied.ids, copied.ip, copied.cost), (request.ids, request.ip, request.cost));
            });
        }
    }
}
