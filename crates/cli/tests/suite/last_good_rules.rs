//! A node that restarts while its rule file is missing or broken.

use crate::process::{TollgateProcess, run, tollgate};
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;
use tollgate_testbed::wait_until;

const RULES: &str = "rules: [{ id: one, limit: 100/h }]\n";

struct NodeFolder {
    folder: TempDir,
}

impl NodeFolder {
    fn new() -> Self {
        let node = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::write(node.path("rules.yaml"), RULES).unwrap();
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = tollgate(["serve", "--listen", "127.0.0.1:0", "--rules", "rules.yaml"]);
        command.current_dir(self.folder.path());
        command
    }

    /// Runs a node until its rules are kept, and kills it.
    fn run_until_kept(&self) {
        let server = TollgateProcess::from(self.command().args(["--data", "data"]));
        assert!(server.start_message.contains("  data    data\n"), "{}", server.start_message);
        wait_until("the rules are kept", || self.path("data/last-good-rules.yaml").exists());
        server.signal("KILL");
        server.wait();
    }
}

#[test]
fn last_good_rules_are_used_until_the_file_is_good() {
    let node = NodeFolder::new();
    node.run_until_kept();
    let mut revision = 1;
    for broken in [None, Some("rules: [{ id: one, limt: 5/min }]"), Some("# all gone"), Some("")] {
        match broken {
            Some(text) => std::fs::write(node.path("rules.yaml"), text).unwrap(),
            None => std::fs::remove_file(node.path("rules.yaml")).unwrap(),
        }
        let output = run(&mut node.command());
        assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""), "without the folder: {broken:?}");

        let server = TollgateProcess::from(node.command().args(["--data", "data"]));
        let line = server.wait_for_log("rule source cannot be used; the last good rules are in force");
        assert!(line.contains("ERROR") && line.contains("last-good-rules.yaml"), "{line}");
        assert!(
            server.start_message.contains("the last good rules are in force"),
            "{}",
            server.start_message
        );
        let mut client = server.client();
        assert_eq!(client.get("/readyz").status, 200);
        assert_eq!(client.check("a", "/").json()["limit"], 100);
        std::fs::write(node.path("rules.yaml"), RULES.replace("100", "70")).unwrap();
        server.wait_for_log(&format!("revision={}", revision + 1));
        assert_eq!(client.check("a", "/").json()["limit"], 70);
        std::fs::write(node.path("rules.yaml"), RULES).unwrap();
        server.wait_for_log(&format!("revision={}", revision + 2));
        revision += 2;
        let kept = || std::fs::read_to_string(node.path("data/last-good-rules.yaml")).unwrap();
        wait_until("the rules are kept", || kept().ends_with(RULES));
    }
}

#[test]
fn a_start_without_kept_rules_of_this_file_fails() {
    let node = NodeFolder::new();
    let mut command =
        tollgate(["serve", "--listen", "127.0.0.1:0", "--rules", "typo.yaml", "--data", "data"]);
    command.current_dir(node.folder.path());
    for has_run in [false, true] {
        if has_run {
            node.run_until_kept();
        }
        let output = run(&mut command);
        assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""));
        assert!(output.stderr.contains("error: cannot read typo.yaml: No such file"), "{}", output.stderr);
    }
}
