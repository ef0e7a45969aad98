//! Descriptors as parts of a request to the limiter: entries, hits and limits.

use super::proto::{Entry, RateLimitDescriptor, RateLimitOverride, RateLimitUnit};
use smallvec::SmallVec;
use std::fmt;
use tollgate_core::algorithm::Algorithm;
use tollgate_core::descriptor::{DescriptorError, DescriptorFields};
use tollgate_core::limit::LimitSize;
use tollgate_core::rate::SECOND_US;
use tollgate_limiter::{Door, InvalidRequest, Request, RequestLimit, RequestPart, TokenOperation};

/// The most descriptors of a request. Their number comes from Envoy's configuration, never from a client.
pub const MOST_DESCRIPTORS: usize = 64;
/// The most entries of a descriptor.
pub const MOST_ENTRIES: usize = 64;

const DAY_S: u64 = 86_400;
/// The lengths that envoyproxy/ratelimit gives them.
pub(super) const MONTH_S: u64 = 30 * DAY_S;
pub(super) const YEAR_S: u64 = 365 * DAY_S;

/// A descriptor that can be checked. [`Self::part`] borrows from it.
#[derive(Debug)]
pub struct DecodedDescriptor<'a> {
    fields: DescriptorFields<'a>,
    operation: TokenOperation,
    cost: u64,
    limit: Option<StatedLimit>,
}

/// A limit that a descriptor states.
#[derive(Debug)]
struct StatedLimit {
    key: String,
    size: LimitSize,
}

/// Why a descriptor is refused without a check. Its client may have caused it, so it must not be admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusedDescriptor {
    /// The request has more than [`MOST_DESCRIPTORS`].
    TooManyDescriptors,
    /// It has more than [`MOST_ENTRIES`].
    TooManyEntries,
    /// A key or a value is not UTF-8. Envoy takes values from headers.
    NotText,
    /// Its path is refused at every door.
    Entries(DescriptorError),
    /// It states a limit without a unit.
    NoUnit,
    /// It states a limit of 0.
    NothingAllowed,
    /// It cannot be decided.
    Invalid(InvalidRequest),
}

impl fmt::Display for RefusedDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyDescriptors => write!(f, "the request has more than {MOST_DESCRIPTORS} descriptors"),
            Self::TooManyEntries => write!(f, "a descriptor has more than {MOST_ENTRIES} entries"),
            Self::NotText => f.write_str("an entry of a descriptor is not UTF-8 text"),
            Self::Entries(error) => error.fmt(f),
            Self::NoUnit => f.write_str("a descriptor states a limit without a unit of time"),
            Self::NothingAllowed => f.write_str("a descriptor states a limit of 0"),
            Self::Invalid(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RefusedDescriptor {}

impl<'a> DecodedDescriptor<'a> {
    /// Decodes a descriptor of a request with this domain and cost.
    pub fn decode(
        descriptor: &'a RateLimitDescriptor,
        domain: &str,
        request_hits: u32,
    ) -> Result<Self, RefusedDescriptor> {
        if descriptor.entries.len() > MOST_ENTRIES {
            return Err(RefusedDescriptor::TooManyEntries);
        }
        let mut entries: SmallVec<[(&str, &str); 4]> = SmallVec::new();
        for Entry { key, value } in &descriptor.entries {
            let text = |bytes| str::from_utf8(bytes).map_err(|_| RefusedDescriptor::NotText);
            entries.push((text(key)?, text(value)?));
        }
        let fields = DescriptorFields::decode(entries.iter().copied()).map_err(RefusedDescriptor::Entries)?;
        let hits = descriptor.hits_addend.unwrap_or(u64::from(request_hits.max(1)));
        let (operation, cost) = match (hits, descriptor.is_negative_hits) {
            (0, _) => (TokenOperation::Look, 1),
            (hits, true) => (TokenOperation::Refund, hits),
            (hits, false) => (TokenOperation::Take, hits),
        };
        let limit = descriptor.limit.as_ref().map(|limit| StatedLimit::of(limit, &entries, domain));
        Ok(Self { fields, operation, cost, limit: limit.transpose()? })
    }

    /// As a part of a request of `domain`.
    pub fn part<'r>(&'r self, domain: &'r str) -> RequestPart<'r> {
        let request = self.fields.request(domain, self.cost);
        let limit = self.limit.as_ref().map(|limit| RequestLimit {
            key: &limit.key,
            // As in envoyproxy/ratelimit, which invented these limits.
            algorithm: Algorithm::FixedWindow,
            size: limit.size,
        });
        RequestPart { request: Request { door: Door::Rls, ..request }, operation: self.operation, limit }
    }
}

impl StatedLimit {
    fn of(
        stated: &RateLimitOverride,
        entries: &[(&str, &str)],
        domain: &str,
    ) -> Result<Self, RefusedDescriptor> {
        let seconds = match RateLimitUnit::try_from(stated.unit) {
            Ok(RateLimitUnit::Second) => 1,
            Ok(RateLimitUnit::Minute) => 60,
            Ok(RateLimitUnit::Hour) => 3_600,
            Ok(RateLimitUnit::Day) => DAY_S,
            Ok(RateLimitUnit::Month) => MONTH_S,
            Ok(RateLimitUnit::Year) => YEAR_S,
            Ok(RateLimitUnit::Unknown) | Err(_) => return Err(RefusedDescriptor::NoUnit),
        };
        if stated.requests_per_unit == 0 {
            return Err(RefusedDescriptor::NothingAllowed);
        }
        let size = LimitSize {
            capacity: Some(stated.requests_per_unit.into()),
            rate: None,
            window_us: Some(seconds * SECOND_US),
        };
        Ok(Self { key: limit_key(entries, domain), size })
    }
}

/// What a stated limit is counted by: the domain and all entries. Lengths keep different lists of entries apart.
fn limit_key(entries: &[(&str, &str)], domain: &str) -> String {
    let mut limit_key = format!("rls {} {domain}", domain.len());
    for (key, value) in entries {
        limit_key += &format!(" {} {key}={} {value}", key.len(), value.len());
    }
    limit_key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
        let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
        RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
    }

    #[test]
    fn hits_are_of_the_descriptor_else_of_the_request() {
        use TokenOperation::{Look, Refund, Take};
        for (of_request, own, is_negative, expected) in [
            (0, None, false, (Take, 1)),
            (1, None, false, (Take, 1)),
            (7, None, false, (Take, 7)),
            (7, Some(3), false, (Take, 3)),
            (7, Some(0), false, (Look, 1)),
            (7, Some(0), true, (Look, 1)),
            (7, Some(3), true, (Refund, 3)),
            (7, None, true, (Refund, 7)),
            (0, None, true, (Refund, 1)),
            (0, Some(u64::MAX), false, (Take, u64::MAX)),
        ] {
            let descriptor = RateLimitDescriptor {
                hits_addend: own,
                is_negative_hits: is_negative,
                ..descriptor(&[("user", "ann")])
            };
            let decoded = DecodedDescriptor::decode(&descriptor, "edge", of_request).unwrap();
            let part = decoded.part("edge");
            assert_eq!((part.operation, part.request.cost), expected, "{of_request} {own:?} {is_negative}");
            assert_eq!((part.request.user, part.request.domain), (Some("ann"), Some("edge")));
            assert_eq!(part.request.door, Door::Rls);
        }
    }

    #[test]
    fn paths_are_matched_without_their_query() {
        let descriptor = descriptor(&[("path", "/v1//orders?page=2%"), ("user", "ann")]);
        let decoded = DecodedDescriptor::decode(&descriptor, "", 0).unwrap();
        assert_eq!(decoded.part("").request.endpoint, "/v1/orders");
    }

    #[test]
    fn what_cannot_be_checked_is_refused() {
        let many: Vec<(&str, &str)> = (0..=MOST_ENTRIES).map(|_| ("user", "ann")).collect();
        assert_eq!(
            DecodedDescriptor::decode(&descriptor(&many), "", 0).unwrap_err(),
            RefusedDescriptor::TooManyEntries
        );
        for value in [&b"\xff"[..], b"a\x80"] {
            let entry = Entry { key: "api_key".into(), value: value.to_vec() };
            let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
            assert_eq!(
                DecodedDescriptor::decode(&descriptor, "", 0).unwrap_err(),
                RefusedDescriptor::NotText
            );
        }
        for path in ["/a%", "/a%2fb", "/a%zz", "/../..", "/a\\b"] {
            let refused = DecodedDescriptor::decode(&descriptor(&[("path", path)]), "", 0).unwrap_err();
            assert!(matches!(refused, RefusedDescriptor::Entries(_)), "{path}");
        }
        for (requests_per_unit, unit, expected) in [
            (5, 0, RefusedDescriptor::NoUnit),
            (5, 99, RefusedDescriptor::NoUnit),
            (0, 1, RefusedDescriptor::NothingAllowed),
        ] {
            let limit = Some(RateLimitOverride { requests_per_unit, unit });
            let stated = RateLimitDescriptor { limit, ..descriptor(&[("user", "ann")]) };
            assert_eq!(DecodedDescriptor::decode(&stated, "", 0).unwrap_err(), expected);
        }
    }

    #[test]
    fn different_entries_have_different_keys() {
        let lists: [&[(&str, &str)]; 6] = [
            &[("a", "b")],
            &[("a", "b"), ("c", "d")],
            &[("a", "b 1 c=1 d")],
            &[("a", ""), ("", "b")],
            &[("ab", "")],
            &[("", "ab")],
        ];
        let keys: std::collections::BTreeSet<String> = ["", "x"]
            .iter()
            .flat_map(|domain| lists.iter().map(|entries| limit_key(entries, domain)))
            .collect();
        assert_eq!(keys.len(), 2 * lists.len());
    }
}
