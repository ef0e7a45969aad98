//! One limit without a shared store: three gateways with embedded stores behind a balancer that sends each API key to one
//! of them. What a node that leaves or joins changes is exactly the keys that move.

use crate::gateway::upstream;
use crate::http_client::HttpClient;
use crate::process::{TollgateProcess, example, tollgate};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use tempfile::TempDir;
use tollgate_testbed::{EnvoyServer, NginxServer, wait_until};

const LIMIT: usize = 5;
/// As many as `envoy_with_a_ring_hash` needs.
const KEYS: usize = 180;
const RULES: &str = "rules: [{ id: api, limit: 5/day }]";

struct Fleet {
    folder: TempDir,
    upstream: String,
    nodes: BTreeMap<SocketAddr, TollgateProcess>,
}

impl Fleet {
    fn start(count: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
        let mut fleet = Self { folder, upstream: format!("http://{}", upstream()), nodes: BTreeMap::new() };
        for _ in 0..count {
            fleet.add("127.0.0.1:0");
        }
        fleet
    }

    /// Starts a node at `address`.
    fn add(&mut self, address: &str) -> SocketAddr {
        let mut command = tollgate(["gateway", "--gateway-listen", address, "--upstream", &self.upstream]);
        let node = TollgateProcess::from(command.arg("--rules").arg(self.folder.path().join("rules.yaml")));
        let address = node.address;
        self.nodes.insert(address, node);
        address
    }

    fn kill(&mut self, address: SocketAddr) {
        let node = self.nodes.remove(&address).unwrap();
        node.signal("KILL");
        node.wait();
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.keys().copied().collect()
    }
}

/// A request with this key through the balancer: its status, and the node that answered it.
fn send(balancer: SocketAddr, key: &str) -> (u16, String) {
    let mut client = HttpClient::connect(balancer);
    client.send(&format!("GET /x HTTP/1.1\r\nHost: test\r\nX-Api-Key: {key}\r\n\r\n"));
    let reply = client.reply();
    (reply.status, reply.header("x-node").to_owned())
}

/// Sends more requests than the limit for each key. Returns for each the number admitted and the node, which is always the
/// same one.
fn spend(balancer: SocketAddr) -> Vec<(usize, String)> {
    let spend = |number: usize| {
        let key = format!("key-{number}");
        let replies: Vec<(u16, String)> = (0..LIMIT + 2).map(|_| send(balancer, &key)).collect();
        for (status, node) in &replies {
            assert!(matches!(status, 200 | 429), "{key}: {status}");
            assert_eq!(*node, replies[0].1, "{key} has one node");
        }
        (replies.iter().filter(|(status, _)| *status == 200).count(), replies[0].1.clone())
    };
    (0..KEYS).map(spend).collect()
}

/// How many of these requests are admitted. Each is one connection from an address of its own, unless they have one in common.
fn admitted<'h>(
    balancer: SocketAddr,
    source: impl Fn(u8) -> [u8; 4],
    headers: impl IntoIterator<Item = &'h str>,
) -> usize {
    let requests = (1..).zip(headers).map(|(number, header)| {
        let mut client = HttpClient::connect_from(source(number), balancer);
        client.send(&format!("GET /x HTTP/1.1\r\nHost: test\r\n{header}\r\n\r\n"));
        client.reply().status
    });
    requests.filter(|status| *status == 200).count()
}

/// A client has one limit however it spells its key. It is counted by its bearer token if it has no API key, and by its address if
/// it has neither.
fn holds_one_limit_for_each_identity(balancer: SocketAddr) {
    let keys =
        ["X-Api-Key: one", "x-api-key:one", "X-Api-Key: one\t", "X-Api-Key:\tone", "X-Api-Key: \t one \t "];
    let keys = keys.into_iter().cycle().take(5 * LIMIT);
    assert_eq!(admitted(balancer, |number| [127, 0, 3, number], keys), LIMIT, "one key");
    let tokens = [
        "Authorization: Bearer two",
        "authorization: bearer two",
        "Authorization: BEARER   two",
        "Authorization: Bearer\ttwo",
        "Authorization: Bearer \t two\t",
        "X-Api-Key: \t\r\nAuthorization: Bearer two",
    ];
    let tokens = tokens.into_iter().cycle().take(6 * LIMIT);
    assert_eq!(admitted(balancer, |number| [127, 0, 1, number], tokens), LIMIT, "one token");
    let credentials: Vec<String> =
        (0..5 * LIMIT).map(|user| format!("Authorization: Basic {user}")).collect();
    let credentials = credentials.iter().map(String::as_str);
    assert_eq!(admitted(balancer, |_| [127, 0, 2, 1], credentials), LIMIT, "one address");
}

/// The checks that hold behind every balancer: `start` starts one in front of these nodes. Of the keys that do not belong to the node
/// that leaves, at most the share `most_others` moves.
fn holds_one_limit<B>(
    start: impl Fn(&[SocketAddr]) -> B,
    address: impl Fn(&B) -> SocketAddr,
    most_others: f64,
) {
    let mut fleet = Fleet::start(3);
    let nodes = fleet.addresses();
    let running = start(&nodes);
    let balancer = address(&running);
    let first = spend(balancer);
    assert!(first.iter().all(|(admitted, _)| *admitted == LIMIT), "{first:?}");
    holds_one_limit_for_each_identity(balancer);
    for node in &nodes {
        let share = first.iter().filter(|(_, at)| *at == node.to_string()).count();
        assert!(share > 0, "{node} has no keys: {first:?}");
    }
    // A node leaves: keys that move have their limit once more, those that stay have none left.
    let left = nodes[1];
    let (moved, _) =
        (0..KEYS).map(|key| (key, &first[key].1)).find(|(_, at)| **at == left.to_string()).unwrap();
    fleet.kill(left);
    let probe = |balancer| send(balancer, &format!("key-{moved}"));
    let mut probed = 0;
    wait_until("the key has another node", || {
        let (status, node) = probe(balancer);
        probed += usize::from(status == 200);
        matches!(status, 200 | 429) && node != left.to_string()
    });
    let second = spend(balancer);
    let (mut others, mut others_moved) = (0, 0);
    for (key, ((_, before), (admitted, now))) in first.iter().zip(&second).enumerate() {
        let spent = if key == moved { probed } else { 0 };
        let expected = if before == now { 0 } else { LIMIT - spent };
        assert_eq!(*admitted, expected, "key {key}: {before} to {now}");
        assert_ne!(*now, left.to_string());
        others += usize::from(*before != left.to_string());
        others_moved += usize::from(*before != left.to_string() && before != now);
    }
    let share = others_moved as f64 / others as f64;
    assert!(share <= most_others, "{others_moved} of {others} keys of other nodes moved");
    // It comes back without its states: the same keys return, and have their limit once more.
    fleet.add(&left.to_string());
    let mut probed = 0;
    wait_until("the key returns", || {
        let (status, node) = probe(balancer);
        probed += usize::from(status == 200 && node == left.to_string());
        node == left.to_string()
    });
    let third = spend(balancer);
    for (key, ((_, before), (admitted, now))) in first.iter().zip(&third).enumerate() {
        let has_returned = *before == left.to_string();
        let spent = if key == moved { probed } else { 0 };
        let expected = if has_returned { LIMIT - spent } else { 0 };
        assert_eq!((before, *admitted), (now, expected), "key {key}");
    }
}

/// The shipped configuration with these nodes, without what needs a network.
fn nginx_settings(nodes: &[SocketAddr]) -> String {
    let text = std::fs::read_to_string(example("../sticky-routing/nginx.conf")).unwrap();
    let (_, http) = text.split_once("http {").unwrap();
    let mut http = http.trim_end().strip_suffix('}').unwrap().to_owned();
    let servers: String =
        nodes.iter().map(|node| format!("server {node} max_fails=1 fail_timeout=1s;\n")).collect();
    let (before, rest) = http.split_once("server 10.0.0.11").unwrap();
    let (_, after) = rest.split_once("keepalive 64;").unwrap();
    http = format!("{before}{servers}keepalive 64;{after}");
    http = http.replace(
        "listen 80;",
        "listen 127.0.0.1:PORT; add_header X-Node $tollgate_node always; add_header X-Worker $pid always;",
    );
    // After a node that did not answer, the address of the next one follows.
    http + "map $upstream_addr $tollgate_node { '~(?<last>[^, ]+)$' $last; }\n"
}

#[test]
fn nginx_with_a_consistent_hash() {
    holds_one_limit(|nodes| NginxServer::start(&nginx_settings(nodes)), NginxServer::address, 0.0);
}

/// nginx takes the address of a client from a header here.
#[test]
fn nginx_hashes_networks_of_ipv6() {
    let fleet = Fleet::start(3);
    let trusted = "set_real_ip_from 127.0.0.1; real_ip_header X-Test-Address;";
    let settings = nginx_settings(&fleet.addresses()).replace("listen 127", &format!("{trusted} listen 127"));
    let nginx = NginxServer::start(&settings);
    let nodes_of = |network: &str| {
        let nodes = (0..20).map(|number| {
            let mut client = HttpClient::connect(nginx.address());
            let address = format!("{network}:{number:x}:0:{number:x}:1");
            client.send(&format!("GET /x HTTP/1.1\r\nHost: test\r\nX-Test-Address: {address}\r\n\r\n"));
            client.reply().header("x-node").to_owned()
        });
        nodes.collect::<BTreeSet<String>>()
    };
    let networks: Vec<_> = (0..20).map(|number| nodes_of(&format!("2001:db8:0:{number:x}"))).collect();
    assert!(networks.iter().all(|nodes| nodes.len() == 1), "{networks:?}");
    assert_eq!(networks.iter().flatten().collect::<BTreeSet<_>>().len(), 3, "{networks:?}");
}

/// A new node takes keys from all others, and no key moves between those.
#[test]
fn a_new_node_takes_its_share_of_the_keys() {
    let mut fleet = Fleet::start(3);
    let mut nodes = fleet.addresses();
    let nginx = NginxServer::start(&nginx_settings(&nodes));
    let first = spend(nginx.address());
    nodes.push(fleet.add("127.0.0.1:0"));
    let added = nodes[3].to_string();
    let mut client = HttpClient::connect(nginx.address());
    let old_worker = format!("/proc/{}", client.get("/x").header("x-worker"));
    drop(client);
    nginx.reload(&nginx_settings(&nodes));
    // It accepts connections until it is told to stop, after the new one has started.
    wait_until("the old worker ends", || !std::path::Path::new(&old_worker).exists());
    let mut number = KEYS;
    wait_until("the new node gets requests", || {
        number += 1;
        send(nginx.address(), &format!("key-{number}")).1 == added
    });
    let second = spend(nginx.address());
    let mut moved = 0;
    for (key, ((_, before), (admitted, now))) in first.iter().zip(&second).enumerate() {
        moved += usize::from(before != now);
        let expected = if before == now { 0 } else { LIMIT };
        assert_eq!(*admitted, expected, "key {key}: {before} to {now}");
        assert!(before == now || *now == added, "key {key}: {before} to {now}");
    }
    assert!((1..KEYS / 2).contains(&moved), "{moved} of {KEYS} keys moved");
}

/// The shipped configuration with these nodes.
fn envoy_settings(nodes: &[SocketAddr]) -> String {
    let mut text = std::fs::read_to_string(example("../sticky-routing/envoy.yaml")).unwrap();
    for (number, node) in (11..).zip(nodes) {
        let shipped = format!("address: 10.0.0.{number}, port_value: 8000");
        assert!(text.contains(&shipped), "{shipped}");
        text = text.replace(&shipped, &format!("address: {}, port_value: {}", node.ip(), node.port()));
    }
    let text = text.replace("address: 0.0.0.0, port_value: 80 ", "address: 127.0.0.1, port_value: PORT ");
    let node = "%UPSTREAM_REMOTE_ADDRESS%";
    text.replace(
        "                  virtual_hosts:\n",
        &format!(
            "                  response_headers_to_add: [{{ header: {{ key: x-node, value: \"{node}\" }} }}]\n\
             \x20                 virtual_hosts:\n"
        ),
    )
}

/// Some keys of other nodes move as well, because Envoy's ring has about 1,024 points for any number of nodes: 342 for each of three,
/// 512 for each of two. So each node that stays gets 170 new points. A key of a node that stays moves if, of the 3 · 342 + 2 · 170 old
/// and new points, the next one is a new one of the other node: 170 of 1,366, one of eight. A plain modulo moves every second one. Of
/// about 120 such keys that is 15 ± 5 and 60 ± 5 (a standard deviation), and the bound is 36: four deviations from either.
#[test]
fn envoy_with_a_ring_hash() {
    holds_one_limit(|nodes| EnvoyServer::start(&envoy_settings(nodes)), EnvoyServer::address, 0.3);
}
