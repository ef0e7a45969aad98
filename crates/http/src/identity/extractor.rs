//! Extracts the identities of a request.

use super::client_ip::ClientIpOptions;
use super::jwt::{self, TokenVerifier, VerifiedClaims};
use super::options::{IdentityError, IdentityOptions, IdentityProblem, IdentitySources};
use super::source::{self, ConfiguredHeader, IdentitySource};
use crate::error::HttpError;
use crate::headers::{AUTHORIZATION, COOKIE, X_API_KEY};
use http::{HeaderMap, HeaderName, Uri};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;
use tollgate_core::request::{NamedIdentity, PerIdentity};
use tollgate_core::rules::{DoorCapability, OpenDoor};
use tollgate_core::time::UnixTime;
use tollgate_limiter::{Door, Method, Request};

/// All peers without an address (on a Unix socket) share one count.
const NO_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Finds the [`Caller`] of a request, as [`IdentityOptions`] say.
#[derive(Debug)]
pub struct IdentityExtractor {
    named: PerIdentity<SourceLookups>,
    tier: SourceLookups,
    ids: Vec<(Box<str>, SourceLookups)>,
    /// The verifier, and the source of the token.
    jwt: Option<(TokenVerifier, SourceLookup)>,
    client_ip: ClientIpOptions,
    cost: Option<HeaderName>,
    priority: Option<HeaderName>,
    /// Whether anything but the address depends on the peer being trusted.
    uses_trust: bool,
}

type SourceLookups = SmallVec<[SourceLookup; 2]>;

/// An [`IdentitySource`] as it is looked up, with claims by their index.
#[derive(Clone, Debug)]
enum SourceLookup {
    Header(HeaderName),
    TrustedHeader(HeaderName),
    Query(Box<str>),
    Cookie(Box<str>),
    Bearer,
    /// The bearer token unless it looks like a JWT: a token that is not verified must not become a key.
    OpaqueBearer,
    Claim(usize),
    Ip,
}

/// The value of an identity.
#[derive(Debug)]
enum FoundIdentity<'a> {
    Borrowed(&'a str),
    Owned(Box<str>),
    Claim(usize),
}

/// The identities of one request.
#[derive(Debug)]
pub struct Caller<'a> {
    named: PerIdentity<Option<FoundIdentity<'a>>>,
    tier: Option<FoundIdentity<'a>>,
    ids: SmallVec<[(&'a str, FoundIdentity<'a>); 2]>,
    claims: Option<Arc<VerifiedClaims>>,
    ip: IpAddr,
    cost: u64,
    priority: Option<u8>,
}

impl Default for IdentityExtractor {
    fn default() -> Self {
        Self::open(&IdentityOptions::default(), Path::new("")).expect("the defaults need no file")
    }
}

impl IdentityExtractor {
    /// Validates the options, and reads the files that they name. Relative paths start from `folder`.
    pub fn open(options: &IdentityOptions, folder: &Path) -> Result<Self, IdentityError> {
        let mut compiler = SourceCompiler { options, claims: Vec::new(), uses_trust: false };
        let token = options.jwt.as_ref().map(|jwt| compiler.token(&jwt.token)).transpose()?;
        let is_bearer = matches!(token, Some(SourceLookup::Bearer));
        let mut named = PerIdentity::from_fn(|_| SourceLookups::new());
        for kind in NamedIdentity::ALL {
            named[kind] = match options.sources(kind) {
                Some(sources) => compiler.lookups(kind.name(), sources)?,
                None if is_bearer => SmallVec::from_iter([SourceLookup::Header(X_API_KEY.clone())]),
                None => SmallVec::from_iter([SourceLookup::Header(X_API_KEY.clone()), SourceLookup::Bearer]),
            };
        }
        let tier = compiler.tier(&options.tier)?;
        let mut ids = Vec::new();
        for (name, sources) in &options.ids {
            let lookups = compiler.lookups(&format!("ids.{name}"), sources)?;
            ids.push((Box::from(name.as_str()), lookups));
        }
        let cost = compiler.trusted_header("cost", options.cost.as_ref().map(|trusted| &trusted.header))?;
        let priority =
            compiler.trusted_header("priority", options.priority.as_ref().map(|trusted| &trusted.header))?;
        let SourceCompiler { claims, uses_trust, .. } = compiler;
        let jwt = match (&options.jwt, token) {
            (Some(jwt), Some(token)) => Some((TokenVerifier::open(jwt, folder, claims)?, token)),
            _ => None,
        };
        Ok(Self { named, tier, ids, jwt, client_ip: options.client_ip.clone(), cost, priority, uses_trust })
    }

    /// The capabilities of a door `name` that uses these identities, lets requests wait and sees them end.
    pub fn open_door(&self, name: &'static str) -> OpenDoor {
        let mut capabilities =
            BTreeSet::from([DoorCapability::Delay, DoorCapability::Completion, DoorCapability::Domain]);
        capabilities.extend((!self.tier.is_empty()).then_some(DoorCapability::Tier));
        capabilities.extend(self.priority.is_some().then_some(DoorCapability::Priority));
        let named = self.named.iter().map(|(kind, lookups)| (kind.name(), lookups));
        let ids = self.ids.iter().map(|(name, lookups)| (name.as_ref(), lookups));
        let found = named.chain(ids).filter(|(_, lookups)| !lookups.is_empty());
        let identities = found.map(|(name, _)| name.to_owned()).collect();
        OpenDoor { name, capabilities, identities: Some(identities) }
    }

    /// The capabilities of a door `name` that uses these identities, and neither lets requests wait nor sees them end.
    pub fn open_door_without_end(&self, name: &'static str) -> OpenDoor {
        let mut door = self.open_door(name);
        for capability in [DoorCapability::Delay, DoorCapability::Completion] {
            door.capabilities.remove(&capability);
        }
        door
    }

    /// All lookups, with that of the token.
    fn lookups(&self) -> impl Iterator<Item = &SourceLookup> {
        let named = self.named.iter().map(|(_, lookups)| lookups).chain([&self.tier]);
        let ids = self.ids.iter().map(|(_, lookups)| lookups);
        let token = self.jwt.iter().map(|(_, token)| token);
        named.chain(ids).flatten().chain(token)
    }

    /// The headers that are read from every peer.
    pub fn headers(&self) -> Vec<HeaderName> {
        let name = |lookup: &SourceLookup| match lookup {
            SourceLookup::Header(name) => Some(name.clone()),
            SourceLookup::Cookie(_) => Some(COOKIE),
            SourceLookup::Bearer | SourceLookup::OpaqueBearer => Some(AUTHORIZATION),
            SourceLookup::TrustedHeader(_)
            | SourceLookup::Query(_)
            | SourceLookup::Claim(_)
            | SourceLookup::Ip => None,
        };
        self.lookups().filter_map(name).collect()
    }

    /// The headers that are read from trusted peers only.
    pub fn trusted_headers(&self) -> Vec<HeaderName> {
        let name = |lookup: &SourceLookup| match lookup {
            SourceLookup::TrustedHeader(name) => Some(name.clone()),
            _ => None,
        };
        let others = self.cost.iter().chain(&self.priority).cloned();
        let open = self.headers();
        self.lookups().filter_map(name).chain(others).filter(|name| !open.contains(name)).collect()
    }

    /// The query parameters that are read.
    pub fn query_parameters(&self) -> Vec<&str> {
        let named = self.lookups().filter_map(|lookup| match lookup {
            SourceLookup::Query(name) => Some(&**name),
            _ => None,
        });
        named.collect()
    }

    /// How client addresses are found.
    pub fn client_ip(&self) -> &ClientIpOptions {
        &self.client_ip
    }

    /// The file with the keys that verify tokens, if there is one.
    pub fn key_file(&self) -> Option<&Path> {
        self.jwt.as_ref().map(|(verifier, _)| verifier.key_file())
    }

    /// Replaces the keys with the content of their file. All tokens are verified again. On an error the old keys stay in force.
    pub fn replace_keys(&self, content: io::Result<Vec<u8>>) -> Result<(), IdentityError> {
        match &self.jwt {
            Some((verifier, _)) => verifier.replace_keys(content),
            None => Ok(()),
        }
    }

    /// Whether [`Self::caller`] uses the time.
    #[inline]
    pub(crate) fn uses_time(&self) -> bool {
        self.jwt.is_some()
    }

    /// The caller of a request for `uri` with these headers from `peer`, at `now`. An identity that is malformed or ambiguous is an
    /// error.
    pub fn caller<'a>(
        &'a self,
        uri: &'a Uri,
        headers: &'a HeaderMap,
        peer: Option<IpAddr>,
        now: UnixTime,
    ) -> Result<Caller<'a>, HttpError> {
        let peer = peer.unwrap_or(NO_ADDRESS);
        let trusted = self.uses_trust && self.client_ip.trusts(peer);
        let ip = self.client_ip.client(peer, headers);
        let mut reader = RequestReader { uri, headers, trusted, ip, claims: None };
        if let Some((verifier, lookup)) = &self.jwt
            && let Some(token) = reader.find(lookup)?
        {
            let token = token.text(None);
            if !jwt::is_canonical(token) {
                return Err(HttpError::bad_request("the token is not in base64url without padding"));
            }
            reader.claims = verifier.claims(token, now);
        }
        let mut ids = SmallVec::new();
        for (name, lookups) in &self.ids {
            if let Some(found) = reader.first(lookups)? {
                ids.push((&**name, found));
            }
        }
        let mut named = PerIdentity::from_fn(|_| None);
        for (kind, lookups) in self.named.iter() {
            named[kind] = reader.first(lookups)?;
        }
        Ok(Caller {
            named,
            tier: reader.first(&self.tier)?,
            ids,
            cost: reader.number(self.cost.as_ref())?.unwrap_or(1),
            priority: reader.number(self.priority.as_ref())?,
            claims: reader.claims,
            ip,
        })
    }
}

/// Reads one request.
struct RequestReader<'a> {
    uri: &'a Uri,
    headers: &'a HeaderMap,
    trusted: bool,
    ip: IpAddr,
    claims: Option<Arc<VerifiedClaims>>,
}

impl<'a> RequestReader<'a> {
    #[inline]
    fn first(&self, lookups: &'a SourceLookups) -> Result<Option<FoundIdentity<'a>>, HttpError> {
        for lookup in lookups {
            if let Some(found) = self.find(lookup)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn find(&self, lookup: &SourceLookup) -> Result<Option<FoundIdentity<'a>>, HttpError> {
        let headers = self.headers;
        Ok(match lookup {
            SourceLookup::Header(name) => source::header(headers, name)?.map(FoundIdentity::Borrowed),
            SourceLookup::TrustedHeader(name) if self.trusted => {
                source::header(headers, name)?.map(FoundIdentity::Borrowed)
            }
            SourceLookup::TrustedHeader(_) => None,
            SourceLookup::Query(name) => source::query(self.uri, name)?.map(FoundIdentity::from),
            SourceLookup::Cookie(name) => source::cookie(headers, name)?.map(FoundIdentity::from),
            SourceLookup::Bearer => source::bearer(headers)?.map(FoundIdentity::Borrowed),
            SourceLookup::OpaqueBearer => {
                let dots = |token: &&str| token.bytes().filter(|byte| *byte == b'.').count();
                source::bearer(headers)?.filter(|token| dots(token) < 2).map(FoundIdentity::Borrowed)
            }
            SourceLookup::Claim(index) => {
                let claims = self.claims.as_ref();
                claims.and_then(|claims| claims.get(*index)).map(|_| FoundIdentity::Claim(*index))
            }
            SourceLookup::Ip => Some(FoundIdentity::Owned(self.ip.to_string().into())),
        })
    }

    /// The number in a header that is read from trusted peers only.
    fn number<N: std::str::FromStr>(&self, name: Option<&HeaderName>) -> Result<Option<N>, HttpError> {
        let Some(name) = name.filter(|_| self.trusted) else { return Ok(None) };
        let Some(text) = source::header(self.headers, name)? else { return Ok(None) };
        let number = text.parse();
        number
            .map(Some)
            .map_err(|_| HttpError::bad_request(format!("the header `{name}` is not a number in range")))
    }
}

impl<'a> From<Cow<'a, str>> for FoundIdentity<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        match text {
            Cow::Borrowed(text) => Self::Borrowed(text),
            Cow::Owned(text) => Self::Owned(text.into()),
        }
    }
}

impl FoundIdentity<'_> {
    fn text<'f>(&'f self, claims: Option<&'f VerifiedClaims>) -> &'f str {
        match self {
            Self::Borrowed(text) => text,
            Self::Owned(text) => text,
            Self::Claim(index) => claims.and_then(|claims| claims.get(*index)).unwrap_or_default(),
        }
    }
}

impl Caller<'_> {
    /// The client's address.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Calls `ask` with the limiter's request of this caller for `endpoint` at `domain`, both in their canonical form.
    #[inline]
    pub fn with_request<R>(
        &self,
        method: &http::Method,
        domain: Option<&str>,
        endpoint: &str,
        ask: impl FnOnce(&Request<'_>) -> R,
    ) -> R {
        let claims = self.claims.as_deref();
        let ids: SmallVec<[(&str, &str); 4]> =
            self.ids.iter().map(|(name, found)| (*name, found.text(claims))).collect();
        let mut request = Request {
            ip: Some(self.ip),
            tier: self.tier.as_ref().map(|found| found.text(claims)),
            ids: &ids,
            domain,
            endpoint,
            method: Some(Method::from_name(method.as_str())),
            cost: self.cost,
            priority: self.priority,
            door: Door::Layer,
            ..Request::default()
        };
        for (kind, found) in self.named.iter() {
            *request.named_mut(kind) = found.as_ref().map(|found| found.text(claims));
        }
        ask(&request)
    }
}

/// Validates sources, and turns them into lookups.
struct SourceCompiler<'o> {
    options: &'o IdentityOptions,
    claims: Vec<String>,
    uses_trust: bool,
}

impl SourceCompiler<'_> {
    fn lookups(&mut self, field: &str, sources: &IdentitySources) -> Result<SourceLookups, IdentityError> {
        sources.0.iter().map(|source| self.lookup(field, source)).collect()
    }

    fn lookup(&mut self, field: &str, source: &IdentitySource) -> Result<SourceLookup, IdentityError> {
        Ok(match source {
            IdentitySource::Header(ConfiguredHeader(name)) => SourceLookup::Header(name.clone()),
            IdentitySource::TrustedHeader(name) => SourceLookup::TrustedHeader(self.trusted(field, name)?),
            IdentitySource::Query(name) => SourceLookup::Query(name.as_str().into()),
            IdentitySource::Cookie(name) => SourceLookup::Cookie(name.as_str().into()),
            IdentitySource::Bearer if self.options.jwt.is_some() => SourceLookup::OpaqueBearer,
            IdentitySource::Bearer => SourceLookup::Bearer,
            IdentitySource::Jwt(_) if self.options.jwt.is_none() => {
                return Err(IdentityError::new(field, IdentityProblem::NoJwtSection));
            }
            IdentitySource::Jwt(name) => {
                self.claims.push(name.clone());
                SourceLookup::Claim(self.claims.len() - 1)
            }
            IdentitySource::Ip => SourceLookup::Ip,
        })
    }

    /// The source of the token itself.
    fn token(&mut self, source: &IdentitySource) -> Result<SourceLookup, IdentityError> {
        match source {
            IdentitySource::Bearer => Ok(SourceLookup::Bearer),
            IdentitySource::Header(_)
            | IdentitySource::TrustedHeader(_)
            | IdentitySource::Query(_)
            | IdentitySource::Cookie(_) => self.lookup("jwt.token", source),
            IdentitySource::Jwt(_) | IdentitySource::Ip => {
                Err(IdentityError::new("jwt.token", IdentityProblem::NoTokenSource))
            }
        }
    }

    /// A client must not choose its own tier.
    fn tier(&mut self, sources: &IdentitySources) -> Result<SourceLookups, IdentityError> {
        let lookup = |source: &IdentitySource| match source {
            IdentitySource::Header(name) | IdentitySource::TrustedHeader(name) => {
                self.trusted("tier", name).map(SourceLookup::TrustedHeader)
            }
            IdentitySource::Jwt(_) => self.lookup("tier", source),
            _ => Err(IdentityError::new("tier", IdentityProblem::UntrustedTier)),
        };
        sources.0.iter().map(lookup).collect()
    }

    fn trusted_header(
        &mut self,
        field: &str,
        name: Option<&ConfiguredHeader>,
    ) -> Result<Option<HeaderName>, IdentityError> {
        name.map(|name| self.trusted(field, name)).transpose()
    }

    fn trusted(&mut self, field: &str, name: &ConfiguredHeader) -> Result<HeaderName, IdentityError> {
        if self.options.client_ip.trusted.is_empty() {
            return Err(IdentityError::new(field, IdentityProblem::NoTrustedPeers));
        }
        self.uses_trust = true;
        Ok(name.0.clone())
    }
}
