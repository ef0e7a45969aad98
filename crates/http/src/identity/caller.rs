//! Finds the identities of a request.

use super::client_ip::ClientIpOptions;
use super::jwt::{self, TokenVerifier, VerifiedClaims};
use super::options::{IdentityError, IdentityOptions, IdentitySources};
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
use tollgate_core::rules::{DoorCapability, OpenDoor};
use tollgate_limiter::{Method, Request};

/// Whoever has no address at all (a unix socket) shares a count with all who have none.
const NO_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// [`IdentityOptions`], ready for use.
#[derive(Debug)]
pub struct IdentityExtractor {
    api_key: SourceLookups,
    user: SourceLookups,
    tenant: SourceLookups,
    tier: SourceLookups,
    ids: Vec<(Box<str>, SourceLookups)>,
    /// The verifier, and where the token stands.
    jwt: Option<(TokenVerifier, SourceLookup)>,
    client_ip: ClientIpOptions,
    cost: Option<HeaderName>,
    priority: Option<HeaderName>,
    /// Whether anything but the address depends on the peer being trusted.
    asks_for_trust: bool,
}

type SourceLookups = SmallVec<[SourceLookup; 2]>;

/// A [`IdentitySource`], with claims by their number.
#[derive(Clone, Debug)]
enum SourceLookup {
    Header(HeaderName),
    TrustedHeader(HeaderName),
    Query(Box<str>),
    Cookie(Box<str>),
    Bearer,
    /// The bearer token unless it looks like a JWT: one that proves nothing must not become a key.
    OpaqueBearer,
    Claim(usize),
    Ip,
}

/// A value that was found.
#[derive(Debug)]
enum FoundIdentity<'a> {
    Here(&'a str),
    Made(Box<str>),
    Claim(usize),
}

/// Who a request is from.
#[derive(Debug)]
pub struct Caller<'a> {
    api_key: Option<FoundIdentity<'a>>,
    user: Option<FoundIdentity<'a>>,
    tenant: Option<FoundIdentity<'a>>,
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
    /// Makes the options ready. Files that they name are read, from `folder` on.
    pub fn open(options: &IdentityOptions, folder: &Path) -> Result<Self, IdentityError> {
        let mut compiler = SourceCompiler { options, claims: Vec::new(), asks_for_trust: false };
        let token = options.jwt.as_ref().map(|jwt| compiler.token(&jwt.token)).transpose()?;
        let is_bearer = matches!(token, Some(SourceLookup::Bearer));
        let api_key = match &options.api_key {
            Some(sources) => compiler.places("api_key", sources)?,
            None if is_bearer => SmallVec::from_iter([SourceLookup::Header(X_API_KEY.clone())]),
            None => SmallVec::from_iter([SourceLookup::Header(X_API_KEY.clone()), SourceLookup::Bearer]),
        };
        let user = compiler.places("user", &options.user)?;
        let tenant = compiler.places("tenant", &options.tenant)?;
        let tier = compiler.tier(&options.tier)?;
        let mut ids = Vec::new();
        for (name, sources) in &options.ids {
            let places = compiler.places(&format!("ids.{name}"), sources)?;
            ids.push((Box::from(name.as_str()), places));
        }
        let cost = compiler.trusted_header("cost", options.cost.as_ref().map(|trusted| &trusted.header))?;
        let priority =
            compiler.trusted_header("priority", options.priority.as_ref().map(|trusted| &trusted.header))?;
        let SourceCompiler { claims, asks_for_trust, .. } = compiler;
        let jwt = match (&options.jwt, token) {
            (Some(jwt), Some(place)) => Some((TokenVerifier::open(jwt, folder, claims)?, place)),
            _ => None,
        };
        Ok(Self {
            api_key,
            user,
            tenant,
            tier,
            ids,
            jwt,
            client_ip: options.client_ip.clone(),
            cost,
            priority,
            asks_for_trust,
        })
    }

    /// What a door can do for rules that takes identities from here, waits for requests and sees them end.
    pub fn open_door(&self, name: &'static str) -> OpenDoor {
        let mut capabilities =
            BTreeSet::from([DoorCapability::Wait, DoorCapability::Completion, DoorCapability::Domain]);
        capabilities.extend((!self.tier.is_empty()).then_some(DoorCapability::Tier));
        capabilities.extend(self.priority.is_some().then_some(DoorCapability::Priority));
        let named = [("api_key", &self.api_key), ("user", &self.user), ("tenant", &self.tenant)];
        let ids = self.ids.iter().map(|(name, places)| (name.as_ref(), places));
        let found = named.into_iter().chain(ids).filter(|(_, places)| !places.is_empty());
        let identities = found.map(|(name, _)| name.to_owned()).collect();
        OpenDoor { name, capabilities, identities: Some(identities) }
    }

    /// All places, the token's included.
    fn places(&self) -> impl Iterator<Item = &SourceLookup> {
        let named = [&self.api_key, &self.user, &self.tenant, &self.tier];
        let ids = self.ids.iter().map(|(_, places)| places);
        let token = self.jwt.iter().map(|(_, place)| place);
        named.into_iter().chain(ids).flatten().chain(token)
    }

    /// The headers that are read, whichever peer sends them.
    pub fn headers(&self) -> Vec<HeaderName> {
        let name = |place: &SourceLookup| match place {
            SourceLookup::Header(name) => Some(name.clone()),
            SourceLookup::Cookie(_) => Some(COOKIE),
            SourceLookup::Bearer | SourceLookup::OpaqueBearer => Some(AUTHORIZATION),
            SourceLookup::TrustedHeader(_)
            | SourceLookup::Query(_)
            | SourceLookup::Claim(_)
            | SourceLookup::Ip => None,
        };
        self.places().filter_map(name).collect()
    }

    /// The headers that count from trusted peers only.
    pub fn trusted_headers(&self) -> Vec<HeaderName> {
        let name = |place: &SourceLookup| match place {
            SourceLookup::TrustedHeader(name) => Some(name.clone()),
            _ => None,
        };
        let others = self.cost.iter().chain(&self.priority).cloned();
        let open = self.headers();
        self.places().filter_map(name).chain(others).filter(|name| !open.contains(name)).collect()
    }

    /// The parameters of the query that are read.
    pub fn query_parameters(&self) -> Vec<&str> {
        let named = self.places().filter_map(|place| match place {
            SourceLookup::Query(name) => Some(&**name),
            _ => None,
        });
        named.collect()
    }

    /// How addresses are found.
    pub fn client_ip(&self) -> &ClientIpOptions {
        &self.client_ip
    }

    /// The file with the keys that tokens are verified by, if there is one.
    pub fn key_file(&self) -> Option<&Path> {
        self.jwt.as_ref().map(|(verifier, _)| verifier.key_file())
    }

    /// Replaces the keys with what stands in their file now, and forgets which tokens were good by the old ones. On an
    /// error they stay.
    pub fn replace_keys(&self, content: io::Result<Vec<u8>>) -> Result<(), IdentityError> {
        match &self.jwt {
            Some((verifier, _)) => verifier.replace_keys(content),
            None => Ok(()),
        }
    }

    /// Whether [`Self::caller`] needs the time.
    #[inline]
    pub(crate) fn asks_for_time(&self) -> bool {
        self.jwt.is_some()
    }

    /// Who asked for `uri` with these headers from `peer`, at `now_us`. A fault is what nobody can make sense of.
    pub fn caller<'a>(
        &'a self,
        uri: &'a Uri,
        headers: &'a HeaderMap,
        peer: Option<IpAddr>,
        now_us: u64,
    ) -> Result<Caller<'a>, HttpError> {
        let peer = peer.unwrap_or(NO_ADDRESS);
        let trusted = self.asks_for_trust && self.client_ip.trusts(peer);
        let ip = self.client_ip.client(peer, headers);
        let mut look = RequestReader { uri, headers, trusted, ip, claims: None };
        if let Some((verifier, place)) = &self.jwt
            && let Some(token) = look.at(place)?
        {
            let token = token.text(None);
            if !jwt::has_one_spelling(token) {
                return Err(HttpError::bad_request("the token is not in base64url without padding"));
            }
            look.claims = verifier.claims(token, now_us);
        }
        let mut ids = SmallVec::new();
        for (name, places) in &self.ids {
            if let Some(found) = look.first(places)? {
                ids.push((&**name, found));
            }
        }
        Ok(Caller {
            api_key: look.first(&self.api_key)?,
            user: look.first(&self.user)?,
            tenant: look.first(&self.tenant)?,
            tier: look.first(&self.tier)?,
            ids,
            cost: look.number(self.cost.as_ref())?.unwrap_or(1),
            priority: look.number(self.priority.as_ref())?,
            claims: look.claims,
            ip,
        })
    }
}

/// A look at one request.
struct RequestReader<'a> {
    uri: &'a Uri,
    headers: &'a HeaderMap,
    trusted: bool,
    ip: IpAddr,
    claims: Option<Arc<VerifiedClaims>>,
}

impl<'a> RequestReader<'a> {
    #[inline]
    fn first(&self, places: &'a SourceLookups) -> Result<Option<FoundIdentity<'a>>, HttpError> {
        for place in places {
            if let Some(found) = self.at(place)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn at(&self, place: &SourceLookup) -> Result<Option<FoundIdentity<'a>>, HttpError> {
        let headers = self.headers;
        Ok(match place {
            SourceLookup::Header(name) => source::header(headers, name)?.map(FoundIdentity::Here),
            SourceLookup::TrustedHeader(name) if self.trusted => {
                source::header(headers, name)?.map(FoundIdentity::Here)
            }
            SourceLookup::TrustedHeader(_) => None,
            SourceLookup::Query(name) => source::query(self.uri, name)?.map(FoundIdentity::from),
            SourceLookup::Cookie(name) => source::cookie(headers, name)?.map(FoundIdentity::from),
            SourceLookup::Bearer => source::bearer(headers)?.map(FoundIdentity::Here),
            SourceLookup::OpaqueBearer => {
                let dots = |token: &&str| token.bytes().filter(|byte| *byte == b'.').count();
                source::bearer(headers)?.filter(|token| dots(token) < 2).map(FoundIdentity::Here)
            }
            SourceLookup::Claim(index) => {
                let claims = self.claims.as_ref();
                claims.and_then(|claims| claims.get(*index)).map(|_| FoundIdentity::Claim(*index))
            }
            SourceLookup::Ip => Some(FoundIdentity::Made(self.ip.to_string().into())),
        })
    }

    /// The number in a header that only trusted peers can set.
    fn number<N: std::str::FromStr>(&self, name: Option<&HeaderName>) -> Result<Option<N>, HttpError> {
        let Some(name) = name.filter(|_| self.trusted) else { return Ok(None) };
        let Some(text) = source::header(self.headers, name)? else { return Ok(None) };
        let number = text.parse();
        number
            .map(Some)
            .map_err(|_| HttpError::bad_request(format!("the header `{name}` is not such a number")))
    }
}

impl<'a> From<Cow<'a, str>> for FoundIdentity<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        match text {
            Cow::Borrowed(text) => Self::Here(text),
            Cow::Owned(text) => Self::Made(text.into()),
        }
    }
}

impl FoundIdentity<'_> {
    fn text<'f>(&'f self, claims: Option<&'f VerifiedClaims>) -> &'f str {
        match self {
            Self::Here(text) => text,
            Self::Made(text) => text,
            Self::Claim(index) => claims.and_then(|claims| claims.get(*index)).unwrap_or_default(),
        }
    }
}

impl Caller<'_> {
    /// The client's address.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Lends the caller's names to `ask` as a request for `endpoint` at `domain`, both in their canonical form.
    #[inline]
    pub fn ask<R>(
        &self,
        method: &http::Method,
        domain: Option<&str>,
        endpoint: &str,
        ask: impl FnOnce(&Request<'_>) -> R,
    ) -> R {
        let claims = self.claims.as_deref();
        let ids: SmallVec<[(&str, &str); 4]> =
            self.ids.iter().map(|(name, found)| (*name, found.text(claims))).collect();
        ask(&Request {
            api_key: self.api_key.as_ref().map(|found| found.text(claims)),
            user: self.user.as_ref().map(|found| found.text(claims)),
            tenant: self.tenant.as_ref().map(|found| found.text(claims)),
            ip: Some(self.ip),
            tier: self.tier.as_ref().map(|found| found.text(claims)),
            ids: &ids,
            domain,
            endpoint,
            method: Some(Method::from_name(method.as_str())),
            cost: self.cost,
            priority: self.priority,
        })
    }
}

/// Turns sources into places.
struct SourceCompiler<'o> {
    options: &'o IdentityOptions,
    claims: Vec<String>,
    asks_for_trust: bool,
}

impl SourceCompiler<'_> {
    fn places(&mut self, field: &str, sources: &IdentitySources) -> Result<SourceLookups, IdentityError> {
        sources.0.iter().map(|source| self.place(field, source)).collect()
    }

    fn place(&mut self, field: &str, source: &IdentitySource) -> Result<SourceLookup, IdentityError> {
        Ok(match source {
            IdentitySource::Header(ConfiguredHeader(name)) => SourceLookup::Header(name.clone()),
            IdentitySource::TrustedHeader(name) => SourceLookup::TrustedHeader(self.trusted(field, name)?),
            IdentitySource::Query(name) => SourceLookup::Query(name.as_str().into()),
            IdentitySource::Cookie(name) => SourceLookup::Cookie(name.as_str().into()),
            IdentitySource::Bearer if self.options.jwt.is_some() => SourceLookup::OpaqueBearer,
            IdentitySource::Bearer => SourceLookup::Bearer,
            IdentitySource::Jwt(_) if self.options.jwt.is_none() => {
                let message = "a claim needs a `jwt:` section that says how tokens are verified";
                return Err(IdentityError::new(field, message));
            }
            IdentitySource::Jwt(name) => {
                self.claims.push(name.clone());
                SourceLookup::Claim(self.claims.len() - 1)
            }
            IdentitySource::Ip => SourceLookup::Ip,
        })
    }

    /// Where the token itself stands.
    fn token(&mut self, source: &IdentitySource) -> Result<SourceLookup, IdentityError> {
        match source {
            IdentitySource::Bearer => Ok(SourceLookup::Bearer),
            IdentitySource::Header(_)
            | IdentitySource::TrustedHeader(_)
            | IdentitySource::Query(_)
            | IdentitySource::Cookie(_) => self.place("jwt.token", source),
            IdentitySource::Jwt(_) | IdentitySource::Ip => {
                let message = "a token stands in a header, a cookie, the query, or is the bearer token";
                Err(IdentityError::new("jwt.token", message))
            }
        }
    }

    /// Nobody chooses his own tier.
    fn tier(&mut self, sources: &IdentitySources) -> Result<SourceLookups, IdentityError> {
        let place = |source: &IdentitySource| match source {
            IdentitySource::Header(name) | IdentitySource::TrustedHeader(name) => {
                self.trusted("tier", name).map(SourceLookup::TrustedHeader)
            }
            IdentitySource::Jwt(_) => self.place("tier", source),
            _ => Err(IdentityError::new(
                "tier",
                "a tier comes from a claim, or from a header of a trusted peer",
            )),
        };
        sources.0.iter().map(place).collect()
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
            let message = "this header counts from trusted peers only; name them in `client_ip.trusted`";
            return Err(IdentityError::new(field, message));
        }
        self.asks_for_trust = true;
        Ok(name.0.clone())
    }
}
