//! Caches of each thread: selections and list lookups, so that the hot path matches no pattern.
//!
//! Clients fall into few classes (tiers, patterns, overrides). The rules that apply to a class on a path are computed
//! once, and found by the class and the path, which is compared in full. If the class does not follow from a few
//! patterns, it is found by the client's keyed hash, which also identifies states.
//!
//! An entry is cached when it is needed for the second time, so a stream of random keys or paths displaces no entry.
//! The caches belong to the thread: they need no lock and share no cache line. Entries of another rule set or limiter
//! have another number and do not match.

mod cache;

use crate::clock::Clock;
use crate::metrics::decision_counters::{
    DecidedBy, DecisionCounters, RequestLabels, SeriesHandle, ThreadHandles,
};
use crate::observe::{DueSamples, ObservationPace, RecordRate, SampleSchedule};
use crate::request_limit::KeptRequestLimits;
use crate::snapshot::{RulesInForce, Snapshot};
use arc_swap::ArcSwap;
use cache::Cache;
use rapidhash::v3::rapidhash_v3;
use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tollgate_core::decision::Outcome;
use tollgate_core::key::RequestHasher;
use tollgate_core::request::{Door, Request};
use tollgate_core::rules::lists::{ListLookup, ListVerdict};
use tollgate_core::rules::{ClientDigest, ClientMatch, ClientTraits, LimitId, RuleSet, Selection};
use tollgate_core::time::UnixTime;

/// Sets of four entries each; powers of two.
const CLIENT_SETS: usize = 4096;
const LIST_SETS: usize = 4096;
const SELECTION_SETS: usize = 256;
/// The number of classes grows with overrides and with every change of the rules; at this many, the caches are cleared.
const MOST_CLASSES: usize = 4096;
/// The number of limiters of one process whose snapshots a thread keeps.
const POLICIES: usize = 4;

thread_local! {
    static MEMO: Cell<Option<Box<Memo>>> = const { Cell::new(None) };
}

/// The caches of one thread.
pub(crate) struct Memo {
    policies: [Option<FetchedSnapshot>; POLICIES],
    caches: Caches,
}

/// The snapshot of a limiter when this thread last fetched it.
struct FetchedSnapshot {
    limiter: u32,
    version: u64,
    snapshot: Arc<Snapshot>,
}

/// The caches beside the snapshot.
pub(crate) struct Caches {
    /// By client: the number of its class.
    clients: Cache<u32>,
    classes: BTreeMap<ClientMatch, u32>,
    /// By class and path: the rules that apply.
    selections: Cache<Option<Rc<KnownSelection>>>,
    /// The selection of the last request. Many services have one path that most requests use.
    last: Rc<KnownSelection>,
    /// By client and lists: the result of the lookup.
    listed: Cache<Option<ListLookup>>,
    /// The number of checks until the next sample or observation.
    until_due: u32,
    schedule: SampleSchedule,
    /// The refusals that are observed.
    pub(crate) refusals: ObservationPace,
    /// The refusals that are recorded.
    pub(crate) record_rate: RecordRate,
    /// A selection that is not cached.
    scratch: Option<(ClientMatch, Selection)>,
    /// Where the selection of the current request is.
    selected: SelectionPlace,
    /// The counters of this thread.
    handles: ThreadHandles,
    /// Limits that requests state.
    pub(crate) request_limits: KeptRequestLimits,
}

/// Where a selection is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SelectionPlace {
    /// There is none: a list decided.
    Nowhere,
    Last,
    Scratch,
}

/// A selection, and its key. Rules numbered 0 are none.
#[derive(Default)]
struct KnownSelection {
    rules: u32,
    class: u64,
    path: Box<str>,
    selection: Selection,
    /// The counters of the limit that decided first. Mostly there is no other.
    handle: OnceCell<SeriesHandle>,
}

/// The caches of this thread, until this is dropped. They are not passed to a closure, which would have to return a
/// decision: to copy one costs more than to hash a key.
pub(crate) struct BorrowedMemo(Option<Box<Memo>>);

#[inline]
pub(crate) fn lend() -> BorrowedMemo {
    BorrowedMemo(MEMO.take())
}

impl BorrowedMemo {
    #[inline]
    pub(crate) fn memo(&mut self) -> &mut Memo {
        self.0.get_or_insert_with(Memo::empty)
    }
}

impl Drop for BorrowedMemo {
    #[inline]
    fn drop(&mut self) {
        // The cell is empty meanwhile: no other check runs on this thread.
        std::mem::forget(MEMO.replace(self.0.take()));
    }
}

impl Memo {
    #[cold]
    #[inline(never)]
    fn empty() -> Box<Self> {
        let (schedule, until_due) = SampleSchedule::new();
        Box::new(Self {
            policies: [const { None }; POLICIES],
            caches: Caches {
                clients: Cache::new(CLIENT_SETS),
                classes: BTreeMap::new(),
                selections: Cache::new(SELECTION_SETS),
                last: Rc::default(),
                listed: Cache::new(LIST_SETS),
                until_due,
                schedule,
                refusals: ObservationPace::default(),
                record_rate: RecordRate::default(),
                scratch: None,
                selected: SelectionPlace::Scratch,
                handles: ThreadHandles::default(),
                request_limits: KeptRequestLimits::default(),
            },
        })
    }

    /// The snapshot of the limiter numbered `limiter`, which is now at `version`. A thread fetches it once per version: a
    /// reference count that all threads change with every check would dominate the cost of a check.
    #[inline]
    pub(crate) fn snapshot(
        &mut self,
        limiter: u32,
        version: u64,
        current: &ArcSwap<Snapshot>,
    ) -> (&Arc<Snapshot>, &mut Caches) {
        let slot = &mut self.policies[limiter as usize % POLICIES];
        if !slot.as_ref().is_some_and(|known| known.limiter == limiter && known.version == version) {
            forget(slot);
        }
        let known = slot.get_or_insert_with(|| fetch(limiter, version, current));
        (&known.snapshot, &mut self.caches)
    }
}

// Not inlined, because it runs once per change of the rules.
#[cold]
#[inline(never)]
fn forget(slot: &mut Option<FetchedSnapshot>) {
    *slot = None;
}

#[cold]
#[inline(never)]
fn fetch(limiter: u32, version: u64, current: &ArcSwap<Snapshot>) -> FetchedSnapshot {
    FetchedSnapshot { limiter, version, snapshot: current.load_full() }
}

impl KnownSelection {
    #[inline]
    fn is(&self, rules: u32, class: u64, path: &str) -> bool {
        self.rules == rules && self.class == class && is_same(&self.path, path)
    }
}

impl Caches {
    /// Counts a check. True if a sample or an observation is due: then [`Self::take_due`] has to follow.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        self.until_due -= 1;
        self.until_due == 0
    }

    /// What is due for the current check.
    #[cold]
    #[inline(never)]
    pub(crate) fn take_due(&mut self, clock: &Clock) -> DueSamples {
        let (due, until_due) = self.schedule.take_due(|| clock.counter_ns());
        self.until_due = until_due;
        due
    }

    /// Counts a check, and returns what is due for it.
    pub(crate) fn next_due(&mut self, clock: &Clock) -> DueSamples {
        if self.is_due() { self.take_due(clock) } else { DueSamples::default() }
    }

    /// The rules that apply to `request`.
    #[inline]
    pub(crate) fn select(
        &mut self,
        snapshot: &Snapshot,
        request: &Request<'_>,
        hashes: &RequestHasher<'_>,
    ) -> &Selection {
        let (rules, number) = (&snapshot.rules.set, snapshot.rules.number);
        let class = match rules.client_digest(request, hashes) {
            ClientDigest::Class(class) => class,
            ClientDigest::Hash(hash) => self.class(rules, number, request, hash),
        };
        // Most requests have no query: the endpoint is tried as it is before a query is cut off.
        let endpoint = if rules.has_endpoints() { request.endpoint } else { "" };
        self.selected = SelectionPlace::Last;
        if self.last.is(number, class, endpoint) || self.recall(number, class, endpoint) {
            return &self.last.selection;
        }
        self.select_anew(rules, number, class, request)
    }

    /// Makes the cached selection of `class` and `path` the last one. False if there is none.
    #[inline(never)]
    fn recall(&mut self, number: u32, class: u64, path: &str) -> bool {
        let known = self.selections.find(selection_hash(number, class, path), number);
        let Some(known) = known.and_then(Option::as_ref).filter(|known| known.is(number, class, path)) else {
            return false;
        };
        self.last = Rc::clone(known);
        true
    }

    #[inline(never)]
    fn select_anew(&mut self, rules: &RuleSet, number: u32, class: u64, request: &Request<'_>) -> &Selection {
        let path = if rules.has_endpoints() { request.path() } else { "" };
        if self.recall(number, class, path) {
            return &self.last.selection;
        }
        self.selected = SelectionPlace::Scratch;
        let (client, selection) = self.scratch.get_or_insert_default();
        rules.match_client_into(request, client);
        rules.join_into(client, &rules.match_path(path), selection);
        self.selections.offer(selection_hash(number, class, path), number, || {
            let (path, selection) = (path.into(), selection.clone());
            let handle = OnceCell::new();
            Some(Rc::new(KnownSelection { rules: number, class, path, selection, handle }))
        });
        selection
    }

    /// Records that the current request was decided before any rule was selected.
    pub(crate) fn select_nothing(&mut self) {
        self.selected = SelectionPlace::Nowhere;
    }

    /// The labels of a request at `door` with the last selection.
    pub(crate) fn labels(&self, door: Door) -> RequestLabels {
        let selection = match (self.selected, &self.scratch) {
            (SelectionPlace::Nowhere, _) => return RequestLabels { door, ..RequestLabels::default() },
            (SelectionPlace::Scratch, Some((_, selection))) => selection,
            (SelectionPlace::Scratch, None) | (SelectionPlace::Last, _) => &self.last.selection,
        };
        RequestLabels { tier: selection.tier(), route: selection.route_id(), door }
    }

    /// The counters of the last selection, if they are those of decisions by `limit` at `door`.
    #[inline]
    pub(crate) fn last_handle(&self, limit: LimitId, door: Door) -> Option<&SeriesHandle> {
        let handle = self.last.handle.get()?;
        (self.selected == SelectionPlace::Last && handle.is_of(limit, door)).then_some(handle)
    }

    /// Counts the outcome of a request by the only limit of its selection, which is enforced.
    #[inline(never)]
    pub(crate) fn count_outcome(
        &mut self,
        counters: &DecisionCounters,
        rules: &RulesInForce,
        door: Door,
        limit: LimitId,
        outcome: Outcome,
    ) {
        let labels = self.labels(door);
        self.handle(counters, rules, DecidedBy::Limit(limit), labels).count_outcome(outcome);
    }

    /// The counters of this thread for decisions by `decided_by`.
    pub(crate) fn handle(
        &mut self,
        counters: &DecisionCounters,
        rules: &RulesInForce,
        decided_by: DecidedBy,
        labels: RequestLabels,
    ) -> &SeriesHandle {
        if self.last.handle.get().is_some_and(|handle| handle.is_for(rules, decided_by, labels))
            && let Some(handle) = self.last.handle.get()
        {
            return handle;
        }
        // A decision that was made late may belong to another selection.
        let is_of_last = self.selected == SelectionPlace::Last
            && self.last.rules == rules.number
            && self.labels(labels.door) == labels;
        let handle = self.handles.find(counters, rules, decided_by, labels);
        if is_of_last {
            let _ = self.last.handle.set(handle.clone());
        }
        handle
    }

    /// The class of the client with this hash.
    #[inline]
    fn class(&mut self, rules: &RuleSet, number: u32, request: &Request<'_>, hash: u64) -> u64 {
        match self.clients.find(hash, number) {
            Some(class) => u64::from(*class),
            None => self.class_anew(rules, number, request, hash),
        }
    }

    #[inline(never)]
    fn class_anew(&mut self, rules: &RuleSet, number: u32, request: &Request<'_>, hash: u64) -> u64 {
        if self.classes.len() >= MOST_CLASSES {
            self.clients.clear();
            self.classes.clear();
            self.selections.clear();
            self.last = Rc::default();
        }
        let (client, _) = self.scratch.get_or_insert_default();
        rules.match_client_into(request, client);
        let class = match self.classes.get(client) {
            Some(class) => *class,
            None => {
                let class = self.classes.len() as u32;
                self.classes.insert(client.clone(), class);
                class
            }
        };
        self.clients.offer(hash, number, || class);
        u64::from(class)
    }

    /// The list that the client is on. The lookup of its names is cached, because it may match patterns.
    #[inline(never)]
    pub(crate) fn listed(
        &mut self,
        snapshot: &Snapshot,
        request: &Request<'_>,
        hashes: &RequestHasher<'_>,
        now: UnixTime,
    ) -> Option<ListVerdict> {
        let (lists, number) = (&snapshot.lists.value, snapshot.lists.number);
        let by_address = lists.look_up_address(request.ip, now).verdict;
        if !lists.have_names() {
            return by_address;
        }
        let hash = hashes.hash_traits(ClientTraits::ALL_NAMED, request);
        let known = self.listed.find(hash, number).copied().flatten();
        let by_name = known.filter(|known| now < known.until).unwrap_or_else(|| {
            let found = lists.look_up_names(request, now);
            self.listed.offer(hash, number, || Some(found));
            found
        });
        ListVerdict::stricter(by_name.verdict, by_address)
    }
}

/// Whether two paths are the same. Most are short: comparing their two ends is faster than a call.
#[inline]
fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    one.len() == other.len()
        && match one.len() {
            8..=16 => have_same_ends::<8>(one, other),
            17..=32 => have_same_ends::<16>(one, other),
            _ => one == other,
        }
}

#[inline]
fn have_same_ends<const LENGTH: usize>(one: &[u8], other: &[u8]) -> bool {
    one.first_chunk::<LENGTH>() == other.first_chunk() && one.last_chunk::<LENGTH>() == other.last_chunk()
}

/// Colliding paths cause only misses: paths are compared in full.
#[inline]
fn selection_hash(number: u32, class: u64, path: &str) -> u64 {
    // Limiters of one process often have the same rules: their entries must not all be in one set, which the low bits
    // choose. Those of a product depend on the low bits of its factors only.
    let source = (class ^ u64::from(number) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    rapidhash_v3(path.as_bytes()) ^ source.rotate_left(32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn selections_of_limiters_with_the_same_rules_are_in_different_sets() {
        let sets: BTreeSet<u64> =
            (1..=8).map(|number| selection_hash(number, 0, "/v1/orders") % SELECTION_SETS as u64).collect();
        assert!(sets.len() >= 6, "{sets:?}");
    }
}
