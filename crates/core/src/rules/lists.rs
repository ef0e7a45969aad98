//! The allow and deny lists. They are separate from the rule set, so that blocking a client does not replace it.

use super::pattern::{Glob, network};
use crate::request::{NamedIdentity, Request};
use crate::time::UnixTime;
use ipnet::IpNet;
use std::collections::HashMap;
use std::net::IpAddr;

/// The list that a client is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListVerdict {
    /// The allow list: no limit applies.
    Allowed,
    /// The deny list: refused.
    Denied,
}

impl ListVerdict {
    /// Deny takes precedence over allow.
    #[inline]
    pub fn stricter(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(Self::Denied), _) | (_, Some(Self::Denied)) => Some(Self::Denied),
            (Some(Self::Allowed), _) | (_, Some(Self::Allowed)) => Some(Self::Allowed),
            (None, None) => None,
        }
    }
}

/// The result of a lookup, and until when it is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListLookup {
    /// The list, if any. Deny takes precedence over allow.
    pub verdict: Option<ListVerdict>,
    /// The next expiry of an entry that matches this client.
    pub until: UnixTime,
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

    /// Whether both lists are empty.
    pub fn is_empty(&self) -> bool {
        !self.have_names() && self.allow.networks.is_empty() && self.deny.networks.is_empty()
    }

    /// Whether an entry matches keys, users or tenants rather than addresses.
    #[inline]
    pub fn have_names(&self) -> bool {
        self.allow.has_names() || self.deny.has_names()
    }

    /// The list that the client is on at `now`.
    pub fn look_up(&self, request: &Request<'_>, now: UnixTime) -> ListLookup {
        let (names, address) = (self.look_up_names(request, now), self.look_up_address(request.ip, now));
        ListLookup {
            verdict: ListVerdict::stricter(names.verdict, address.verdict),
            until: names.until.min(address.until),
        }
    }

    /// The list that the client's key, user or tenant is on. The result can be cached.
    pub fn look_up_names(&self, request: &Request<'_>, now: UnixTime) -> ListLookup {
        lookup(self.deny.find_name(request, now), self.allow.find_name(request, now))
    }

    /// The list that the client's address is on. This part is cheap.
    #[inline]
    pub fn look_up_address(&self, ip: Option<IpAddr>, now: UnixTime) -> ListLookup {
        match ip {
            Some(ip) if !self.deny.networks.is_empty() || !self.allow.networks.is_empty() => {
                lookup(self.deny.find_address(ip, now), self.allow.find_address(ip, now))
            }
            _ => ListLookup { verdict: None, until: UnixTime::MAX },
        }
    }

    /// The permanent verdict on all clients whose name matches `pattern`.
    pub(super) fn decide_names(&self, pattern: &Glob) -> Option<ListVerdict> {
        let decides = |list: &AccessList| {
            let exact = list.exact.get(pattern.as_str()).filter(|_| pattern.is_exact());
            let globs = list.globs.iter().filter(|(glob, _)| glob.covers(pattern)).map(|(_, entry)| entry);
            exact.into_iter().chain(globs).any(|entry| entry.expires.is_none())
        };
        verdict(decides(&self.deny), decides(&self.allow))
    }

    /// The permanent verdict on all clients in `network`.
    pub(super) fn decide_network(&self, network: IpNet) -> Option<ListVerdict> {
        let decides = |list: &AccessList| {
            let wider = list.networks.iter().filter(|(length, _)| *length <= network.prefix_len());
            let mut entries = wider.filter_map(|(length, networks)| {
                networks.get(&IpNet::new(network.addr(), *length).ok()?.trunc())
            });
            entries.any(|entry| entry.expires.is_none())
        };
        verdict(decides(&self.deny), decides(&self.allow))
    }

    /// The lists as the author of the rules wrote them, without the entries that operators added at run time; none if
    /// there are no such entries.
    pub(super) fn of_author(&self) -> Option<Self> {
        let is_changed = self.allow.entries().chain(self.deny.entries()).any(|entry| entry.by.is_some());
        is_changed.then(|| Self { allow: self.allow.of_author(), deny: self.deny.of_author() })
    }

    /// The entry that matches the client, as written.
    pub fn find_entry(&self, request: &Request<'_>, now: UnixTime) -> Option<(ListVerdict, &ListEntry)> {
        match self.deny.find(request, now) {
            Some(entry) => Some((ListVerdict::Denied, entry)),
            None => self.allow.find(request, now).map(|entry| (ListVerdict::Allowed, entry)),
        }
    }
}

/// One entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListEntry {
    /// As written.
    pub pattern: String,
    /// The end of its validity.
    pub expires: Option<UnixTime>,
    /// A note for operators.
    pub reason: Option<String>,
    /// The operator that added it at run time; none for an entry of the author of the rules.
    pub by: Option<String>,
}

impl ListEntry {
    fn end(&self) -> UnixTime {
        self.expires.unwrap_or(UnixTime::MAX)
    }
}

/// One list: exact names, globs and networks.
#[derive(Clone, Debug, Default)]
pub struct AccessList {
    exact: HashMap<String, ListEntry>,
    globs: Vec<(Glob, ListEntry)>,
    /// By prefix length, longest first: one lookup for each length, however many networks there are.
    networks: Vec<(u8, HashMap<IpNet, ListEntry>)>,
}

impl AccessList {
    /// Adds an entry. Of two with the same pattern, the one that expires later is kept.
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
            keep_later(self.networks[slot].1.entry(network), entry);
            return;
        }
        let glob = Glob::new(&entry.pattern);
        if glob.is_exact() {
            keep_later(self.exact.entry(entry.pattern.clone()), entry);
        } else {
            self.globs.push((glob, entry));
        }
    }

    fn entries(&self) -> impl Iterator<Item = &ListEntry> {
        let globs = self.globs.iter().map(|(_, entry)| entry);
        let networks = self.networks.iter().flat_map(|(_, networks)| networks.values());
        self.exact.values().chain(globs).chain(networks)
    }

    fn of_author(&self) -> Self {
        let mut list = Self::default();
        self.entries().filter(|entry| entry.by.is_none()).for_each(|entry| list.insert(entry.clone()));
        list
    }

    fn has_names(&self) -> bool {
        !self.exact.is_empty() || !self.globs.is_empty()
    }

    fn find(&self, request: &Request<'_>, now: UnixTime) -> Option<&ListEntry> {
        self.find_name(request, now).or_else(|| self.find_address(request.ip?, now))
    }

    /// The valid entry for the client's names that expires last: the verdict holds until then.
    fn find_name(&self, request: &Request<'_>, now: UnixTime) -> Option<&ListEntry> {
        if !self.has_names() {
            return None;
        }
        let names = NamedIdentity::ALL.map(|kind| request.named(kind));
        let exact = names.iter().flatten().filter_map(|name| self.exact.get(*name));
        let globs =
            self.globs.iter().filter(|(glob, _)| names.iter().flatten().any(|name| glob.matches(name)));
        last_to_expire(exact.chain(globs.map(|(_, entry)| entry)), now)
    }

    /// The valid entry for the client's address that expires last.
    fn find_address(&self, ip: IpAddr, now: UnixTime) -> Option<&ListEntry> {
        let ip = ip.to_canonical();
        let networks = self
            .networks
            .iter()
            .filter_map(|(length, networks)| networks.get(&IpNet::new(ip, *length).ok()?.trunc()));
        last_to_expire(networks, now)
    }
}

fn verdict(denied: bool, allowed: bool) -> Option<ListVerdict> {
    ListVerdict::stricter(denied.then_some(ListVerdict::Denied), allowed.then_some(ListVerdict::Allowed))
}

fn last_to_expire<'e>(entries: impl Iterator<Item = &'e ListEntry>, now: UnixTime) -> Option<&'e ListEntry> {
    entries.filter(|entry| entry.end() > now).max_by_key(|entry| entry.end())
}

fn lookup(denied: Option<&ListEntry>, allowed: Option<&ListEntry>) -> ListLookup {
    let verdict = match (denied, allowed) {
        (Some(_), _) => Some(ListVerdict::Denied),
        (None, Some(_)) => Some(ListVerdict::Allowed),
        (None, None) => None,
    };
    let end = |entry: Option<&ListEntry>| entry.map_or(UnixTime::MAX, ListEntry::end);
    ListLookup { verdict, until: end(denied).min(end(allowed)) }
}

fn keep_later<K>(slot: std::collections::hash_map::Entry<'_, K, ListEntry>, entry: ListEntry) {
    slot.and_modify(|known| {
        if known.end() < entry.end() {
            *known = entry.clone();
        }
    })
    .or_insert(entry);
}

/// Whether a text was probably meant as an address or a network. As a key it would silently match no client.
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
