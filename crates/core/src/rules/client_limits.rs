//! The limits of a client, for operators: those of one request, or those on any endpoint.
//!
//! A check selects by client and path. An operator asks about a client and often knows no path, so the other conditions
//! of a rule are left out here: endpoint, method and domain. What remains is which limits count by the identities that
//! are given, and under which keys.

use super::ruleset::{LimitId, Rule, RuleSet};
use super::selection::{CellKind, Charge, Charges, Selection};
use crate::key::{Dimension, Identity, RequestHasher, StateKey};
use crate::request::Request;

/// More limits of one client than this are not listed: rules times routes may be many.
pub const MOST_CLIENT_LIMITS: usize = 1_000;

/// The endpoints that a question about a client is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointScope {
    /// Those of the request: the limits that a check of it would be charged against.
    Request,
    /// All: the limits that count by the identities of the request, whatever its endpoint, method and domain.
    Any,
}

/// A limit of a client, and the key under which it counts.
#[derive(Clone, Debug)]
pub struct ClientLimit<'r> {
    /// The charge of a request under it.
    pub charge: Charge<'r>,
    /// Its rule.
    pub rule: &'r Rule,
    /// The hash of the route that it counts; 0 if no template matches.
    pub route: u64,
    /// The template of that route, if the rule counts by route and there is one.
    pub template: Option<&'r str>,
    /// The identities by which it counts here: `ip` under a rule with `key: api_key` if there is no API key.
    pub counted_by: Vec<String>,
}

impl ClientLimit<'_> {
    /// Whether the state belongs to this client. That of a rule which counts by route alone is shared by all.
    pub fn is_own(&self) -> bool {
        self.rule.key.iter().any(Dimension::is_of_client)
    }

    /// Whether it has a state for each route.
    pub fn is_by_route(&self) -> bool {
        self.rule.key.contains(&Dimension::Route)
    }
}

impl RuleSet {
    /// The limits of the client of `request` in `scope`, at most [`MOST_CLIENT_LIMITS`].
    pub fn client_limits<'r>(
        &'r self,
        request: &Request<'_>,
        scope: EndpointScope,
        hashes: &RequestHasher<'_>,
    ) -> Vec<ClientLimit<'r>> {
        let mut limits = match scope {
            EndpointScope::Request => self.limits_of_request(request, hashes),
            EndpointScope::Any => self.limits_anywhere(request, hashes),
        };
        limits.truncate(MOST_CLIENT_LIMITS);
        limits
    }

    fn limits_of_request<'r>(
        &'r self,
        request: &Request<'_>,
        hashes: &RequestHasher<'_>,
    ) -> Vec<ClientLimit<'r>> {
        let mut selection = Selection::default();
        self.join_into(&self.match_client(request), &self.match_path(request.path()), &mut selection);
        let mut charges = Charges::new();
        self.charge(&selection, request, hashes, &mut charges);
        let limit = |charge: &Charge<'r>| self.client_limit(*charge, request, selection.route());
        charges.iter().map(limit).collect()
    }

    fn limits_anywhere<'r>(
        &'r self,
        request: &Request<'_>,
        hashes: &RequestHasher<'_>,
    ) -> Vec<ClientLimit<'r>> {
        let client = self.match_client(request);
        let mut found = Vec::new();
        for (index, rule) in self.rules().iter().enumerate() {
            let Some(size) = client.size(index) else { continue };
            if !counts_by(rule, request) || rule.needs_address && request.ip.is_none() {
                continue;
            }
            let routes = if rule.key.contains(&Dimension::Route) { self.routes_of(index) } else { vec![0] };
            for route in routes {
                let hashes = hashes.hash_key(&rule.key, rule.ipv6_prefix, request, route);
                for id in self.sizes[size as usize].clone().map(LimitId) {
                    let limit = self.limit(id);
                    let charge = Charge {
                        limit,
                        id,
                        key: StateKey::new(hashes.with_route, limit.state_id),
                        client: hashes.client,
                        enforced: rule.on_exceed.is_enforced(),
                        over: rule.on_exceed.over_limit_effect(),
                        cell: CellKind::Own,
                    };
                    found.push(self.client_limit(charge, request, route));
                }
                if found.len() >= MOST_CLIENT_LIMITS {
                    return found;
                }
            }
        }
        found
    }

    fn client_limit<'r>(&'r self, charge: Charge<'r>, request: &Request<'_>, route: u64) -> ClientLimit<'r> {
        let rule = self.rule_of(charge.id);
        let by_route = rule.key.contains(&Dimension::Route);
        let template = self.routes.iter().find(|known| by_route && known.hash == route);
        let counted_by = rule.identities(request, route);
        ClientLimit {
            charge,
            rule,
            route,
            template: template.map(|known| known.template.as_str()),
            counted_by: counted_by.iter().map(kind_name).collect(),
        }
    }

    /// The routes on which a rule can count: the templates that it matches, and paths without one.
    fn routes_of(&self, rule: usize) -> Vec<u64> {
        let own = self.rules()[rule].endpoints.clone();
        let matches = |template: &str, pattern: usize| {
            own.as_ref().is_none_or(|own| own.contains(&pattern)) || self.match_path(template).matches(rule)
        };
        let known = self.routes.iter().filter(|known| matches(&known.template, known.pattern));
        std::iter::once(0).chain(known.map(|known| known.hash)).collect()
    }
}

/// Whether the key of `rule` follows from the identities that are given. A single identity that is missing is replaced by
/// the next in the chain, as in a check. One of several is not: the others tell no key.
fn counts_by(rule: &Rule, request: &Request<'_>) -> bool {
    let dimensions =
        || rule.key.iter().filter(|dimension| !matches!(dimension, Dimension::Route | Dimension::All));
    match dimensions().count() {
        0 => false,
        1 => request.has_identity(),
        _ => dimensions().all(|dimension| is_given(dimension, request)),
    }
}

fn is_given(dimension: &Dimension, request: &Request<'_>) -> bool {
    match dimension {
        Dimension::Named(kind) => request.named(*kind).is_some(),
        Dimension::Ip => request.ip.is_some(),
        Dimension::Endpoint => !request.endpoint.is_empty(),
        Dimension::Method => request.method.is_some(),
        Dimension::Domain => request.domain.is_some(),
        Dimension::Route | Dimension::All => true,
        Dimension::Custom(name) => request.id(name).is_some(),
    }
}

fn kind_name(identity: &Identity<'_>) -> String {
    match identity {
        Identity::Named(kind, _) => kind.name().to_owned(),
        Identity::Ip(_) => "ip".to_owned(),
        Identity::Route(_) => "route".to_owned(),
        Identity::Custom(name, _) => (*name).to_owned(),
        Identity::Anonymous => "anonymous".to_owned(),
    }
}
