//! The allow and deny lists. They are kept apart from the rules, so that blocking somebody disturbs
//! nothing else.

use super::pattern::{Glob, network};
use crate::request::Request;
use ipnet::IpNet;
use std::collections::HashMap;
use std::net::IpAddr;

/// Which list a request is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListVerdict {
    /// Passes without any limit.
    Allowed,
    /// Refused.
    Denied,
}

impl ListVerdict {
    /// Deny wins over allow, and both over nothing.
    #[inline]
    pub fn stricter(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(Self::Denied), _) | (_, Some(Self::Denied)) => Some(Self::Denied),
            (Some(Self::Allowed), _) | (_, Some(Self::Allowed)) => Some(Self::Allowed),
            (None, None) => None,
        }
    }
}

/// What the lists say about a client, and until when that can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListLookup {
    /// The list, if any. Deny wins over allow.
    pub listed: Option<ListVerdict>,
    /// The next expiry of an entry that has to do with this client.
    pub until_us: u64,
}

/// Both lists.
#[derive(Clone, Debug, Default)]
pub struct AccessLists {
    allow: AccessList,
    deny: AccessList,
}

impl AccessLists {
    /// The lists with these entries.
    pub fn new(allow: AccessList, deny: AccessList) -> Self {
        Self { allow, deny }
    }

    /// Whether nobody is on either.
    pub fn is_empty(&self) -> bool {
        !self.mention_names() && self.allow.networks.is_empty() && self.deny.networks.is_empty()
    }

    /// Whether an entry is about names rather than addresses.
    #[inline]
    pub fn mention_names(&self) -> bool {
        self.allow.has_names() || self.deny.has_names()
    }

    /// Which list the client is on at `now_us`.
    pub fn standing(&self, request: &Request<'_>, now_us: u64) -> ListLookup {
        let (names, address) =
            (self.standing_of_names(request, now_us), self.standing_of_address(request.ip, now_us));
        ListLookup {
            listed: ListVerdict::stricter(names.listed, address.listed),
            until_us: names.until_us.min(address.until_us),
        }
    }

    /// Which list the client's names are on. This half can be remembered.
    pub fn standing_of_names(&self, request: &Request<'_>, now_us: u64) -> ListLookup {
        standing(self.deny.find_name(request, now_us), self.allow.find_name(request, now_us))
    }

    /// Which list the client's address is on. This half is cheap.
    #[inline]
    pub fn standing_of_address(&self, ip: Option<IpAddr>, now_us: u64) -> ListLookup {
        match ip {
            Some(ip) if !self.deny.networks.is_empty() || !self.allow.networks.is_empty() => {
                standing(self.deny.find_address(ip, now_us), self.allow.find_address(ip, now_us))
            }
            _ => ListLookup { listed: None, until_us: u64::MAX },
        }
    }

    /// What is decided for good about all clients whose name matches `pattern`.
    pub(super) fn decide_names(&self, pattern: &Glob) -> Option<ListVerdict> {
        let decides = |list: &AccessList| {
            let exact = list.exact.get(pattern.as_str()).filter(|_| pattern.is_exact());
            let globs = list.globs.iter().filter(|(glob, _)| glob.covers(pattern)).map(|(_, entry)| entry);
            exact.into_iter().chain(globs).any(|entry| entry.expires_us.is_none())
        };
        decide(decides(&self.deny), decides(&self.allow))
    }

    /// The same about all clients in `network`.
    pub(super) fn decide_network(&self, network: IpNet) -> Option<ListVerdict> {
        let decides = |list: &AccessList| {
            let wider = list.networks.iter().filter(|(length, _)| *length <= network.prefix_len());
            let mut entries = wider.filter_map(|(length, networks)| {
                networks.get(&IpNet::new(network.addr(), *length).ok()?.trunc())
            });
            entries.any(|entry| entry.expires_us.is_none())
        };
        decide(decides(&self.deny), decides(&self.allow))
    }

    /// The entry that puts the client on a list, as written.
    pub fn reason(&self, request: &Request<'_>, now_us: u64) -> Option<(ListVerdict, &ListEntry)> {
        match self.deny.find(request, now_us) {
            Some(entry) => Some((ListVerdict::Denied, entry)),
            None => self.allow.find(request, now_us).map(|entry| (ListVerdict::Allowed, entry)),
        }
    }
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListEntry {
    /// As written.
    pub pattern: String,
    /// Until when it holds.
    pub expires_us: Option<u64>,
    /// For people.
    pub reason: Option<String>,
}

impl ListEntry {
    fn end_us(&self) -> u64 {
        self.expires_us.unwrap_or(u64::MAX)
    }
}

/// One list: exact keys, globs and networks.
#[derive(Clone, Debug, Default)]
pub struct AccessList {
    exact: HashMap<String, ListEntry>,
    globs: Vec<(Glob, ListEntry)>,
    /// By length, longest first, and network: a look-up per length, however many networks there are.
    networks: Vec<(u8, HashMap<IpNet, ListEntry>)>,
}

impl AccessList {
    /// Adds an entry. Of two for the same pattern, the one that lasts longer stays.
    pub fn insert(&mut self, entry: ListEntry) {
        if let Some(network) = network(&entry.pattern) {
            let network = network.trunc();
            let length = network.prefix_len();
            let slot = match self.networks.binary_search_by(|(known, _)| length.cmp(known)) {
                Ok(slot) => slot,
                Err(slot) => {
                    self.networks.insert(slot, (length, HashMap::new()));
                    slot
                }
            };
            keep_longest(self.networks[slot].1.entry(network), entry);
            return;
        }
        let glob = Glob::new(&entry.pattern);
        if glob.is_exact() {
            keep_longest(self.exact.entry(entry.pattern.clone()), entry);
        } else {
            self.globs.push((glob, entry));
        }
    }

    fn has_names(&self) -> bool {
        !self.exact.is_empty() || !self.globs.is_empty()
    }

    fn find(&self, request: &Request<'_>, now_us: u64) -> Option<&ListEntry> {
        self.find_name(request, now_us).or_else(|| self.find_address(request.ip?, now_us))
    }

    /// A live entry for the client's names: the one that lasts longest, for while it lasts, nothing changes.
    fn find_name(&self, request: &Request<'_>, now_us: u64) -> Option<&ListEntry> {
        if !self.has_names() {
            return None;
        }
        let names = [request.api_key, request.user, request.tenant];
        let exact = names.iter().flatten().filter_map(|name| self.exact.get(*name));
        let globs =
            self.globs.iter().filter(|(glob, _)| names.iter().flatten().any(|name| glob.matches(name)));
        longest_lived(exact.chain(globs.map(|(_, entry)| entry)), now_us)
    }

    /// The same for its address.
    fn find_address(&self, ip: IpAddr, now_us: u64) -> Option<&ListEntry> {
        let ip = ip.to_canonical();
        let networks = self
            .networks
            .iter()
            .filter_map(|(length, networks)| networks.get(&IpNet::new(ip, *length).ok()?.trunc()));
        longest_lived(networks, now_us)
    }
}

fn decide(denied: bool, allowed: bool) -> Option<ListVerdict> {
    ListVerdict::stricter(denied.then_some(ListVerdict::Denied), allowed.then_some(ListVerdict::Allowed))
}

fn longest_lived<'e>(entries: impl Iterator<Item = &'e ListEntry>, now_us: u64) -> Option<&'e ListEntry> {
    entries.filter(|entry| entry.end_us() > now_us).max_by_key(|entry| entry.end_us())
}

fn standing(denied: Option<&ListEntry>, allowed: Option<&ListEntry>) -> ListLookup {
    let listed = match (denied, allowed) {
        (Some(_), _) => Some(ListVerdict::Denied),
        (None, Some(_)) => Some(ListVerdict::Allowed),
        (None, None) => None,
    };
    let end_us = |entry: Option<&ListEntry>| entry.map_or(u64::MAX, ListEntry::end_us);
    ListLookup { listed, until_us: end_us(denied).min(end_us(allowed)) }
}

fn keep_longest<K>(slot: std::collections::hash_map::Entry<'_, K, ListEntry>, entry: ListEntry) {
    slot.and_modify(|known| {
        if known.end_us() < entry.end_us() {
            *known = entry.clone();
        }
    })
    .or_insert(entry);
}

/// Whether a text was probably meant as an address or a network: as a key it would match nobody, and
/// nobody would notice.
pub(crate) fn looks_like_an_address(key: &str) -> bool {
    let (address, has_prefix) = key.split_once('/').map_or((key, false), |(address, _)| (address, true));
    let only = |more: &str| address.chars().all(|c| c.is_ascii_digit() || more.contains(c));
    let (dots, stars) = (address.matches('.').count(), address.contains('*'));
    let v4 = address.starts_with(|c: char| c.is_ascii_digit())
        && only(".*")
        && (dots == 3 || dots > 0 && (has_prefix || stars));
    let hex = address.chars().all(|c| c.is_ascii_hexdigit() || ":*".contains(c));
    v4 || hex && address.contains("::") || hex && has_prefix && address.contains(':')
}
