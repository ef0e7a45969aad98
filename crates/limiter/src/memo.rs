//! What each thread remembers of earlier selections, so that the hot path runs no pattern.
//!
//! Clients fall into few classes (tiers, patterns, overrides) and so do paths; a class is what
//! `RuleSet::match_client` or `match_path` answers. What a class of clients meets on a class of paths is worked
//! out once. So an entry is a hash and a number, sixteen bytes, and the hot path is three look-ups.
//!
//! The client's hash is the keyed one that also identifies states, and is trusted as far as there; paths are
//! compared in full. An entry is admitted only on second sight, so a stream of random keys or paths passes
//! through without displacing anybody. All of this belongs to the thread: it takes no lock and shares no
//! cache line. Entries of another rule set, or another limiter, carry another number and do not match.

mod cache;

use crate::policy::Policy;
use cache::Cache;
use rapidhash::v3::rapidhash_v3;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use tollgate_core::key::Hashes;
use tollgate_core::request::Request;
use tollgate_core::rules::lists::{Listed, Standing};
use tollgate_core::rules::{ClientMatch, ClientTraits, PathMatch, RuleSet, Selection};

/// Sets of four entries each; powers of two.
const CLIENT_SETS: usize = 4096;
const LIST_SETS: usize = 4096;
const PATH_SETS: usize = 256;
const SELECTION_SETS: usize = 256;
/// More classes than this come from overrides alone; then all is thought anew.
const MOST_CLASSES: usize = 4096;
/// How many limiters of one process a thread keeps the policy of.
const POLICIES: usize = 4;

thread_local! {
    static MEMO: RefCell<Memo> = const { RefCell::new(Memo::new()) };
}

/// What one thread remembers.
pub(crate) struct Memo {
    policies: [Option<Known>; POLICIES],
    caches: Caches,
}

/// The policy that a limiter had when this thread last looked.
struct Known {
    limiter: u32,
    version: u64,
    policy: Arc<Policy>,
}

/// The caches beside the policy.
pub(crate) struct Caches {
    clients: Cache<u32>,
    client_classes: Classes<ClientMatch>,
    paths: Cache<PathEntry>,
    path_classes: Classes<PathMatch>,
    /// By the numbers of both classes.
    selections: Cache<Selection>,
    /// What was worked out but is not worth keeping.
    scratch: Option<Scratch>,
    /// By client and lists: what the lists say.
    listed: Cache<Option<Standing>>,
}

#[derive(Default)]
struct Scratch {
    client: ClientMatch,
    path: PathMatch,
    selection: Selection,
}

#[derive(Default)]
struct PathEntry {
    path: Box<str>,
    class: u32,
}

/// Runs `body` with this thread's memory.
#[inline]
pub(crate) fn with<T>(body: impl FnOnce(&mut Memo) -> T) -> T {
    MEMO.with_borrow_mut(body)
}

impl Memo {
    const fn new() -> Self {
        Self {
            policies: [const { None }; POLICIES],
            caches: Caches {
                clients: Cache::new(CLIENT_SETS),
                client_classes: Classes::new(),
                paths: Cache::new(PATH_SETS),
                path_classes: Classes::new(),
                selections: Cache::new(SELECTION_SETS),
                scratch: None,
                listed: Cache::new(LIST_SETS),
            },
        }
    }

    /// The policy of the limiter numbered `limiter`, which is now at `version`. A thread fetches it once
    /// per version: a counter that all threads count up and down with every check would be what they
    /// spend their time on.
    #[inline]
    pub(crate) fn policy(
        &mut self,
        limiter: u32,
        version: u64,
        fetch: impl FnOnce() -> Arc<Policy>,
    ) -> (&Policy, &mut Caches) {
        let slot = &mut self.policies[limiter as usize % POLICIES];
        if !slot.as_ref().is_some_and(|known| known.limiter == limiter && known.version == version) {
            *slot = None;
        }
        let known = slot.get_or_insert_with(|| Known { limiter, version, policy: fetch() });
        (&known.policy, &mut self.caches)
    }
}

impl Caches {
    /// The rules that the client of `request` meets on its path.
    #[inline]
    pub(crate) fn select(
        &mut self,
        policy: &Policy,
        request: &Request<'_>,
        hashes: &Hashes<'_>,
    ) -> &Selection {
        let (rules, number) = (&policy.rules.set, policy.rules.number);
        if self.client_classes.is_full() || self.path_classes.is_full() {
            self.forget();
        }
        let client = self.client(rules, number, request, hashes);
        let path = self.path(rules, number, request);
        if let (Some(client), Some(path)) = (client, path) {
            let joined = u64::from(client) << 32 | u64::from(path);
            // Joined numbers differ in few bits; the cache picks a set by the lowest.
            let hash = joined.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
            if let Some(spot) = self.selections.spot(hash, number) {
                return self.selections.at(spot);
            }
            if let Some(spot) = self.selections.admit(hash, number) {
                let mut selection = Selection::default();
                let (client, path) = (self.client_classes.get(client), self.path_classes.get(path));
                rules.join_into(client, path, &mut selection);
                return self.selections.keep(spot, hash, number, selection);
            }
        }
        self.join(rules, client, path)
    }

    /// Joins the halves without keeping the result. A half without a class is in the scratch.
    #[cold]
    fn join(&mut self, rules: &RuleSet, client: Option<u32>, path: Option<u32>) -> &Selection {
        let Scratch { client: new_client, path: new_path, selection } = self.scratch.get_or_insert_default();
        let client = client.map_or(&*new_client, |class| self.client_classes.get(class));
        let path = path.map_or(&*new_path, |class| self.path_classes.get(class));
        rules.join_into(client, path, selection);
        selection
    }

    /// The class of the client; if it has none yet, its match is in the scratch.
    #[inline]
    fn client(
        &mut self,
        rules: &RuleSet,
        number: u32,
        request: &Request<'_>,
        hashes: &Hashes<'_>,
    ) -> Option<u32> {
        let summary = rules.sum_up(request, hashes);
        match self.clients.spot(summary, number) {
            Some(spot) => Some(*self.clients.at(spot)),
            None => self.new_client(rules, number, request, summary),
        }
    }

    #[cold]
    fn new_client(
        &mut self,
        rules: &RuleSet,
        number: u32,
        request: &Request<'_>,
        summary: u64,
    ) -> Option<u32> {
        let scratch = &mut self.scratch.get_or_insert_default().client;
        rules.match_client_into(request, scratch);
        let spot = self.clients.admit(summary, number)?;
        let class = self.client_classes.number(scratch)?;
        Some(*self.clients.keep(spot, summary, number, class))
    }

    /// The class of the path; if it has none yet, its match is in the scratch.
    #[inline]
    fn path(&mut self, rules: &RuleSet, number: u32, request: &Request<'_>) -> Option<u32> {
        let endpoint = if rules.looks_at_paths() { request.endpoint } else { "" };
        // Most requests have no query: the endpoint is tried as it is before one is looked for.
        let known = self.paths.spot(path_hash(endpoint), number).map(|spot| self.paths.at(spot));
        match known {
            Some(entry) if *entry.path == *endpoint => Some(entry.class),
            _ => {
                self.path_without_query(rules, number, if endpoint.is_empty() { "" } else { request.path() })
            }
        }
    }

    #[inline(never)]
    fn path_without_query(&mut self, rules: &RuleSet, number: u32, path: &str) -> Option<u32> {
        let hash = path_hash(path);
        let known = self.paths.spot(hash, number);
        if let Some(entry) = known.map(|spot| self.paths.at(spot)).filter(|entry| *entry.path == *path) {
            return Some(entry.class);
        }
        let scratch = &mut self.scratch.get_or_insert_default().path;
        *scratch = rules.match_path(path);
        // Another path with the same hash keeps its place.
        let spot = if known.is_some() { None } else { self.paths.admit(hash, number) }?;
        let class = self.path_classes.number(scratch)?;
        Some(self.paths.keep(spot, hash, number, PathEntry { path: path.into(), class }).class)
    }

    /// Classes pile up with each change of the rules: from time to time, all start anew.
    #[cold]
    fn forget(&mut self) {
        self.clients.clear();
        self.client_classes = Classes::new();
        self.paths.clear();
        self.path_classes = Classes::new();
        self.selections.clear();
    }

    /// Which list the client is on. What the names say is remembered: a pattern may have been asked.
    #[inline(never)]
    pub(crate) fn listed(
        &mut self,
        policy: &Policy,
        request: &Request<'_>,
        hashes: &Hashes<'_>,
        now_us: u64,
    ) -> Option<Listed> {
        let (lists, number) = (&policy.lists.value, policy.lists.number);
        let by_address = lists.standing_of_address(request.ip, now_us).listed;
        if !lists.mention_names() {
            return by_address;
        }
        let hash = hashes.of_traits(NAMES, request);
        let spot = self.listed.spot(hash, number);
        let known = spot.and_then(|spot| *self.listed.at(spot)).filter(|known| now_us < known.until_us);
        let by_name = known.unwrap_or_else(|| {
            let standing = lists.standing_of_names(request, now_us);
            if let Some(spot) = spot.or_else(|| self.listed.admit(hash, number)) {
                self.listed.keep(spot, hash, number, Some(standing));
            }
            standing
        });
        Listed::stricter(by_name.listed, by_address)
    }
}

/// What lists of names look at.
const NAMES: ClientTraits =
    ClientTraits { api_key: true, user: true, tenant: true, ip: false, tier: false, ids: false };

/// Who makes paths collide gains nothing but misses: they are compared in full.
#[inline]
fn path_hash(path: &str) -> u64 {
    rapidhash_v3(path.as_bytes())
}

/// Numbers for values of which there are few.
struct Classes<M> {
    values: Vec<M>,
    numbers: BTreeMap<M, u32>,
}

impl<M: Clone + Ord> Classes<M> {
    const fn new() -> Self {
        Self { values: Vec::new(), numbers: BTreeMap::new() }
    }

    #[inline]
    fn get(&self, number: u32) -> &M {
        &self.values[number as usize]
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.values.len() >= MOST_CLASSES
    }

    /// The number of `value`; none if there are too many already.
    fn number(&mut self, value: &M) -> Option<u32> {
        if let Some(number) = self.numbers.get(value) {
            return Some(*number);
        }
        if self.is_full() {
            return None;
        }
        let number = self.values.len() as u32;
        self.numbers.insert(value.clone(), number);
        self.values.push(value.clone());
        Some(number)
    }
}
