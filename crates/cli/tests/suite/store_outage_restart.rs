//! Nodes that start while their store is unavailable, and the size of the fleet that they have saved.

use crate::process::{TollgateProcess, tollgate};
use std::ffi::OsStr;
use std::path::Path;
use tempfile::TempDir;
use tollgate_testbed::{RedisServer, wait_until};

const RULES: &str = "rules: [{ id: one, limit: 30/day, on_store_failure: local }]";

struct NodeFolder {
    folder: TempDir,
}

impl NodeFolder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
        Self { folder }
    }

    fn data(&self) -> std::path::PathBuf {
        self.folder.path().join("data")
    }

    fn file(&self) -> std::path::PathBuf {
        self.data().join("fleet.json")
    }

    /// Starts a node with these arguments for its data folder.
    fn node(&self, store: &str, setting: &[&OsStr]) -> TollgateProcess {
        let rules = self.folder.path().join("rules.yaml");
        let own = ["--store".as_ref(), store.as_ref(), "--rules".as_ref(), rules.as_os_str()];
        TollgateProcess::start(own.iter().chain(setting))
    }

    fn node_with_data(&self, store: &str) -> TollgateProcess {
        self.node(store, &["--data".as_ref(), self.data().as_os_str()])
    }

    /// Runs a node that saves a fleet of three before its store is killed, and stops it.
    fn run_into_an_outage(&self, redis: &mut RedisServer) {
        let others = [Self::new(), Self::new()];
        let node = self.node_with_data(&redis.url());
        let others = others.each_ref().map(|other| other.node(&redis.url(), &[]));
        until_kept(&self.file(), "\"nodes\":3");
        redis.kill();
        // They stop one after the other; without the store, the others do not notice.
        for server in others.into_iter().chain([node]) {
            server.signal("TERM");
            assert_eq!(server.wait().code(), Some(0));
        }
    }
}

fn until_kept(file: &Path, text: &str) {
    wait_until("the size of the fleet is saved", || {
        std::fs::read_to_string(file).is_ok_and(|kept| kept.contains(text))
    });
}

/// How many of 40 requests pass while the store is unavailable.
fn passes(server: &TollgateProcess) -> usize {
    let mut client = server.client();
    let replies = (0..40).map(|_| client.check("alice", "/"));
    let replies: Vec<_> = replies.collect();
    assert!(replies.iter().all(|reply| reply.header("x-ratelimit-policy") == "degraded"), "{replies:?}");
    replies.iter().filter(|reply| reply.status == 200).count()
}

#[test]
fn a_node_that_restarts_in_an_outage_enforces_its_share() {
    let (mut redis, folder) = (RedisServer::start(&[]), NodeFolder::new());
    folder.run_into_an_outage(&mut redis);
    for _ in 0..2 {
        let node = folder.node_with_data(&redis.url());
        assert!(node.start_message.contains(&folder.data().display().to_string()), "{}", node.start_message);
        assert_eq!(passes(&node), 10, "a third");
        // Killed, so that it cannot report its end to the store.
        node.signal("KILL");
        assert_eq!(node.wait().code(), None);
    }
    let mut other = RedisServer::start(&[]);
    other.kill();
    let node = folder.node_with_data(&other.url());
    node.wait_for_log("belongs to another store");
    assert_eq!(passes(&node), 30, "nothing is known of this store");
}

#[test]
fn a_lost_or_broken_fleet_file_never_stops_a_node() {
    let (mut redis, folder) = (RedisServer::start(&[]), NodeFolder::new());
    folder.run_into_an_outage(&mut redis);
    std::fs::write(folder.file(), "{\"store\":").unwrap();
    let node = folder.node_with_data(&redis.url());
    let line = node.wait_for_log("node count file is malformed");
    assert!(line.contains("WARN") && line.contains("fleet.json"), "{line}");
    assert_eq!(passes(&node), 30);
    redis.restart_empty();
    until_kept(&folder.file(), "\"nodes\":1");
    drop(node);
    std::fs::remove_dir_all(folder.data()).unwrap();
    std::fs::write(folder.data(), "not a folder").unwrap();
    let node = folder.node_with_data(&redis.url());
    let line = node.wait_for_log("node count file cannot be written; retrying");
    assert!(line.contains("WARN") && line.contains("fleet.json"), "{line}");
    assert_eq!(node.client().check("alice", "/").status, 200);
}

#[test]
fn the_data_folder_comes_from_flag_variable_file_or_systemd() {
    let (redis, folder) = (RedisServer::start(&[]), NodeFolder::new());
    let config = folder.folder.path().join("tollgate.yaml");
    let rules = folder.folder.path().join("rules.yaml");
    std::fs::write(&config, "data: from-file\n").unwrap();
    let start = |variables: &[(&str, &str)], arguments: &[&OsStr]| {
        let mut command = tollgate(["serve", "--listen", "127.0.0.1:0", "--store", &redis.url()]);
        command.current_dir(folder.folder.path()).arg("--rules").arg(&rules);
        TollgateProcess::from(command.envs(variables.iter().copied()).args(arguments))
    };
    let (systemd, variable) = (("STATE_DIRECTORY", "from-systemd:more"), ("TOLLGATE_DATA", "from-variable"));
    let file = ["--config".as_ref(), config.as_os_str()];
    let flag = ["--config".as_ref(), config.as_os_str(), "--data".as_ref(), "from-flag".as_ref()];
    for (name, variables, arguments) in [
        ("from-systemd", &[systemd][..], &[][..]),
        ("from-file", &[systemd], &file),
        ("from-variable", &[systemd, variable], &file),
        ("from-flag", &[systemd, variable], &flag),
    ] {
        let server = start(variables, arguments);
        assert!(server.start_message.contains(name), "{}", server.start_message);
        until_kept(&folder.folder.path().join(name).join("fleet.json"), &redis.url());
    }
    let server = start(&[], &[]);
    let line = server.wait_for_log("the number of nodes is not stored");
    assert!(line.contains("WARN"), "{line}");
}
