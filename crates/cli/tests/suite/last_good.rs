//! A node that is restarted while its rule file is gone or broken.

use crate::program::{Server, run, tollgate};
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;
use tollgate_testbed::wait_until;

const RULES: &str = "rules: [{ id: one, limit: 100/h }]\n";

struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::write(machine.path("rules.yaml"), RULES).unwrap();
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = tollgate(["serve", "--listen", "127.0.0.1:0", "--rules", "rules.yaml"]);
        command.current_dir(self.folder.path());
        command
    }

    /// A node that kept its rules, and was killed.
    fn has_run(&self) {
        let server = Server::from(self.command().args(["--data", "data"]));
        assert!(server.start_message.contains("  data    data\n"), "{}", server.start_message);
        wait_until("the rules are kept", || self.path("data/last-good-rules.yaml").exists());
        server.signal("KILL");
        server.ended();
    }
}

#[test]
fn goes_on_with_the_last_good_rules_until_the_file_is_good() {
    let machine = Machine::new();
    machine.has_run();
    for broken in [None, Some("rules: [{ id: one, limt: 5/min }]"), Some("# all gone"), Some("")] {
        match broken {
            Some(text) => std::fs::write(machine.path("rules.yaml"), text).unwrap(),
            None => std::fs::remove_file(machine.path("rules.yaml")).unwrap(),
        }
        let ended = run(&mut machine.command());
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "without the folder: {broken:?}");

        let server = Server::from(machine.command().args(["--data", "data"]));
        let line = server.until_logged("rule file cannot be used; the last good rules are in force");
        assert!(line.contains("ERROR") && line.contains("last-good-rules.yaml"), "{line}");
        assert!(
            server.start_message.contains("the last good rules are in force"),
            "{}",
            server.start_message
        );
        let mut client = server.client();
        assert_eq!(client.get("/readyz").status, 200);
        assert_eq!(client.check("a", "/").json()["limit"], 100);
        std::fs::write(machine.path("rules.yaml"), RULES.replace("100", "70")).unwrap();
        server.until_logged("revision=2");
        assert_eq!(client.check("a", "/").json()["limit"], 70);
        std::fs::write(machine.path("rules.yaml"), RULES).unwrap();
        server.until_logged("revision=3");
        let kept = || std::fs::read_to_string(machine.path("data/last-good-rules.yaml")).unwrap();
        wait_until("the rules are kept", || kept().ends_with(RULES));
    }
}

#[test]
fn fails_if_no_rules_of_this_file_are_kept() {
    let machine = Machine::new();
    let mut command =
        tollgate(["serve", "--listen", "127.0.0.1:0", "--rules", "typo.yaml", "--data", "data"]);
    command.current_dir(machine.folder.path());
    for has_run in [false, true] {
        if has_run {
            machine.has_run();
        }
        let ended = run(&mut command);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
        assert!(ended.stderr.contains("error: cannot read typo.yaml: No such file"), "{}", ended.stderr);
    }
}
