//! What each thread remembers of earlier selections, so that the hot path runs no pattern.
//!
//! Three bounded caches: which class of clients a client falls into, which list it is on, which rules a
//! path meets. Clients fall into few classes (tiers, patterns, overrides), so an entry is only a hash and
//! the number of a class: sixteen bytes, four to a cache line. The hash is the keyed one that also
//! identifies states, and is trusted as far as there; paths, of which there are few, are compared in full.
//!
//! An entry is admitted only on second sight, so a stream of random keys or paths passes through without
//! displacing anybody. The caches belong to the thread: a look-up takes no lock and shares no cache line.
//! Entries of another rule set, or another limiter, carry another number and do not match.

use crate::policy::Policy;
use rapidhash::v3::rapidhash_v3;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use tollgate_core::rules::lists::Standing;
use tollgate_core::rules::{ClientMatch, PathMatch};

/// Sets of four entries each; powers of two.
const CLIENT_SETS: usize = 4096;
const LIST_SETS: usize = 4096;
const PATH_SETS: usize = 256;
/// More classes than this come from overrides alone, and then the oldest thoughts can go.
const MOST_CLASSES: usize = 4096;
const WAYS: usize = 4;

/// How many limiters of one process a thread keeps the policy of.
const POLICIES: usize = 4;

thread_local! {
    static MEMO: RefCell<Memo> = const {
        RefCell::new(Memo {
            policies: [const { None }; POLICIES],
            clients: Clients {
                cache: Cache::new(CLIENT_SETS),
                classes: Vec::new(),
                numbers: BTreeMap::new(),
                scratch: None,
            },
            listed: Cache::new(LIST_SETS),
            paths: Cache::new(PATH_SETS),
        })
    };
}

/// The caches of one thread.
pub(crate) struct Memo {
    policies: [Option<Known>; POLICIES],
    clients: Clients,
    /// By client and lists: what the lists say.
    listed: Cache<Option<Standing>>,
    paths: Cache<Path>,
}

/// The policy that a limiter had when this thread last looked.
struct Known {
    limiter: u32,
    version: u64,
    policy: Arc<Policy>,
}

/// The parts of [`Memo`] beside the policy.
pub(crate) struct Caches<'m> {
    pub(crate) clients: &'m mut Clients,
    pub(crate) listed: &'m mut Cache<Option<Standing>>,
    pub(crate) paths: &'m mut Cache<Path>,
}

impl Memo {
    /// The policy of the limiter numbered `limiter`, which is now at `version`. A thread fetches it once
    /// per version: a counter that all threads count up and down with every check would be what they
    /// spend their time on.
    #[inline]
    pub(crate) fn policy(
        &mut self,
        limiter: u32,
        version: u64,
        fetch: impl FnOnce() -> Arc<Policy>,
    ) -> (&Policy, Caches<'_>) {
        let slot = &mut self.policies[limiter as usize % POLICIES];
        if !slot.as_ref().is_some_and(|known| known.limiter == limiter && known.version == version) {
            *slot = None;
        }
        let known = slot.get_or_insert_with(|| Known { limiter, version, policy: fetch() });
        let caches = Caches { clients: &mut self.clients, listed: &mut self.listed, paths: &mut self.paths };
        (&known.policy, caches)
    }
}

/// Runs `body` with this thread's caches.
#[inline]
pub(crate) fn with<T>(body: impl FnOnce(&mut Memo) -> T) -> T {
    MEMO.with_borrow_mut(body)
}

/// A four-way cache. An entry is known by a hash and the number of what it was worked out from.
pub(crate) struct Cache<V> {
    /// Empty until first used: a thread that never checks costs nothing.
    sets: Vec<Set<V>>,
    /// For each set the hash that missed last; if it misses again, it is admitted.
    candidates: Vec<u32>,
    count: usize,
}

/// For a client's class, one cache line.
#[derive(Default)]
#[repr(align(64))]
struct Set<V>([Entry<V>; WAYS]);

/// Source 0 is no source: such an entry is empty.
#[derive(Default)]
struct Entry<V> {
    hash: u64,
    source: u32,
    value: V,
}

/// Where an entry stands.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    set: usize,
    way: usize,
}

/// A value, or what to do for want of one.
pub(crate) enum Found<'m, V> {
    Hit(&'m mut V),
    /// Seen twice now: worth keeping.
    Admit(Place<'m, V>),
    /// First sight: work it out and forget it.
    Pass,
}

/// Where a value may be kept.
pub(crate) struct Place<'m, V> {
    entry: &'m mut Entry<V>,
    hash: u64,
    source: u32,
}

impl<'m, V> Place<'m, V> {
    pub(crate) fn keep(self, value: V) -> &'m mut V {
        *self.entry = Entry { hash: self.hash, source: self.source, value };
        &mut self.entry.value
    }
}

impl<V: Default> Cache<V> {
    const fn new(count: usize) -> Self {
        Self { sets: Vec::new(), candidates: Vec::new(), count }
    }

    /// Looks for what `source` made of `hash`.
    #[inline]
    pub(crate) fn find(&mut self, hash: u64, source: u32) -> Found<'_, V> {
        if self.sets.is_empty() {
            self.sets.resize_with(self.count, Set::default);
            self.candidates = vec![0; self.count];
        }
        match self.spot(hash, source) {
            Some(Spot { set, way }) => Found::Hit(&mut self.sets[set].0[way].value),
            None => self.miss(hash as usize & (self.count - 1), hash, source),
        }
    }

    /// Where it stands what `source` made of `hash`, if that is known. Unlike [`Cache::find`], it leaves no
    /// trace.
    #[inline]
    pub(crate) fn spot(&self, hash: u64, source: u32) -> Option<Spot> {
        let set = hash as usize & (self.count - 1);
        let is_it = |entry: &Entry<V>| entry.hash == hash && entry.source == source;
        let way = self.sets.get(set)?.0.iter().position(is_it)?;
        Some(Spot { set, way })
    }

    #[inline]
    pub(crate) fn at(&self, spot: Spot) -> &V {
        &self.sets[spot.set].0[spot.way].value
    }

    #[cold]
    fn miss(&mut self, index: usize, hash: u64, source: u32) -> Found<'_, V> {
        let candidate = (hash >> 32) as u32 | 1;
        if self.candidates[index] != candidate {
            self.candidates[index] = candidate;
            return Found::Pass;
        }
        self.candidates[index] = 0;
        // An outdated entry goes first, then any: which one is as good as drawn.
        let set = &mut self.sets[index].0;
        let outdated = set.iter().position(|entry| entry.source != source);
        let way = outdated.unwrap_or((hash >> 16) as usize % WAYS);
        Found::Admit(Place { entry: &mut set[way], hash, source })
    }

    fn clear(&mut self) {
        self.sets.clear();
    }
}

/// Which class of clients a client falls into.
pub(crate) struct Clients {
    cache: Cache<u32>,
    classes: Vec<ClientMatch>,
    numbers: BTreeMap<ClientMatch, u32>,
    /// Holds what was worked out but is not worth keeping.
    scratch: Option<ClientMatch>,
}

impl Clients {
    /// The class of the client summed up as `summary` under the rules `source`; worked out if it is not known.
    #[inline]
    pub(crate) fn class(
        &mut self,
        summary: u64,
        source: u32,
        work_out: impl FnOnce(&mut ClientMatch),
    ) -> &ClientMatch {
        let place = match self.cache.find(summary, source) {
            Found::Hit(class) => return &self.classes[*class as usize],
            Found::Admit(place) => Some(place),
            Found::Pass => None,
        };
        let scratch = self.scratch.get_or_insert_default();
        work_out(scratch);
        if let Some(place) = place {
            match self.numbers.get(scratch) {
                Some(class) => {
                    place.keep(*class);
                }
                None if self.classes.len() < MOST_CLASSES => {
                    let class = self.classes.len() as u32;
                    self.numbers.insert(scratch.clone(), class);
                    self.classes.push(scratch.clone());
                    place.keep(class);
                }
                None => {
                    self.cache.clear();
                    self.classes.clear();
                    self.numbers.clear();
                }
            }
        }
        scratch
    }
}

/// What is remembered of a path.
#[derive(Default)]
pub(crate) struct Path {
    path: Box<str>,
    pub(crate) matched: PathMatch,
}

impl Path {
    pub(crate) fn new(path: &str, matched: PathMatch) -> Self {
        Self { path: path.into(), matched }
    }

    #[inline]
    pub(crate) fn is(&self, path: &str) -> bool {
        *self.path == *path
    }
}

/// Who makes paths collide gains nothing but misses: they are compared in full.
#[inline]
pub(crate) fn path_hash(path: &str) -> u64 {
    rapidhash_v3(path.as_bytes())
}
