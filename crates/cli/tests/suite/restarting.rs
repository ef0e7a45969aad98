//! Nodes that start while their store is away, and what they remember of the fleet.

use crate::program::{Server, tollgate};
use std::ffi::OsStr;
use std::path::Path;
use tempfile::TempDir;
use tollgate_testbed::{RedisServer, wait_until};

const RULES: &str = "rules: [{ id: one, limit: 30/day, on_store_failure: local }]";

struct Machine {
    folder: TempDir,
}

impl Machine {
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

    /// A node that is told of its folder by `setting` on the command line.
    fn node(&self, store: &str, setting: &[&OsStr]) -> Server {
        let rules = self.folder.path().join("rules.yaml");
        let own = ["--store".as_ref(), store.as_ref(), "--rules".as_ref(), rules.as_os_str()];
        Server::start(own.iter().chain(setting))
    }

    fn node_with_data(&self, store: &str) -> Server {
        self.node(store, &["--data".as_ref(), self.data().as_os_str()])
    }

    /// A node that has seen two others, and its store die; it ends.
    fn after_an_outage(&self, redis: &mut RedisServer) {
        let others = [Self::new(), Self::new()];
        let node = self.node_with_data(&redis.url());
        let others = others.each_ref().map(|other| other.node(&redis.url(), &[]));
        until_kept(&self.file(), "\"nodes\":3");
        redis.kill();
        // They go one after the other, and nobody hears of it.
        for server in others.into_iter().chain([node]) {
            server.signal("TERM");
            assert_eq!(server.ended().code(), Some(0));
        }
    }
}

fn until_kept(file: &Path, text: &str) {
    wait_until("it is written down how many nodes there are", || {
        std::fs::read_to_string(file).is_ok_and(|kept| kept.contains(text))
    });
}

/// How many of many requests pass while the store is away.
fn passes(server: &Server) -> usize {
    let mut client = server.client();
    let replies = (0..40).map(|_| client.check("alice", "/"));
    let replies: Vec<_> = replies.collect();
    assert!(replies.iter().all(|reply| reply.header("x-ratelimit-policy") == "degraded"), "{replies:?}");
    replies.iter().filter(|reply| reply.status == 200).count()
}

#[test]
fn a_node_that_restarts_in_an_outage_keeps_to_its_share() {
    let (mut redis, machine) = (RedisServer::start(&[]), Machine::new());
    machine.after_an_outage(&mut redis);
    for _ in 0..2 {
        let node = machine.node_with_data(&redis.url());
        assert!(node.start_message.contains(&machine.data().display().to_string()), "{}", node.start_message);
        assert_eq!(passes(&node), 10, "a third");
        // Not a farewell that the store could hear either.
        node.signal("KILL");
        assert_eq!(node.ended().code(), None);
    }
    let mut other = RedisServer::start(&[]);
    other.kill();
    let node = machine.node_with_data(&other.url());
    node.until_logged("of another store only");
    assert_eq!(passes(&node), 30, "nothing is known of this store");
}

#[test]
fn what_is_kept_may_be_lost_or_broken_but_never_stops_a_node() {
    let (mut redis, machine) = (RedisServer::start(&[]), Machine::new());
    machine.after_an_outage(&mut redis);
    std::fs::write(machine.file(), "{\"store\":").unwrap();
    let node = machine.node_with_data(&redis.url());
    let line = node.until_logged("how many nodes there were cannot be understood");
    assert!(line.contains("WARN") && line.contains("fleet.json"), "{line}");
    assert_eq!(passes(&node), 30);
    redis.restart_empty();
    until_kept(&machine.file(), "\"nodes\":1");
    drop(node);
    std::fs::remove_dir_all(machine.data()).unwrap();
    std::fs::write(machine.data(), "not a folder").unwrap();
    let node = machine.node_with_data(&redis.url());
    let line = node.until_logged("how many nodes there are cannot be written down");
    assert!(line.contains("WARN") && line.contains("fleet.json"), "{line}");
    assert_eq!(node.client().check("alice", "/").status, 200);
}

#[test]
fn the_folder_is_found_in_each_of_its_places() {
    let (redis, machine) = (RedisServer::start(&[]), Machine::new());
    let config = machine.folder.path().join("tollgate.yaml");
    let rules = machine.folder.path().join("rules.yaml");
    std::fs::write(&config, "data: from-file\n").unwrap();
    let start = |variables: &[(&str, &str)], arguments: &[&OsStr]| {
        let mut command = tollgate(["serve", "--listen", "127.0.0.1:0", "--store", &redis.url()]);
        command.current_dir(machine.folder.path()).arg("--rules").arg(&rules);
        Server::from(command.envs(variables.iter().copied()).args(arguments))
    };
    let (systemd, variable) = (("STATE_DIRECTORY", "from-systemd:more"), ("TOLLGATE_DATA", "from-variable"));
    let file = ["--config".as_ref(), config.as_os_str()];
    let flag = ["--config".as_ref(), config.as_os_str(), "--data".as_ref(), "from-flag".as_ref()];
    for (folder, variables, arguments) in [
        ("from-systemd", &[systemd][..], &[][..]),
        ("from-file", &[systemd], &file),
        ("from-variable", &[systemd, variable], &file),
        ("from-flag", &[systemd, variable], &flag),
    ] {
        let server = start(variables, arguments);
        assert!(server.start_message.contains(folder), "{}", server.start_message);
        until_kept(&machine.folder.path().join(folder).join("fleet.json"), &redis.url());
    }
    let server = start(&[], &[]);
    let line = server.until_logged("how many nodes there are is not kept");
    assert!(line.contains("WARN"), "{line}");
}
