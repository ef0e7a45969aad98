//! The most frequent keys and routes of the last minute, in fixed memory.
//!
//! A table has 1,024 counters in sets of eight. A new key in a full set replaces the key with the smallest count and starts
//! from that count, as in the Space-Saving algorithm, so that a key that becomes frequent is kept however many rare keys
//! come and go. The count that it starts from, its *floor*, is not shown: what is shown is never more than what was
//! observed of the key, and less by at most the floor, which is an eighth of the observations of its set. Keys are hashes
//! under a secret seed, so no client can select a set.
//!
//! Each counter has six counts of ten seconds, of which the oldest is dropped when the next begins.

use crate::abuse::{Label, fingerprint};
use crate::set_table::SetTable;
use std::cmp::Reverse;
use std::sync::Arc;
use tollgate_core::time::UnixTime;

const SETS: usize = 128;
const WAYS: usize = 8;
const SLOTS: usize = 6;
const SLOT_US: u64 = 10_000_000;
/// A key that is limited for so long without a break is at zero.
const AT_ZERO_US: u64 = 300_000_000;
/// The seconds of all slots.
const WINDOW_SECONDS: u64 = SLOTS as u64 * SLOT_US / 1_000_000;

/// The most frequent keys and routes of a node in the last minute, by estimated counts, the most frequent first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopKeys {
    /// The time that they cover. The last ten seconds of it are not complete.
    pub window_seconds: u64,
    /// Keys with the most refusals by limits.
    pub limited: Vec<TopKey>,
    /// Keys with the most admitted requests.
    pub allowed: Vec<TopKey>,
    /// Routes with the most requests.
    pub routes: Vec<TopRoute>,
    /// What is not listed.
    pub rest: TopRest,
}

/// The most requests that a key or route has which is not listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopRest {
    /// Refusals of a key.
    pub limited: u64,
    /// Admitted requests of a key.
    pub allowed: u64,
    /// Requests of a route.
    pub routes: u64,
}

/// A frequent key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopKey {
    /// Its kind: `api_key`, `user`, `tenant`, `ip`, `custom`, `anonymous`, or `composite` for a key of several identities.
    pub kind: &'static str,
    /// Its name. API keys, which are secrets, and long names are cut.
    pub name: String,
    /// Distinguishes keys whose names look alike. It changes when the node starts, unless nodes have a seed in common
    /// ([`Limiter::set_fingerprint_seed`](crate::Limiter::set_fingerprint_seed)).
    pub fingerprint: String,
    /// The number of its requests that were counted: its requests, or less.
    pub count: u64,
    /// It has at most so many requests: its first ones may have been counted for the key that it displaced.
    pub at_most: u64,
}

/// A frequent route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopRoute {
    /// Its template.
    pub route: String,
    /// The number of its requests that were counted.
    pub count: u64,
    /// It has at most so many requests.
    pub at_most: u64,
}

/// The counters of a limiter.
pub(super) struct TopTables {
    /// The current slot: ten-second periods since 1970.
    slot: u64,
    limited: TopTable<Label>,
    allowed: TopTable<Label>,
    routes: TopTable<Option<Arc<str>>>,
}

impl TopTables {
    pub(super) fn new() -> Self {
        Self { slot: 0, limited: TopTable::new(), allowed: TopTable::new(), routes: TopTable::new() }
    }

    /// Counts refusals of `key`.
    pub(super) fn add_limited(&mut self, key: u64, label: &Label, weight: u32, now: UnixTime) {
        self.turn(now);
        if let Some(counter) = self.limited.add_labelled(key, self.slot, weight, label) {
            counter.unbroken_since.get_or_insert(now);
        }
    }

    /// Counts admitted requests of `key`.
    pub(super) fn add_allowed(&mut self, key: u64, label: &Label, weight: u32, now: UnixTime) {
        self.turn(now);
        self.allowed.add_labelled(key, self.slot, weight, label);
        if let Some(limited) = self.limited.counters.find_mut(key) {
            limited.unbroken_since = None;
        }
    }

    /// Counts requests of a route; `key` is the hash of its template.
    pub(super) fn add_route(&mut self, key: u64, template: &str, weight: u32, now: UnixTime) {
        self.turn(now);
        self.routes.add(key, self.slot, weight, || Some(template.into()));
    }

    /// Begins the slot of `now`.
    pub(super) fn turn(&mut self, now: UnixTime) {
        let slot = now.as_us() / SLOT_US;
        // Threads may read the time in another order; more than a slot is a step of the clock.
        if slot == self.slot || slot + 1 == self.slot {
            return;
        }
        if slot < self.slot || slot - self.slot >= SLOTS as u64 {
            self.limited.counters.clear();
            self.allowed.counters.clear();
            self.routes.counters.clear();
        } else {
            for ended in self.slot..slot {
                self.limited.end(ended);
                self.allowed.end(ended);
                self.routes.end(ended);
            }
        }
        self.slot = slot;
    }

    /// The first `count` of each table.
    pub(super) fn list(&mut self, count: usize, now: UnixTime) -> TopKeys {
        self.turn(now);
        let (routes, rest_of_routes) = self.routes.top(count, |counted| TopRoute {
            route: counted.name.as_deref().unwrap_or_default().to_owned(),
            count: counted.count,
            at_most: counted.at_most,
        });
        let (limited, rest_of_limited) = self.limited.top(count, TopKey::new);
        let (allowed, rest_of_allowed) = self.allowed.top(count, TopKey::new);
        let rest = TopRest { limited: rest_of_limited, allowed: rest_of_allowed, routes: rest_of_routes };
        TopKeys { window_seconds: WINDOW_SECONDS, limited, allowed, routes, rest }
    }

    /// The number of keys that have been limited without a break for five minutes: refused in each slot, and never admitted.
    pub(super) fn count_at_zero(&mut self, now: UnixTime) -> usize {
        self.turn(now);
        let is_at_zero = |counter: &TopCounter<Label>| {
            counter.unbroken_since.is_some_and(|since| now.since(since) >= AT_ZERO_US)
        };
        self.limited.counters.iter().filter(|(_, counter)| is_at_zero(counter)).count()
    }
}

impl TopKey {
    fn new(counted: CountedKey<'_, Label>) -> Self {
        let CountedKey { key, name: label, count, at_most } = counted;
        let fingerprint = match label.mark() {
            0 => fingerprint(key),
            mark => format!("{mark:08x}"),
        };
        Self { kind: label.kind(), name: label.text().to_owned(), fingerprint, count, at_most }
    }
}

/// A key as it is listed.
struct CountedKey<'t, N> {
    key: u64,
    name: &'t N,
    count: u64,
    at_most: u64,
}

impl std::fmt::Debug for TopTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TopTables").field("slot", &self.slot).finish_non_exhaustive()
    }
}

/// The counters of one list, with names of type `N`.
struct TopTable<N> {
    counters: SetTable<TopCounter<N>, WAYS>,
}

/// The counts of one key.
#[derive(Clone, Copy, Default)]
struct TopCounter<N> {
    counts: [u64; SLOTS],
    /// The count of the key that it replaced.
    floor: u64,
    /// The slot in which that was.
    placed: u64,
    /// If the key has been counted in every slot since then, and not been admitted.
    unbroken_since: Option<UnixTime>,
    name: N,
}

impl<N> TopCounter<N> {
    fn total(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

impl TopTable<Label> {
    /// Counts `weight` requests of `key`, under the newest label: an earlier one may lack the mark that the nodes of a
    /// fleet have in common, and a busy key would keep it for as long as it is counted.
    fn add_labelled(
        &mut self,
        key: u64,
        slot: u64,
        weight: u32,
        label: &Label,
    ) -> Option<&mut TopCounter<Label>> {
        let counter = self.add(key, slot, weight, || *label)?;
        if counter.name.mark() != label.mark() {
            counter.name = *label;
        }
        Some(counter)
    }
}

impl<N: Default> TopTable<N> {
    fn new() -> Self {
        Self { counters: SetTable::new(SETS) }
    }

    /// Counts `weight` requests of `key`.
    fn add(
        &mut self,
        key: u64,
        slot: u64,
        weight: u32,
        name: impl FnOnce() -> N,
    ) -> Option<&mut TopCounter<N>> {
        let mut floor = 0;
        let replace_smallest = |counters: &mut [TopCounter<N>; WAYS]| {
            let ranks = counters.iter().map(|counter| counter.total().saturating_add(counter.floor));
            let (way, rank) = ranks.enumerate().min_by_key(|(_, rank)| *rank)?;
            floor = rank;
            Some(way)
        };
        let counter = self.counters.entry(key, replace_smallest)?;
        // Only a new counter has no count: those without one are removed when a slot ends.
        if counter.total() == 0 {
            *counter = TopCounter { floor, placed: slot, name: name(), ..TopCounter::default() };
        }
        let count = &mut counter.counts[slot as usize % SLOTS];
        *count = count.saturating_add(weight.into());
        Some(counter)
    }

    /// Ends the slot `ended`, and removes keys that have no counts in the slots that remain.
    fn end(&mut self, ended: u64) {
        let next = ended + 1;
        self.counters.retain(|counter| {
            if counter.counts[ended as usize % SLOTS] == 0 {
                counter.unbroken_since = None;
            }
            counter.counts[next as usize % SLOTS] = 0;
            if next.saturating_sub(counter.placed) >= SLOTS as u64 {
                counter.floor = 0;
            }
            counter.total() > 0
        });
    }

    /// The first `count` keys, and the most requests that any other has.
    fn top<T>(&self, count: usize, shown: impl Fn(CountedKey<'_, N>) -> T) -> (Vec<T>, u64) {
        let listed =
            |(key, counter): (u64, &'_ TopCounter<N>)| (Reverse(counter.total()), key, counter.floor);
        let mut found: Vec<(Reverse<u64>, u64, u64)> = self.counters.iter().map(listed).collect();
        // Threads that decide wait for the lock meanwhile, so what is not listed is not sorted.
        let mut rest = 0;
        if count < found.len() {
            found.select_nth_unstable(count);
            rest = found[count..].iter().map(|(total, _, floor)| total.0 + floor).max().unwrap_or(0);
            found.truncate(count);
        }
        found.sort_unstable();
        let counted = found.into_iter().filter_map(|(Reverse(count), key, floor)| {
            let name = &self.counters.find(key)?.name;
            Some(shown(CountedKey { key, name, count, at_most: count.saturating_add(floor) }))
        });
        (counted.collect(), rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use tollgate_core::key::Identity;
    use tollgate_core::request::NamedIdentity;

    fn at(seconds: u64) -> UnixTime {
        UnixTime::from_us(1_700_000_000_000_000 + seconds * 1_000_000)
    }

    fn label(number: u64) -> Label {
        Label::new(&Identity::Named(NamedIdentity::User, &number.to_string()))
    }

    fn hash(number: u64) -> u64 {
        (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    fn names(keys: &[TopKey]) -> Vec<(&str, u64)> {
        keys.iter().map(|key| (key.name.as_str(), key.count)).collect()
    }

    #[test]
    fn the_most_frequent_of_many_keys_are_found_with_their_counts() {
        const KEYS: usize = 100_000;
        let mut rng = Rng::with_seed(11);
        let sums: Vec<f64> = (1..=KEYS)
            .scan(0.0, |sum, rank| {
                *sum += 1.0 / rank as f64;
                Some(*sum)
            })
            .collect();
        let (mut tables, mut counts) = (TopTables::new(), vec![0_u64; KEYS]);
        let total = 600_000;
        for step in 0..total {
            let point = rng.f64() * sums[KEYS - 1];
            let number = sums.partition_point(|below| *below < point);
            counts[number] += 10;
            tables.add_allowed(hash(number as u64), &label(number as u64), 10, at(step / 12_000));
        }
        let found = tables.list(20, at(50)).allowed;
        assert_eq!(found.len(), 20);
        for (rank, key) in found.iter().enumerate() {
            let number: usize = key.name.parse().unwrap();
            let missed = counts[number] - key.count;
            assert!(number < 25, "{number} at {rank}");
            assert!(missed * 500 <= total * 10, "{missed} of {} missed", counts[number]);
        }
        assert_eq!(found[0].name, "0");
    }

    #[test]
    fn a_million_keys_take_no_more_memory_and_displace_no_frequent_one() {
        let mut tables = TopTables::new();
        let (frequent, rare) = (label(0), label(1));
        tables.add_limited(1, &rare, 1, at(0));
        let measured = allocation_counter::measure(|| {
            for number in 1..1_000_000 {
                tables.add_limited(hash(number), &rare, 1, at(number / 20_000));
                if number % 100 == 0 {
                    tables.add_limited(hash(0), &frequent, 1, at(number / 20_000));
                }
            }
        });
        assert_eq!(measured.count_total, 0);
        let found = tables.list(2_000, at(49)).limited;
        assert!(found.len() <= SETS * WAYS);
        let (first, second) = (&found[0], &found[1]);
        assert_eq!(first.name, "0");
        assert!((9_000..10_000).contains(&first.count) && second.count < 100, "{first:?} {second:?}");
    }

    #[test]
    fn counts_are_dropped_after_a_minute() {
        let mut tables = TopTables::new();
        for second in 0..30 {
            tables.add_limited(hash(1), &label(1), 2, at(second));
        }
        tables.add_limited(hash(2), &label(2), 7, at(30));
        tables.add_route(3, "/users/{id}", 5, at(30));
        let list = tables.list(10, at(50));
        assert_eq!(names(&list.limited), [("1", 60), ("2", 7)]);
        assert_eq!((list.routes[0].route.as_str(), list.routes[0].count), ("/users/{id}", 5));
        assert_eq!(list.window_seconds, 60);
        assert_eq!(names(&tables.list(10, at(75)).limited), [("1", 20), ("2", 7)]);
        assert_eq!(names(&tables.list(1, at(85)).limited), [("2", 7)]);
        assert!(tables.list(10, at(95)).limited.is_empty());
        tables.add_limited(hash(2), &label(2), 7, at(95));
        assert!(tables.list(10, at(4_000)).limited.is_empty());
        // The clock steps back by a second, then by an hour.
        tables.add_limited(hash(2), &label(2), 7, at(4_000));
        tables.add_limited(hash(2), &label(2), 7, at(3_999));
        assert_eq!(names(&tables.list(1, at(4_000)).limited), [("2", 14)]);
        tables.add_limited(hash(2), &label(2), 1, at(400));
        assert_eq!(names(&tables.list(1, at(400)).limited), [("2", 1)]);
    }

    #[test]
    fn a_key_counted_before_the_fleet_is_known_gets_the_fingerprint_of_the_fleet() {
        let mut tables = TopTables::new();
        for label in [label(1), label(1).marked(0xa1b2_c3d4), label(1).marked(0x0000_0007)] {
            tables.add_limited(hash(1), &label, 1, at(0));
            tables.add_allowed(hash(1), &label, 1, at(0));
            let list = tables.list(1, at(0));
            let expected = TopKey::new(CountedKey { key: hash(1), name: &label, count: 0, at_most: 0 });
            assert_eq!(list.limited[0].fingerprint, expected.fingerprint);
            assert_eq!(list.allowed[0].fingerprint, expected.fingerprint);
        }
        assert_eq!(tables.list(1, at(0)).limited[0].count, 3);
    }

    #[test]
    fn keys_are_at_zero_after_five_minutes_without_an_admission() {
        let mut tables = TopTables::new();
        for second in (0..=300).step_by(9) {
            for key in 1..=3 {
                tables.add_limited(hash(key), &label(key), 1, at(second));
            }
            match second {
                // An admission, and a pause.
                90 => tables.add_allowed(hash(2), &label(2), 1, at(second)),
                99 => {
                    tables.limited.counters.find_mut(hash(3)).unwrap().counts
                        [(at(99).as_us() / SLOT_US) as usize % SLOTS] = 0
                }
                _ => {}
            }
            assert_eq!(tables.count_at_zero(at(second)), 0, "{second}");
        }
        assert_eq!(tables.count_at_zero(at(299)), 0);
        assert_eq!(tables.count_at_zero(at(300)), 1);
        assert_eq!(tables.count_at_zero(at(325)), 0, "it has been quiet for ten seconds");
    }
}
