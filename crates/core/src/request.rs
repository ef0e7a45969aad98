//! A request as the limiter sees it, independent of the door it came through.

use std::net::IpAddr;
use std::ops::{Index, IndexMut};

/// The longest endpoint, in bytes. Longer ones are refused before they are matched.
pub const LONGEST_ENDPOINT: usize = 4096;

/// The identities of a client and what it requests. Unknown fields are `None`.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The API key.
    pub api_key: Option<&'a str>,
    /// The user.
    pub user: Option<&'a str>,
    /// The tenant.
    pub tenant: Option<&'a str>,
    /// The client's address.
    pub ip: Option<IpAddr>,
    /// The tier, if the caller states one.
    pub tier: Option<&'a str>,
    /// Custom identities as (name, value).
    pub ids: &'a [(&'a str, &'a str)],
    /// The domain: an Envoy domain, or the requested host.
    pub domain: Option<&'a str>,
    /// The path in the form of [`crate::path::endpoint`]. A query is ignored.
    pub endpoint: &'a str,
    /// The HTTP method.
    pub method: Option<Method>,
    /// The tokens to take from each limit; at least 1.
    pub cost: u64,
    /// The priority under `on_exceed: shed`; higher is more important.
    pub priority: Option<u8>,
    /// The door it came through, for metrics and logs.
    pub door: Door,
}

impl Default for Request<'_> {
    fn default() -> Self {
        Self {
            api_key: None,
            user: None,
            tenant: None,
            ip: None,
            tier: None,
            ids: &[],
            domain: None,
            endpoint: "",
            method: None,
            cost: 1,
            priority: None,
            door: Door::Library,
        }
    }
}

impl<'a> Request<'a> {
    /// The path without query and fragment.
    pub fn path(&self) -> &'a str {
        match self.endpoint.bytes().position(|byte| byte == b'?' || byte == b'#') {
            Some(end) => &self.endpoint[..end],
            None => self.endpoint,
        }
    }

    /// The identity `kind`.
    #[inline]
    pub fn named(&self, kind: NamedIdentity) -> Option<&'a str> {
        match kind {
            NamedIdentity::ApiKey => self.api_key,
            NamedIdentity::User => self.user,
            NamedIdentity::Tenant => self.tenant,
        }
    }

    /// The identity `kind`, to set it.
    #[inline]
    pub fn named_mut(&mut self, kind: NamedIdentity) -> &mut Option<&'a str> {
        match kind {
            NamedIdentity::ApiKey => &mut self.api_key,
            NamedIdentity::User => &mut self.user,
            NamedIdentity::Tenant => &mut self.tenant,
        }
    }

    /// The custom identity `name`.
    pub fn id(&self, name: &str) -> Option<&'a str> {
        self.ids.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// Whether there is at least one identity.
    pub fn has_identity(&self) -> bool {
        let has_name = NamedIdentity::ALL.into_iter().any(|kind| self.named(kind).is_some());
        has_name || self.ip.is_some() || !self.ids.is_empty()
    }
}

/// A protocol by which requests reach the limiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Door {
    /// A Rust program that calls the limiter itself.
    #[default]
    Library,
    /// The tower layer.
    Layer,
    /// The HTTP check API.
    Check,
    /// The reverse proxy.
    Gateway,
    /// The Redis protocol.
    Resp,
    /// Forward-auth: a proxy that asks about each of its requests.
    Auth,
    /// Envoy's rate limit service.
    Rls,
}

impl Door {
    /// All doors.
    pub const ALL: [Self; 7] =
        [Self::Library, Self::Layer, Self::Check, Self::Gateway, Self::Resp, Self::Auth, Self::Rls];

    /// The name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Library => "library",
            Self::Layer => "layer",
            Self::Check => "check",
            Self::Gateway => "gateway",
            Self::Resp => "resp",
            Self::Auth => "auth",
            Self::Rls => "rls",
        }
    }
}

/// Defines the enum and the list of its variants from one list.
macro_rules! named_identities {
    ($($(#[$doc:meta])* $kind:ident,)*) => {
        /// An identity that has its own field in requests, rules and settings. Addresses and custom identities are
        /// separate.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum NamedIdentity {
            $($(#[$doc])* $kind,)*
        }

        impl NamedIdentity {
            /// All kinds.
            pub const ALL: [Self; [$(Self::$kind),*].len()] = [$(Self::$kind),*];
        }
    };
}

named_identities! {
    /// The API key.
    ApiKey,
    /// The user.
    User,
    /// The tenant.
    Tenant,
}

impl NamedIdentity {
    /// The name in `key:` and under `identity:`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ApiKey => "api_key",
            Self::User => "user",
            Self::Tenant => "tenant",
        }
    }

    /// The field of checks and rule tests, and the flag of `rules explain`.
    pub fn request_field(self) -> &'static str {
        match self {
            Self::ApiKey => "key",
            Self::User => "user",
            Self::Tenant => "tenant",
        }
    }

    /// The name for people.
    pub fn label(self) -> &'static str {
        match self {
            Self::ApiKey => "API key",
            Self::User => "User",
            Self::Tenant => "Tenant",
        }
    }

    /// The field of `match:` with globs over it.
    pub fn pattern_field(self) -> &'static str {
        match self {
            Self::ApiKey => "api_key_pattern",
            Self::User => "user_pattern",
            Self::Tenant => "tenant_pattern",
        }
    }

    /// Whether its values are credentials, which are shown abbreviated.
    pub fn is_credential(self) -> bool {
        match self {
            Self::ApiKey => true,
            Self::User | Self::Tenant => false,
        }
    }

    /// Distinguishes the kinds in hashes, also in the keys of a shared store. 4 to 10 are used by other identities.
    #[inline]
    pub(crate) fn hash_tag(self) -> u8 {
        match self {
            Self::ApiKey => 1,
            Self::User => 2,
            Self::Tenant => 3,
        }
    }
}

/// One value for each [`NamedIdentity`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerIdentity<T>([T; NamedIdentity::ALL.len()]);

impl<T> PerIdentity<T> {
    /// The values that `value` returns.
    pub fn from_fn(value: impl FnMut(NamedIdentity) -> T) -> Self {
        Self(NamedIdentity::ALL.map(value))
    }

    /// Each kind with its value.
    pub fn iter(&self) -> impl Iterator<Item = (NamedIdentity, &T)> {
        NamedIdentity::ALL.into_iter().zip(&self.0)
    }
}

impl<T: Copy> PerIdentity<T> {
    /// The same value for all kinds.
    pub const fn all(value: T) -> Self {
        Self([value; NamedIdentity::ALL.len()])
    }
}

impl<T> Index<NamedIdentity> for PerIdentity<T> {
    type Output = T;

    #[inline]
    fn index(&self, kind: NamedIdentity) -> &T {
        &self.0[kind as usize]
    }
}

impl<T> IndexMut<NamedIdentity> for PerIdentity<T> {
    fn index_mut(&mut self, kind: NamedIdentity) -> &mut T {
        &mut self.0[kind as usize]
    }
}

/// An HTTP method in rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Method {
    /// GET
    Get = 1,
    /// HEAD
    Head = 1 << 1,
    /// POST
    Post = 1 << 2,
    /// PUT
    Put = 1 << 3,
    /// PATCH
    Patch = 1 << 4,
    /// DELETE
    Delete = 1 << 5,
    /// OPTIONS
    Options = 1 << 6,
    /// CONNECT
    Connect = 1 << 7,
    /// TRACE
    Trace = 1 << 8,
    /// Any other; it cannot be written in a rule.
    Other = 1 << 9,
}

impl Method {
    /// The methods that can be written in a rule.
    pub const NAMED: [(&'static str, Self); 9] = [
        ("GET", Self::Get),
        ("HEAD", Self::Head),
        ("POST", Self::Post),
        ("PUT", Self::Put),
        ("PATCH", Self::Patch),
        ("DELETE", Self::Delete),
        ("OPTIONS", Self::Options),
        ("CONNECT", Self::Connect),
        ("TRACE", Self::Trace),
    ];

    /// The name; empty for any other method.
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(_, method)| *method == self).map_or("", |(name, _)| name)
    }

    /// The method `name`, case-insensitive.
    pub fn from_name(name: &str) -> Self {
        Self::NAMED
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map_or(Self::Other, |(_, method)| *method)
    }
}

/// A set of methods; empty means any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MethodSet(u16);

impl MethodSet {
    /// Adds a method.
    pub fn insert(&mut self, method: Method) {
        self.0 |= method as u16;
    }

    /// Whether there is no method in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the set contains the method. A request without a method is only in the empty set.
    #[inline]
    pub fn contains(self, method: Option<Method>) -> bool {
        self.0 == 0 || method.is_some_and(|method| self.0 & method as u16 != 0)
    }

    /// The names of the methods in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Method::NAMED
            .into_iter()
            .filter(move |(_, method)| self.0 & *method as u16 != 0)
            .map(|(name, _)| name)
    }
}
