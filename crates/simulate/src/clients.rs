//! The clients, and the charges of each under the rules in force.

use super::bound::LimitBound;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::LazyLock;
use tollgate_core::key::{KeySeed, StateKey};
use tollgate_core::limit::{Limit, Meter};
use tollgate_core::request::Request;
use tollgate_core::rules::written::OnStoreFailure;
use tollgate_core::rules::{Charges, RuleSet, Selection};
use tollgate_core::state_address::{FleetSecret, StateAddress, StateAddresses};
use tollgate_limiter::OwnedCharge;

/// Fixed, so that runs repeat.
static SEED: LazyLock<KeySeed> = LazyLock::new(|| KeySeed::new([0x7469_6d65, 0x666c_6965]));
const SECRET: FleetSecret = FleetSecret(*b"a fleet on paper");

/// A client, by its identities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Its API key.
    pub api_key: Option<String>,
    /// Its user.
    pub user: Option<String>,
    /// Its address.
    pub ip: Option<IpAddr>,
    /// The path that it requests.
    pub endpoint: String,
}

impl Client {
    /// The client with this number, that requests `endpoint`: an API key, a user and an address of its own.
    pub fn numbered(number: u32, endpoint: &str) -> Self {
        Self {
            api_key: Some(format!("client-{number}")),
            user: Some(format!("user-{number}")),
            ip: Some(IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | number & 0x00ff_ffff))),
            endpoint: endpoint.to_owned(),
        }
    }
}

/// One limit that a client is charged against.
#[derive(Clone, Debug)]
pub(super) struct ClientCharge {
    rules: Arc<RuleSet>,
    pub(super) charge: OwnedCharge,
    pub(super) address: StateAddress,
    pub(super) on_failure: OnStoreFailure,
    /// Its state among all, see [`ClientCharges::states`].
    pub(super) state: u32,
}

impl ClientCharge {
    pub(super) fn limit(&self) -> &Limit {
        self.rules.limit(self.charge.id)
    }
}

/// All clients, under the rules of each node.
pub(super) struct ClientCharges<'s> {
    clients: &'s [Client],
    /// Where no other rules are in force.
    common: NodeRules,
    /// At these nodes.
    own: BTreeMap<u16, NodeRules>,
    /// Counts up with each change.
    version: u32,
    addresses: StateAddresses,
    states: StateNumbers,
}

/// Rules, and what each client is charged for under them.
struct NodeRules {
    rules: Arc<RuleSet>,
    version: u32,
    known: Vec<Option<Rc<[ClientCharge]>>>,
}

/// The states, numbered as they are met.
#[derive(Default)]
struct StateNumbers {
    numbers: HashMap<StateKey, u32, rapidhash::fast::RandomState>,
    meters: Vec<Meter>,
    bounds: Vec<LimitBound>,
    addresses: Vec<StateAddress>,
}

impl<'s> ClientCharges<'s> {
    pub(super) fn new(clients: &'s [Client], rules: Arc<RuleSet>) -> Self {
        Self {
            clients,
            common: NodeRules { rules, version: 1, known: vec![None; clients.len()] },
            own: BTreeMap::new(),
            version: 1,
            addresses: StateAddresses::new("", SECRET),
            states: StateNumbers::default(),
        }
    }

    /// Puts other rules in force at all nodes.
    pub(super) fn change(&mut self, rules: Arc<RuleSet>) {
        self.common = self.in_force(rules);
        self.own.clear();
    }

    /// Puts other rules in force at one node.
    pub(super) fn change_at(&mut self, node: u16, rules: Arc<RuleSet>) {
        let in_force = self.in_force(rules);
        self.own.insert(node, in_force);
    }

    fn in_force(&mut self, rules: Arc<RuleSet>) -> NodeRules {
        self.version += 1;
        NodeRules { rules, version: self.version, known: vec![None; self.clients.len()] }
    }

    /// The rules in force at `node`, and the number of their version.
    pub(super) fn rules_at(&self, node: u16) -> (&RuleSet, u32) {
        let in_force = self.own.get(&node).unwrap_or(&self.common);
        (&in_force.rules, in_force.version)
    }

    /// What `client` is charged for at `node`.
    pub(super) fn charges_of(&mut self, node: u16, client: u32) -> Rc<[ClientCharge]> {
        let in_force = self.own.get_mut(&node).unwrap_or(&mut self.common);
        let index = client as usize;
        if let Some(known) = &in_force.known[index] {
            return Rc::clone(known);
        }
        let client_charges =
            work_out(&in_force.rules, &self.clients[index], &self.addresses, &mut self.states);
        Rc::clone(in_force.known[index].insert(client_charges))
    }

    /// The addresses of all states, and their numbers.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (&StateAddress, u32)> {
        self.states.addresses.iter().zip(0..)
    }

    /// The numbers of the limit of each state: as they were last, and the larger ones of all versions.
    pub(super) fn into_limits(self) -> (Vec<Meter>, Vec<LimitBound>) {
        (self.states.meters, self.states.bounds)
    }
}

fn work_out(
    rules: &Arc<RuleSet>,
    client: &Client,
    addresses: &StateAddresses,
    states: &mut StateNumbers,
) -> Rc<[ClientCharge]> {
    let request = Request {
        api_key: client.api_key.as_deref(),
        user: client.user.as_deref(),
        ip: client.ip,
        endpoint: &client.endpoint,
        ..Request::default()
    };
    let mut selection = Selection::default();
    rules.join_into(&rules.match_client(&request), &rules.match_path(request.path()), &mut selection);
    let mut charges = Charges::new();
    rules.charge(&selection, &request, &SEED.hasher(&request), &mut charges);
    let client_charges = charges.iter().map(|charge| {
        let rule = rules.rule_of(charge.id);
        let limit: &Limit = charge.limit;
        let address = addresses.locate(rule, limit, &request, selection.route());
        ClientCharge {
            rules: Arc::clone(rules),
            charge: OwnedCharge::new(rules, charge),
            on_failure: rule.on_store_failure,
            state: states.number(charge.key, limit.meter(), &address),
            address,
        }
    });
    client_charges.collect()
}

impl StateNumbers {
    fn number(&mut self, key: StateKey, meter: &Meter, address: &StateAddress) -> u32 {
        let number = *self.numbers.entry(key).or_insert(self.meters.len() as u32);
        let index = number as usize;
        match (self.meters.get_mut(index), self.bounds.get_mut(index)) {
            (Some(known), Some(bound)) => {
                *known = *meter;
                bound.widen(meter.into());
            }
            _ => {
                self.meters.push(*meter);
                self.bounds.push(meter.into());
                self.addresses.push(address.clone());
            }
        }
        number
    }
}
