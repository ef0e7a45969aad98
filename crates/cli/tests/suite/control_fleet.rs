//! Control planes of several processes on one Redis: which publish wins, how fast it is in force, and what failures do to it.

use crate::http_client::{HttpClient, HttpReply};
use crate::process::{TollgateProcess, tollgate};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::Instant;
use tollgate_testbed::{RedisServer, wait_until};

/// A poll that no test waits for.
const NO_POLL: &str = "1h";

/// A node with its own data folder.
struct FleetProcess {
    process: TollgateProcess,
    token: String,
}

fn rules(limit: u32) -> String {
    format!("rules: [{{ id: api, key: api_key, limit: {limit}/h, on_store_failure: local }}]\n")
}

impl FleetProcess {
    /// Starts a node whose data folder is `data`.
    fn start(url: &str, data: &Path, poll: &str) -> Self {
        let mut command = tollgate(["serve", "--listen", "127.0.0.1:0", "--store", url]);
        let process = TollgateProcess::from(command.args(["--rules-poll", poll, "--data"]).arg(data));
        let token = process.operate_token();
        Self { process, token }
    }

    fn call(&self, method: &str, path: &str, headers: &str, body: &str) -> HttpReply {
        self.process.admin().call(method, path, &self.token, headers, body)
    }

    fn try_publish(&self, base: u64, limit: u32) -> HttpReply {
        self.call("PUT", "/v1/rules", &format!("If-Match: \"{base}\"\r\n"), &rules(limit))
    }

    /// Publishes a limit over the revision `base`, and returns the number.
    fn publish(&self, base: u64, limit: u32) -> u64 {
        let reply = self.try_publish(base, limit);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["revision"].as_u64().unwrap()
    }

    /// Waits until checks of this node are decided by this limit.
    fn wait_for_limit(&self, limit: u32) {
        let (mut client, limit) = (self.process.client(), limit.to_string());
        wait_until(&format!("{limit} is in force"), || {
            client.check("alice", "/").header("x-ratelimit-limit") == limit
        });
    }

    /// The revision that this node says to be in force.
    fn revision(&self) -> u64 {
        let metrics = self.process.admin().get("/metrics").body;
        let line = metrics.lines().find_map(|line| line.strip_prefix("tollgate_rules_revision "));
        line.unwrap().parse::<f64>().unwrap() as u64
    }

    fn wait_for_revision(&self, revision: u64) {
        wait_until(&format!("revision {revision} is in force"), || self.revision() == revision);
    }

    /// The newest revision in the repository, as this node reads it; none while that is unavailable.
    fn newest(&self) -> Option<Value> {
        let reply = self.call("GET", "/v1/revisions?count=1", "", "");
        (reply.status == 200).then(|| reply.json()["revisions"][0].clone())
    }

    fn kill(self) {
        self.process.signal("KILL");
        assert_eq!(self.process.wait().code(), None);
    }
}

/// Starts `count` nodes with folders in `folder`.
fn fleet(url: &str, folder: &TempDir, count: usize, poll: &str) -> Vec<FleetProcess> {
    let data = |number: usize| folder.path().join(format!("node-{number}"));
    (0..count).map(|number| FleetProcess::start(url, &data(number), poll)).collect()
}

/// Publishes `count` revisions, each at the next node, and returns how long each took until it was in force on all, sorted.
fn publish_in_a_row(fleet: &[FleetProcess], count: u64) -> Vec<Duration> {
    let mut durations = Vec::new();
    for base in 1..=count {
        let limit = 1_000 + base as u32;
        let start = Instant::now();
        assert_eq!(fleet[base as usize % fleet.len()].publish(base, limit), base + 1);
        fleet.iter().for_each(|node| node.wait_for_limit(limit));
        durations.push(start.elapsed());
    }
    durations.sort_unstable();
    fleet.iter().for_each(|node| assert_eq!(node.revision(), count + 1));
    durations
}

fn print(what: &str, durations: &[Duration]) {
    let at = |share: usize| durations[(durations.len() * share / 100).min(durations.len() - 1)];
    println!("{what}: p50 {:?}, p99 {:?}, most {:?}", at(50), at(99), durations[durations.len() - 1]);
}

#[test]
fn a_hundred_publishes_are_in_force_on_five_nodes() {
    let (server, folder) = (RedisServer::start(&[]), tempfile::tempdir().unwrap());
    let nodes = fleet(&server.url(), &folder, 5, NO_POLL);
    let durations = publish_in_a_row(&nodes, 100);
    print("5 processes, 100 publishes", &durations);
    assert!(durations[99] < Duration::from_secs(2));
    wait_until("every node shows all nodes with the last revision", || {
        nodes.iter().all(|node| {
            let listed = node.call("GET", "/v1/nodes", "", "").json();
            let listed = listed["nodes"].as_array().unwrap().clone();
            listed.len() == 5 && listed.iter().all(|node| node["revision"] == 101)
        })
    });
}

#[test]
fn without_messages_a_publish_is_in_force_on_five_nodes_within_the_poll() {
    let (server, folder) = (RedisServer::start(&[]), tempfile::tempdir().unwrap());
    let user = ["ACL", "SETUSER", "deaf", "on", ">pw", "~tg:*", "&tg:*", "+@all", "-subscribe"];
    assert_eq!(server.cli(&user), "OK");
    let nodes = fleet(&format!("redis://deaf:pw@{}", server.address()), &folder, 5, "500ms");
    let durations = publish_in_a_row(&nodes, 5);
    print("5 processes, a poll of 500 ms", &durations);
    assert!(durations[4] < Duration::from_secs(2));
    assert!(durations[4] > Duration::from_millis(50), "it was not the poll: {durations:?}");
}

#[test]
fn of_two_control_planes_that_publish_at_once_one_wins() {
    let (server, folder) = (RedisServer::start(&[]), tempfile::tempdir().unwrap());
    let nodes = fleet(&server.url(), &folder, 3, NO_POLL);
    for base in 1..=10 {
        let limits = [1_000 + base as u32, 2_000 + base as u32];
        let mut clients = [nodes[0].process.admin(), nodes[1].process.admin()];
        for ((client, node), limit) in clients.iter_mut().zip(&nodes).zip(limits) {
            let if_match = format!("If-Match: \"{base}\"\r\n");
            client.send_call("PUT", "/v1/rules", &node.token, &if_match, &rules(limit));
        }
        let [first, second] = clients.each_mut().map(HttpClient::reply);
        let (limit, won, lost) = match first.status {
            200 => (limits[0], first, second),
            _ => (limits[1], second, first),
        };
        assert_eq!((won.status, won.json()["revision"].as_u64()), (200, Some(base + 1)), "{won:?}");
        assert_eq!((lost.status, lost.json()["current"].as_u64()), (412, Some(base + 1)), "{lost:?}");
        nodes.iter().for_each(|node| node.wait_for_limit(limit));
    }
    nodes.iter().for_each(|node| assert_eq!(node.revision(), 11));
}

#[test]
fn killing_one_of_three_nodes_loses_no_publish() {
    let (server, folder) = (RedisServer::start(&[]), tempfile::tempdir().unwrap());
    let mut nodes = fleet(&server.url(), &folder, 3, NO_POLL);
    for base in 1..=4 {
        let limit = 100 + base as u32;
        let killed = nodes.remove(0);
        assert_eq!(killed.publish(base, limit), base + 1);
        killed.kill();
        nodes.iter().for_each(|node| node.wait_for_limit(limit));
        let data = folder.path().join(format!("later-{base}"));
        let later = FleetProcess::start(&server.url(), &data, NO_POLL);
        later.wait_for_limit(limit);
        nodes.push(later);
    }
    assert_eq!(nodes[0].publish(5, 200), 6);
    nodes.iter().for_each(|node| node.wait_for_limit(200));
}

#[test]
fn a_node_that_starts_while_redis_is_down_serves_its_last_good_rules() {
    let (mut server, folder) = (RedisServer::start(&[]), tempfile::tempdir().unwrap());
    let url = server.url();
    let mut nodes = fleet(&url, &folder, 2, "500ms");
    nodes[0].publish(1, 12);
    nodes.iter().for_each(|node| node.wait_for_limit(12));
    for (file, end) in [("last-good-rules.yaml", &*rules(12)), ("fleet.json", "\"nodes\":2}")] {
        let kept = folder.path().join("node-0").join(file);
        wait_until("the rules and the number of nodes are kept", || {
            std::fs::read_to_string(&kept).is_ok_and(|text| text.trim_end().ends_with(end.trim_end()))
        });
    }
    nodes.remove(0).kill();
    let other = nodes.remove(0);
    assert_eq!(other.publish(2, 13), 3);
    server.save();
    other.kill();
    server.kill();

    let node = FleetProcess::start(&url, &folder.path().join("node-0"), "500ms");
    assert_eq!(node.revision(), 2);
    let admitted = |key: &str| {
        let mut client = node.process.client();
        (0..20).filter(|_| client.check(key, "/").status == 200).count()
    };
    // Two nodes were alive when it last saw the store: each admits a half.
    assert_eq!(admitted("alice"), 6);
    assert_eq!(node.newest(), None, "the repository is unavailable, and says so");
    server.restart_saved();
    node.wait_for_revision(3);
    let mut keys = 0..;
    wait_until("decisions use the store again", || admitted(&format!("key {:?}", keys.next())) == 13);
}

#[test]
fn after_a_loss_of_the_newest_revision_nodes_and_store_agree_again() {
    let (mut server, folder) = (RedisServer::start(&[]), tempfile::tempdir().unwrap());
    let nodes = fleet(&server.url(), &folder, 3, "500ms");
    nodes[0].publish(1, 12);
    server.save();
    assert_eq!(nodes[1].publish(2, 13), 3);
    let lost = nodes[1].newest().unwrap();
    assert_eq!(lost["revision"], 3, "{lost}");
    nodes.iter().for_each(|node| node.wait_for_limit(13));
    server.restart_saved();
    wait_until("the revision is there again, as it was", || {
        nodes.iter().all(|node| node.newest().as_ref() == Some(&lost))
    });
    // What a node has in force never goes back.
    nodes.iter().for_each(|node| assert_eq!(node.revision(), 3));
    let fresh = FleetProcess::start(&server.url(), &folder.path().join("fresh"), "500ms");
    assert_eq!(fresh.revision(), 3);
    assert_eq!(fresh.publish(3, 14), 4);
    nodes.iter().chain([&fresh]).for_each(|node| node.wait_for_limit(14));
}

#[test]
fn tokens_and_the_emergency_limit_survive_a_loss() {
    let (mut server, folder) = (RedisServer::start(&[]), tempfile::tempdir().unwrap());
    let mut nodes = fleet(&server.url(), &folder, 2, "500ms");
    let create = |node: &FleetProcess, name: &str| {
        let body = format!(r#"{{"name":"{name}","role":"read"}}"#);
        let created = node.call("POST", "/v1/tokens", "", &body).json();
        ["id", "token"].map(|field| created[field].as_str().unwrap().to_owned())
    };
    let [revoked_id, revoked] = create(&nodes[0], "revoked");
    server.save();
    let [_, kept] = create(&nodes[1], "kept");
    assert_eq!(nodes[0].call("DELETE", &format!("/v1/tokens/{revoked_id}"), "", "").status, 200);
    assert_eq!(nodes[1].call("PUT", "/v1/emergency", "", r#"{"mode":"on"}"#).status, 200);
    let status = |node: &FleetProcess, token: &str| {
        node.process.admin().call("GET", "/v1/tokens", token, "", "").status
    };
    let is_right = |node: &FleetProcess| {
        let emergency = node.call("GET", "/v1/emergency", "", "");
        (status(node, &kept), status(node, &revoked)) == (200, 401)
            && emergency.status == 200
            && emergency.json()["mode"] == "on"
    };
    nodes.iter().for_each(|node| {
        wait_until("every node knows", || is_right(node));
    });
    server.restart_saved();
    wait_until("the store has them again", || {
        // Not even while the store has it.
        nodes.iter().for_each(|node| assert_eq!(status(node, &revoked), 401));
        nodes.iter().all(is_right)
    });
    let fresh = FleetProcess::start(&server.url(), &folder.path().join("fresh"), "500ms");
    wait_until("a new node has them", || is_right(&fresh));
    nodes.clear();
    assert!(is_right(&fresh));
}

/// A client that is in a cooldown at one node and reset at another.
#[test]
fn a_reset_reaches_the_other_node_within_a_second() {
    let (server, folder) = (RedisServer::start(&[]), tempfile::tempdir().unwrap());
    let nodes = fleet(&server.url(), &folder, 2, NO_POLL);
    let rules = "rules: [{ id: login, key: api_key, limit: 3/min, penalty: { after: 2, first: 10min } }]\n";
    let published = nodes[0].call("PUT", "/v1/rules", "If-Match: \"1\"\r\n", rules);
    assert_eq!(published.status, 200, "{published:?}");
    nodes[1].wait_for_limit(3);
    let mut client = nodes[1].process.client();
    let mut durations = Vec::new();
    for round in 0..10 {
        let key = format!("key-{round}");
        wait_until("the client is in a cooldown", || {
            let reply = client.check(&key, "/");
            reply.status == 429 && reply.header("retry-after").parse::<u32>().unwrap() > 60
        });
        let start = Instant::now();
        let reset = nodes[0].call("DELETE", &format!("/v1/keys/api_key/{key}"), "", "");
        assert_eq!(reset.status, 200, "{reset:?}");
        wait_until("the client is admitted", || client.check(&key, "/").status == 200);
        durations.push(start.elapsed());
    }
    durations.sort_unstable();
    print("a reset reaches the other node", &durations);
    assert!(durations[9] < Duration::from_secs(1), "{durations:?}");
    // Each reset comes just after a heartbeat, because the one before was seen by then: heartbeats alone take a second each.
    assert!(durations[4] < Duration::from_millis(500), "it was not the message: {durations:?}");
}
