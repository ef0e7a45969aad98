//! What each thread remembers of earlier selections, so that the hot path runs no pattern.
//!
//! Two bounded caches, one by client and one by path. An entry is compared in full, so a collision cannot
//! poison it, and admitted only on second sight, so a stream of random keys or paths passes through
//! without displacing anybody. They belong to the thread: a look-up takes no lock and shares no cache
//! line. Entries of another rule set, or another limiter, simply do not match.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::LazyLock;
use tollgate_core::request::Request;
use tollgate_core::rules::lists::Standing;
use tollgate_core::rules::{ClientMatch, ClientTraits, PathMatch};

/// Sets of two entries each.
const CLIENT_SETS: usize = 8192;
const PATH_SETS: usize = 1024;

/// Drawn once: nobody outside can aim at a set.
static SECRETS: LazyLock<RapidSecrets> =
    LazyLock::new(|| RapidSecrets::seed(RandomState::new().hash_one("the memo")));

thread_local! {
    static MEMO: RefCell<Memo> = RefCell::new(Memo { clients: Cache::new(CLIENT_SETS), paths: Cache::new(PATH_SETS) });
}

/// The caches of one thread.
pub(crate) struct Memo {
    pub(crate) clients: Cache<Client>,
    pub(crate) paths: Cache<Path>,
}

/// Runs `body` with this thread's caches.
#[inline]
pub(crate) fn with<T>(body: impl FnOnce(&mut Memo) -> T) -> T {
    MEMO.with_borrow_mut(body)
}

/// A two-way cache. `E` knows what it is about.
pub(crate) struct Cache<E> {
    /// Empty until first used: a thread that never checks costs nothing.
    sets: Vec<Set<E>>,
    count: usize,
}

struct Set<E> {
    entries: [Option<E>; 2],
    /// The hash that missed last; if it misses again, it is admitted.
    candidate: u64,
    /// Which entry was used last; the other one goes first.
    recent: usize,
}

impl<E> Default for Set<E> {
    fn default() -> Self {
        Self { entries: [None, None], candidate: 0, recent: 0 }
    }
}

/// An entry, or what to do for want of one.
pub(crate) enum Found<'m, E> {
    Hit(&'m mut E),
    /// Seen twice now: worth keeping.
    Admit(Place<'m, E>),
    /// First sight: work it out and forget it.
    Pass,
}

/// Where an entry may be kept.
pub(crate) struct Place<'m, E>(&'m mut Option<E>);

impl<'m, E> Place<'m, E> {
    pub(crate) fn keep(self, entry: E) -> &'m mut E {
        self.0.insert(entry)
    }
}

impl<E> Cache<E> {
    fn new(count: usize) -> Self {
        Self { sets: Vec::new(), count }
    }

    /// Looks for the entry that `is_it`.
    #[inline]
    pub(crate) fn find(&mut self, hash: u64, is_it: impl Fn(&E) -> bool) -> Found<'_, E> {
        if self.sets.is_empty() {
            self.sets.resize_with(self.count, Set::default);
        }
        let index = hash as usize % self.count;
        let set = &mut self.sets[index];
        let hit = |entry: &Option<E>| entry.as_ref().is_some_and(&is_it);
        let which = if hit(&set.entries[set.recent]) {
            set.recent
        } else if hit(&set.entries[1 - set.recent]) {
            1 - set.recent
        } else if set.candidate == hash {
            set.candidate = 0;
            set.recent = 1 - set.recent;
            return Found::Admit(Place(&mut set.entries[set.recent]));
        } else {
            set.candidate = hash;
            return Found::Pass;
        };
        set.recent = which;
        match &mut set.entries[which] {
            Some(entry) => Found::Hit(entry),
            None => Found::Pass,
        }
    }
}

/// What is remembered of a client.
pub(crate) struct Client {
    hash: u64,
    policy: u64,
    who: Who,
    pub(crate) matched: ClientMatch,
    /// What the lists that had this number said.
    pub(crate) standing: (u64, Standing),
}

/// The traits of a client that matter, in full.
#[derive(Default)]
struct Who {
    api_key: Option<Box<str>>,
    user: Option<Box<str>>,
    tenant: Option<Box<str>>,
    tier: Option<Box<str>>,
    ip: Option<IpAddr>,
    ids: Box<[(Box<str>, Box<str>)]>,
}

impl Client {
    pub(crate) fn new(
        hash: u64,
        policy: u64,
        traits: ClientTraits,
        request: &Request<'_>,
        matched: ClientMatch,
        standing: (u64, Standing),
    ) -> Self {
        let text = |matters: bool, text: Option<&str>| text.filter(|_| matters).map(Box::from);
        let who = Who {
            api_key: text(traits.api_key, request.api_key),
            user: text(traits.user, request.user),
            tenant: text(traits.tenant, request.tenant),
            tier: text(traits.tier, request.tier),
            ip: request.ip.filter(|_| traits.ip),
            ids: if traits.ids {
                request.ids.iter().map(|(name, value)| (Box::from(*name), Box::from(*value))).collect()
            } else {
                Box::default()
            },
        };
        Self { hash, policy, who, matched, standing }
    }

    #[inline]
    pub(crate) fn is(&self, hash: u64, policy: u64, traits: ClientTraits, request: &Request<'_>) -> bool {
        let same = |matters: bool, known: &Option<Box<str>>, text: Option<&str>| {
            !matters || known.as_deref() == text
        };
        self.hash == hash
            && self.policy == policy
            && same(traits.api_key, &self.who.api_key, request.api_key)
            && same(traits.user, &self.who.user, request.user)
            && same(traits.tenant, &self.who.tenant, request.tenant)
            && same(traits.tier, &self.who.tier, request.tier)
            && (!traits.ip || self.who.ip == request.ip)
            && (!traits.ids || self.same_ids(request))
    }

    fn same_ids(&self, request: &Request<'_>) -> bool {
        self.who.ids.len() == request.ids.len()
            && self.who.ids.iter().zip(request.ids).all(|(a, b)| *a.0 == *b.0 && *a.1 == *b.1)
    }
}

/// The hash of the traits that matter.
#[inline]
pub(crate) fn client_hash(policy: u64, traits: ClientTraits, request: &Request<'_>) -> u64 {
    let mut hash = policy;
    let mut add = |tag: u64, bytes: &[u8]| hash = mix(hash, tag) ^ rapidhash_v3_seeded(bytes, &SECRETS);
    let texts = [
        (traits.api_key, request.api_key),
        (traits.user, request.user),
        (traits.tenant, request.tenant),
        (traits.tier, request.tier),
    ];
    for (tag, (matters, text)) in texts.into_iter().enumerate() {
        if let Some(text) = text.filter(|_| matters) {
            add(tag as u64 + 1, text.as_bytes());
        }
    }
    if let Some(ip) = request.ip.filter(|_| traits.ip) {
        match ip {
            IpAddr::V4(v4) => add(5, &v4.octets()),
            IpAddr::V6(v6) => add(6, &v6.octets()),
        }
    }
    if traits.ids {
        for (name, value) in request.ids {
            add(7, name.as_bytes());
            add(8, value.as_bytes());
        }
    }
    mix(hash, 9)
}

/// What is remembered of a path.
pub(crate) struct Path {
    policy: u64,
    path: Box<str>,
    pub(crate) matched: PathMatch,
}

impl Path {
    pub(crate) fn new(policy: u64, path: &str, matched: PathMatch) -> Self {
        Self { policy, path: path.into(), matched }
    }

    #[inline]
    pub(crate) fn is(&self, policy: u64, path: &str) -> bool {
        self.policy == policy && *self.path == *path
    }
}

#[inline]
pub(crate) fn path_hash(policy: u64, path: &str) -> u64 {
    mix(policy, 10) ^ rapidhash_v3_seeded(path.as_bytes(), &SECRETS)
}

#[inline]
fn mix(hash: u64, tag: u64) -> u64 {
    (hash ^ tag).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}
