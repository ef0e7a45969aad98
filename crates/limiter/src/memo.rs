//! What each thread remembers of earlier selections, so that the hot path runs no pattern.
//!
//! Clients fall into few classes (tiers, patterns, overrides). What a class of clients meets on a path is
//! worked out once, and found again by the class and the path, which is compared in full. Where the class
//! is not plain from a few patterns, it is remembered by the client's keyed hash, the one that also
//! identifies states, and trusted as far as there.
//!
//! An entry is admitted only on second sight, so a stream of random keys or paths passes through without
//! displacing an entry. All of this belongs to the thread: it takes no lock and shares no cache line.
//! Entries of another rule set, or another limiter, carry another number and do not match.

mod cache;

use crate::abuse::ONE_IN;
use crate::snapshot::Snapshot;
use arc_swap::ArcSwap;
use cache::Cache;
use rapidhash::v3::rapidhash_v3;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tollgate_core::key::RequestHasher;
use tollgate_core::request::Request;
use tollgate_core::rules::lists::{ListLookup, ListVerdict};
use tollgate_core::rules::{ClientDigest, ClientMatch, ClientTraits, RuleSet, Selection};
use tollgate_core::time::UnixTime;

/// Sets of four entries each; powers of two.
const CLIENT_SETS: usize = 4096;
const LIST_SETS: usize = 4096;
const SELECTION_SETS: usize = 256;
/// Classes pile up with overrides and with every change of the rules; at so many, all is thought anew.
const MOST_CLASSES: usize = 4096;
/// How many limiters of one process a thread keeps the snapshot of.
const POLICIES: usize = 4;

thread_local! {
    static MEMO: Cell<Option<Box<Memo>>> = const { Cell::new(None) };
}

/// What one thread remembers.
pub(crate) struct Memo {
    policies: [Option<FetchedSnapshot>; POLICIES],
    caches: Caches,
}

/// The snapshot that a limiter had when this thread last looked.
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
    /// By class and path: the rules met.
    selections: Cache<Option<Rc<KnownSelection>>>,
    /// The last request's. Most services have a path that most requests go to.
    last: Rc<KnownSelection>,
    /// By client and lists: what the lists say.
    listed: Cache<Option<ListLookup>>,
    /// How many checks from now the next is sampled.
    until_sample: u32,
    /// What was worked out but is not worth keeping.
    scratch: Option<(ClientMatch, Selection)>,
}

/// A selection, and what it was made for. Rules numbered 0 are none.
#[derive(Default)]
struct KnownSelection {
    rules: u32,
    class: u64,
    path: Box<str>,
    selection: Selection,
}

/// What this thread remembers, lent out; it goes back when this is dropped. It is not handed to a closure,
/// which would have to hand out a decision: to copy one costs more than to hash a key.
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
        Box::new(Self {
            policies: [const { None }; POLICIES],
            caches: Caches {
                clients: Cache::new(CLIENT_SETS),
                classes: BTreeMap::new(),
                selections: Cache::new(SELECTION_SETS),
                last: Rc::default(),
                listed: Cache::new(LIST_SETS),
                until_sample: fastrand::u32(1..2 * ONE_IN),
                scratch: None,
            },
        })
    }

    /// The snapshot of the limiter numbered `limiter`, which is now at `version`. A thread fetches it once
    /// per version: a counter that all threads count up and down with every check would be what they
    /// spend their time on.
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

// Apart, so that what happens once per change of the rules takes no room in every check.
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
    /// Whether this check is one of those that are looked at more closely.
    #[inline]
    pub(crate) fn is_sampled(&mut self) -> bool {
        self.until_sample -= 1;
        if self.until_sample > 0 {
            return false;
        }
        self.draw_next_sample();
        true
    }

    /// At random distances: requests that come in a rhythm could hide from a fixed one.
    #[cold]
    #[inline(never)]
    fn draw_next_sample(&mut self) {
        self.until_sample = fastrand::u32(1..2 * ONE_IN);
    }

    /// The rules that the client of `request` meets on its path.
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
        // Most requests have no query: the endpoint is tried as it is before one is looked for.
        let endpoint = if rules.has_endpoints() { request.endpoint } else { "" };
        if self.last.is(number, class, endpoint) || self.recall(number, class, endpoint) {
            return &self.last.selection;
        }
        self.select_anew(rules, number, class, request)
    }

    /// Makes what `class` meets on `path` the last, if it is known.
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
        let (client, selection) = self.scratch.get_or_insert_default();
        rules.match_client_into(request, client);
        rules.join_into(client, &rules.match_path(path), selection);
        self.selections.offer(selection_hash(number, class, path), number, || {
            let (path, selection) = (path.into(), selection.clone());
            Some(Rc::new(KnownSelection { rules: number, class, path, selection }))
        });
        selection
    }

    /// The number of the class of a client that is known by its hash.
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

    /// Which list the client is on. What the names say is remembered: a pattern may have been asked.
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

/// Whether two paths are the same. Most are short: their two ends are compared sooner than a call is made.
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
    // Limiters of one process often have the same rules: theirs must not all come to stand in one set.
    rapidhash_v3(path.as_bytes()) ^ (class ^ u64::from(number) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
