//! The most frequent keys and routes of all nodes, from the first few of each.
//!
//! The counts of a key on the nodes that list it are added up: it has at least so many requests. A node that does not list
//! it has at most as many as its first unlisted key, so `at_most` bounds the requests from above. Keys are the same if
//! kind, name and fingerprint are; nodes that share a store have fingerprints in common.

use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::HashMap;
use tollgate_limiter::{TopKey, TopKeys, TopRest, TopRoute};
use utoipa::ToSchema;

/// Keys and routes in the status of a node.
pub(crate) const KEYS_IN_STATUS: usize = 10;
const LONGEST_NAME: usize = 300;

/// The most frequent keys and routes of the last minute, the most frequent first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NodeTop {
    /// The time that they cover.
    pub window_seconds: u64,
    /// Keys with the most refusals by limits.
    pub limited: Vec<FrequentKey>,
    /// Keys with the most admitted requests.
    pub allowed: Vec<FrequentKey>,
    /// Routes with the most requests.
    pub routes: Vec<FrequentRoute>,
    /// The most requests that a key or route has which is not listed.
    pub rest: UnlistedMost,
}

/// A frequent key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct FrequentKey {
    /// Its kind: `api_key`, `user`, `tenant`, `ip`, `custom`, `anonymous`, or `composite` for a key of several identities.
    pub kind: String,
    /// Its name. API keys, which are secrets, and long names are cut.
    pub name: String,
    /// Distinguishes keys whose names look alike.
    pub fingerprint: String,
    /// It has at least so many requests.
    pub count: u64,
    /// It has at most so many requests.
    pub at_most: u64,
}

/// A frequent route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct FrequentRoute {
    /// Its template.
    pub route: String,
    /// It has at least so many requests.
    pub count: u64,
    /// It has at most so many requests.
    pub at_most: u64,
}

/// The most requests that a key or route has which is not listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct UnlistedMost {
    /// Refusals of a key.
    pub limited: u64,
    /// Admitted requests of a key.
    pub allowed: u64,
    /// Requests of a route.
    pub routes: u64,
}

impl From<TopKeys> for NodeTop {
    fn from(top: TopKeys) -> Self {
        let TopKeys { window_seconds, limited, allowed, routes, rest } = top;
        let key = |TopKey { kind, name, fingerprint, count, at_most }| FrequentKey {
            kind: String::from(kind),
            name,
            fingerprint,
            count,
            at_most,
        };
        let route = |TopRoute { route, count, at_most }| FrequentRoute { route, count, at_most };
        let TopRest { limited: rest_limited, allowed: rest_allowed, routes: rest_routes } = rest;
        Self {
            window_seconds,
            limited: limited.into_iter().map(key).collect(),
            allowed: allowed.into_iter().map(key).collect(),
            routes: routes.into_iter().map(route).collect(),
            rest: UnlistedMost { limited: rest_limited, allowed: rest_allowed, routes: rest_routes },
        }
    }
}

impl NodeTop {
    /// Cuts what is longer than any honest node tells.
    pub(crate) fn bound(&mut self) {
        for keys in [&mut self.limited, &mut self.allowed] {
            keys.truncate(KEYS_IN_STATUS);
            for key in keys {
                for text in [&mut key.kind, &mut key.name, &mut key.fingerprint] {
                    super::clean(text, LONGEST_NAME);
                }
            }
        }
        self.routes.truncate(KEYS_IN_STATUS);
        for route in &mut self.routes {
            super::clean(&mut route.route, LONGEST_NAME);
        }
    }

    /// The first `count` keys and routes of all nodes.
    pub fn merged<'s>(tops: impl Iterator<Item = &'s Self> + Clone, count: usize) -> Self {
        let keys = |of: fn(&Self) -> &[FrequentKey], rest: fn(&UnlistedMost) -> u64| {
            let lists = tops.clone().map(|top| NodeList {
                entries: of(top).iter().map(|key| (key, key.count, key.at_most)).collect(),
                rest: rest(&top.rest),
            });
            let name = |key: &'s FrequentKey| (&*key.kind, &*key.name, &*key.fingerprint);
            let (merged, rest) = merge(lists, name, count);
            let shown = merged.into_iter().map(|((kind, name, fingerprint), bounds)| FrequentKey {
                kind: kind.to_owned(),
                name: name.to_owned(),
                fingerprint: fingerprint.to_owned(),
                count: bounds.count,
                at_most: bounds.at_most,
            });
            (shown.collect(), rest)
        };
        let (limited, rest_limited) = keys(|top| &top.limited, |rest| rest.limited);
        let (allowed, rest_allowed) = keys(|top| &top.allowed, |rest| rest.allowed);
        let lists = tops.clone().map(|top| NodeList {
            entries: top.routes.iter().map(|route| (route, route.count, route.at_most)).collect(),
            rest: top.rest.routes,
        });
        let (routes, rest_routes) = merge(lists, |route: &'s FrequentRoute| &*route.route, count);
        let route = |(route, bounds): (&str, CountBounds)| FrequentRoute {
            route: route.to_owned(),
            count: bounds.count,
            at_most: bounds.at_most,
        };
        Self {
            window_seconds: tops.map(|top| top.window_seconds).max().unwrap_or(0),
            limited,
            allowed,
            routes: routes.into_iter().map(route).collect(),
            rest: UnlistedMost { limited: rest_limited, allowed: rest_allowed, routes: rest_routes },
        }
    }
}

/// One list of one node: entries with what they have at least and at most.
struct NodeList<'s, E> {
    entries: Vec<(&'s E, u64, u64)>,
    rest: u64,
}

/// What an entry has on all nodes.
#[derive(Clone, Copy, Debug, Default)]
struct CountBounds {
    count: u64,
    at_most: u64,
    /// What nodes that list it would have had at most if they did not.
    rest_of_listing: u64,
}

/// The first `count` entries of all lists, and what an entry that is not among them has at most.
fn merge<'s, E: 's, N: std::hash::Hash + Ord + Copy>(
    lists: impl Iterator<Item = NodeList<'s, E>>,
    name: impl Fn(&'s E) -> N,
    count: usize,
) -> (Vec<(N, CountBounds)>, u64) {
    let mut found: HashMap<N, CountBounds> = HashMap::new();
    let mut rest_of_all = 0_u64;
    for NodeList { entries, rest } in lists {
        rest_of_all = rest_of_all.saturating_add(rest);
        for (entry, at_least, at_most) in entries {
            let bounds = found.entry(name(entry)).or_default();
            bounds.count = bounds.count.saturating_add(at_least);
            bounds.at_most = bounds.at_most.saturating_add(at_most);
            bounds.rest_of_listing = bounds.rest_of_listing.saturating_add(rest);
        }
    }
    let mut merged: Vec<(N, CountBounds)> = found.into_iter().collect();
    for (_, bounds) in &mut merged {
        let rest_of_others = rest_of_all.saturating_sub(bounds.rest_of_listing);
        bounds.at_most = bounds.at_most.max(bounds.count).saturating_add(rest_of_others);
    }
    merged.sort_unstable_by_key(|(name, bounds)| (Reverse(bounds.count), *name));
    let rest = merged.iter().skip(count).map(|(_, bounds)| bounds.at_most).max();
    merged.truncate(count);
    (merged, rest.unwrap_or(0).max(rest_of_all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, count: u64, at_most: u64) -> FrequentKey {
        let (kind, fingerprint) = ("user".to_owned(), String::new());
        FrequentKey { kind, name: name.to_owned(), fingerprint, count, at_most }
    }

    fn top(limited: Vec<FrequentKey>, rest: u64) -> NodeTop {
        let rest = UnlistedMost { limited: rest, ..UnlistedMost::default() };
        NodeTop { window_seconds: 60, limited, rest, ..NodeTop::default() }
    }

    #[test]
    fn counts_are_added_and_bounds_hold() {
        let nodes = [
            top(vec![key("ann", 50, 55), key("bob", 30, 30)], 7),
            top(vec![key("bob", 40, 41), key("cy", 20, 20)], 3),
            top(vec![], 0),
        ];
        let merged = NodeTop::merged(nodes.iter(), 2);
        assert_eq!(merged.limited, [key("bob", 70, 71), key("ann", 50, 58)]);
        assert_eq!(merged.rest.limited, 27, "cy has at most 20 here and 7 there");
        assert_eq!(merged.window_seconds, 60);
        assert_eq!(NodeTop::merged([].iter(), 5), NodeTop::default());
    }

    /// The truth always lies within the bounds.
    #[test]
    fn random_counts_lie_within_the_bounds() {
        let mut state = 7_u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let mut truth: HashMap<String, u64> = HashMap::new();
            let mut nodes = Vec::new();
            for _ in 0..5 {
                let mut counts: Vec<(String, u64)> =
                    (0..20).map(|number| (format!("k{number}"), draw(100))).collect();
                counts.iter().for_each(|(name, count)| *truth.entry(name.clone()).or_default() += count);
                counts.sort_by_key(|(_, count)| Reverse(*count));
                let keys = counts[..8].iter().map(|(name, count)| key(name, *count, *count)).collect();
                nodes.push(top(keys, counts[8].1));
            }
            let merged = NodeTop::merged(nodes.iter(), 6);
            for found in &merged.limited {
                let true_count = truth.remove(&found.name).unwrap();
                assert!((found.count..=found.at_most).contains(&true_count), "{found:?} {true_count}");
            }
            assert!(truth.values().all(|count| *count <= merged.rest.limited));
        }
    }
}
