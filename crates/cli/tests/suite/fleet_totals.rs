//! The counters of a fleet: their sum over the nodes is what its clients saw.

use crate::gateway::upstream;
use crate::http_client::HttpClient;
use crate::process::{TollgateProcess, tollgate};
use std::collections::BTreeMap;
use tollgate_testbed::RedisServer;
use tollgate_testbed::telemetry::totals::{self, TotalValue};

const NODES: usize = 3;
/// Of each client.
const REQUESTS: usize = 400;
const RULES: &str = "
rules:
  - { id: leased, endpoint: /leased, limit: 400/h }
  - { id: strict, endpoint: /strict, consistency: strict, limit: 100/h }
  - { id: windows, endpoint: /windows, algorithm: sliding_window_counter, limit: 100/h }
";

/// Decisions by rule, door and outcome.
type Ledger = BTreeMap<(String, &'static str, &'static str), u64>;

/// One client of one door. Paths take turns, so that also refusals of one rule follow admissions by another.
fn requests(mut client: HttpClient, door: &'static str) -> Ledger {
    let mut ledger = Ledger::new();
    for number in 0..REQUESTS {
        let rule = ["leased", "strict", "windows", "leased", "leased"][number % 5];
        let path = format!("/{rule}");
        let reply = if door == "check" { client.check("alice", &path) } else { client.get(&path) };
        let outcome = match reply.status {
            200 => "allowed",
            429 => "limited",
            other => panic!("status {other}"),
        };
        *ledger.entry((rule.to_owned(), door, outcome)).or_default() += 1;
    }
    ledger
}

fn add(ledger: &mut Ledger, other: Ledger) {
    for (labels, count) in other {
        *ledger.entry(labels).or_default() += count;
    }
}

/// The decisions that a node has counted.
fn counted(node: &TollgateProcess) -> Ledger {
    let mut ledger = Ledger::new();
    for ((name, labels), value) in totals::of_prometheus(&node.admin().get("/metrics").body) {
        let TotalValue::Count(count) = value else { continue };
        if name == "tollgate_decisions_total" && count > 0 {
            let one_of = |label: &str, known: &[&'static str]| {
                *known.iter().find(|known| **known == labels[label]).unwrap_or_else(|| panic!("{labels:?}"))
            };
            let door = one_of("door", &["check", "gateway"]);
            let outcome = one_of("outcome", &["allowed", "limited"]);
            *ledger.entry((labels["rule"].clone(), door, outcome)).or_default() += count;
        }
    }
    ledger
}

#[test]
fn the_sum_over_all_nodes_is_what_clients_saw() {
    let redis = RedisServer::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    // No decision is made without the store, however busy the machine is.
    let config = format!("rules: rules.yaml\nstore: {}\nredis: {{ timeout: 10s }}\n", redis.url());
    std::fs::write(folder.path().join("tollgate.yaml"), config).unwrap();
    let start = || {
        let mut command = tollgate(["serve", "--config", "tollgate.yaml", "--listen", "127.0.0.1:0"]);
        command.args(["--gateway-listen", "127.0.0.1:0", "--upstream", &upstream().to_string()]);
        TollgateProcess::from(command.current_dir(folder.path()))
    };
    let nodes: Vec<TollgateProcess> = (0..NODES).map(|_| start()).collect();
    let clients: Vec<_> = nodes
        .iter()
        .flat_map(|node| {
            let gateway = HttpClient::connect(node.gateway_address());
            [(node.client(), "check"), (gateway, "gateway")]
        })
        .map(|(client, door)| std::thread::spawn(move || requests(client, door)))
        .collect();
    let mut seen = Ledger::new();
    clients.into_iter().for_each(|client| add(&mut seen, client.join().unwrap()));
    let mut sum = Ledger::new();
    nodes.iter().for_each(|node| add(&mut sum, counted(node)));
    assert_eq!(sum, seen);
    assert_eq!(seen.values().sum::<u64>(), (NODES * 2 * REQUESTS) as u64);
    assert_eq!(seen.len(), 12, "every rule admits and refuses at every door: {seen:?}");
}
