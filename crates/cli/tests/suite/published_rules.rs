//! `tollgate rules publish|pull|diff|history|rollback` and `tollgate token`, against a real server.

use crate::closed_output::{closed_pipe, full};
use crate::process::{CommandOutput, TollgateProcess, run, tollgate};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;
use tollgate_testbed::wait_until;

const FIRST: &str = "# The plan.\nrules:\n  - id: plan\n    limit: 100/h\n";

/// A node with a data folder, and files of a client.
struct ControlPlane {
    server: TollgateProcess,
    folder: TempDir,
}

impl ControlPlane {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("seed.yaml"), FIRST).unwrap();
        let data = folder.path().join("data");
        let server = TollgateProcess::start([
            "--rules".as_ref(),
            folder.path().join("seed.yaml").as_os_str(),
            "--data".as_ref(),
            data.as_os_str(),
        ]);
        Self { server, folder }
    }

    fn token_file(&self) -> PathBuf {
        self.folder.path().join("data/operate.token")
    }

    /// Writes a rule file.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Runs a command with the operate token.
    fn run(&self, arguments: &[&str]) -> CommandOutput {
        let token = std::fs::read_to_string(self.token_file()).unwrap();
        self.run_with(arguments, Some(token.trim()))
    }

    fn run_with(&self, arguments: &[&str], token: Option<&str>) -> CommandOutput {
        let mut command = self.command(arguments);
        if let Some(token) = token {
            command.env("TOLLGATE_TOKEN", token);
        }
        run(&mut command)
    }

    /// A command without a token.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = tollgate(arguments);
        command.args(["--to", &format!("http://{}", self.server.admin_address())]);
        command
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.code, Some(0), "{arguments:?}: {output:?}");
        output.stdout
    }
}

#[test]
fn rules_are_published_pulled_compared_and_rolled_back() {
    let plane = ControlPlane::start();
    assert_eq!(plane.ok(&["rules", "pull"]), FIRST);
    let second = plane.file("second.yaml", &FIRST.replace("100/h", "7/h"));
    let diff = plane.run(&["rules", "diff", &second, "--exit-code"]);
    let expected = format!(
        "--- revision 1\n+++ {second}\n@@ -1,4 +1,4 @@\n # The plan.\n rules:\n   - id: plan\n-    limit: 100/h\n+    limit: 7/h\n\n~ rule plan: limit 100/h -> 7/h\n"
    );
    assert_eq!((diff.code, diff.stdout), (Some(5), expected));

    let published = plane.ok(&["rules", "publish", &second, "--message", "fewer, für Ann"]);
    assert_eq!(published, "published revision 2\n");
    wait_until("the rules are in force", || plane.server.client().check("a", "/").json()["limit"] == 7);
    assert_eq!(plane.ok(&["rules", "publish", &second]), "revision 2 has these rules already\n");
    assert_eq!(plane.run(&["rules", "diff", &second, "--exit-code"]).code, Some(0));

    let copy = plane.folder.path().join("copy.yaml");
    let pulled = plane.ok(&["rules", "pull", "--out", copy.to_str().unwrap()]);
    assert_eq!(pulled, format!("{}: revision 2\n", copy.display()));
    assert_eq!(std::fs::read_to_string(&copy).unwrap(), FIRST.replace("100/h", "7/h"));
    assert_eq!(plane.ok(&["rules", "pull", "--revision", "1"]), FIRST);

    let rolled_back = plane.ok(&["rules", "rollback", "1"]);
    assert_eq!(rolled_back, "published revision 3, with the rules of revision 1\n");
    let history = plane.ok(&["rules", "history"]);
    let lines: Vec<&str> = history.lines().collect();
    assert_eq!(lines.len(), 3, "{history}");
    assert!(lines[0].starts_with("     3  20") && lines[0].contains("rollback"), "{history}");
    assert!(lines[1].contains("published") && lines[1].ends_with("fewer, für Ann"), "{history}");
    assert!(lines[2].contains("file"), "{history}");
    let json: serde_json::Value = serde_json::from_str(&plane.ok(&["rules", "history", "--json"])).unwrap();
    assert_eq!((&json[0]["revision"], &json[2]["revision"]), (&3.into(), &1.into()));
    let since = plane.ok(&["rules", "diff", "--revision", "2", "--json"]);
    let since: serde_json::Value = serde_json::from_str(&since).unwrap();
    assert_eq!(since["summary"][0]["fields"][0]["after"], "100/h");
}

#[test]
fn stale_and_invalid_rules_are_refused_with_exit_codes_of_their_own() {
    let plane = ControlPlane::start();
    let second = plane.file("second.yaml", &FIRST.replace("100/h", "7/h"));
    plane.ok(&["rules", "publish", &second, "--message", "fewer"]);
    let third = plane.file("third.yaml", &FIRST.replace("100/h", "8/h"));
    let stale = plane.run(&["rules", "publish", &third, "--if-revision", "1"]);
    assert_eq!((stale.code, stale.stdout.as_str()), (Some(3), ""));
    assert!(stale.stderr.starts_with("error: revision 1 is not the newest; revision 2 is, by "), "{stale:?}");
    assert!(stale.stderr.contains(": fewer\n  ~ rule plan: limit 100/h -> 7/h\n  hint: "), "{stale:?}");

    let broken = plane.file("broken.yaml", "rules:\n  - id: plan\n    limit: 0/h\nallow: [sk_secret_9]\n");
    let refused = plane.run(&["rules", "publish", &broken]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(4), ""));
    let expected = format!("{broken}:3:12: error: this limit would reject every request\n  hint: ");
    assert!(refused.stderr.starts_with(&expected), "{refused:?}");
    assert!(!refused.stderr.contains("sk_secret"), "{refused:?}");

    let failing = format!(
        "{FIRST}tests:\n  - {{ name: none, request: {{ key: k }}, steps: [{{ expect: limited }}] }}\n"
    );
    let failing = plane.file("failing.yaml", &failing);
    let refused = plane.run(&["rules", "publish", &failing]);
    assert_eq!(refused.code, Some(4), "{refused:?}");
    assert!(refused.stderr.contains("none"), "{refused:?}");
    assert_eq!(plane.run(&["rules", "rollback", "99"]).code, Some(1));
    assert_eq!(plane.ok(&["rules", "history"]).lines().count(), 2);
}

#[test]
fn tokens_are_created_listed_and_revoked() {
    let plane = ControlPlane::start();
    let created = plane.run(&["token", "create", "ci", "--role", "read", "--for", "90d"]);
    assert_eq!(created.code, Some(0), "{created:?}");
    let token = created.stdout.trim();
    assert!(token.len() >= 32 && created.stderr.contains("with the role read"), "{created:?}");
    assert_eq!(plane.run_with(&["rules", "pull"], Some(token)).stdout, FIRST);
    let second = plane.file("second.yaml", &FIRST.replace("100/h", "7/h"));
    let refused = plane.run_with(&["rules", "publish", &second], Some(token));
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("403") && refused.stderr.contains("role operate"), "{refused:?}");
    assert!(!refused.stderr.contains(token), "{refused:?}");

    let listed = plane.ok(&["token", "list"]);
    let line = listed.lines().find(|line| line.contains(" ci ")).unwrap_or_else(|| panic!("{listed}"));
    assert!(line.contains("read") && line.contains("expires 20") && !listed.contains(token), "{listed}");
    let id = line.split(' ').next().unwrap();
    assert_eq!(plane.ok(&["token", "revoke", id]), format!("revoked token {id}\n"));
    let revoked = plane.run_with(&["rules", "pull"], Some(token));
    assert_eq!(revoked.code, Some(1));
    assert!(revoked.stderr.contains("401"), "{revoked:?}");
    assert_eq!(plane.run(&["token", "revoke", id]).code, Some(1));
    assert_eq!(plane.run(&["token", "revoke", "../rules"]).code, Some(2));
}

#[test]
fn errors_of_the_connection_say_what_to_do() {
    let plane = ControlPlane::start();
    let without = plane.run_with(&["rules", "pull"], None);
    assert_eq!(without.code, Some(1));
    assert!(without.stderr.contains("401") && without.stderr.contains("TOLLGATE_TOKEN"), "{without:?}");
    let token_file = plane.token_file();
    let with_file = plane.run_with(&["rules", "pull", "--token-file", token_file.to_str().unwrap()], None);
    assert_eq!(with_file.stdout, FIRST);

    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let unreachable = run(&mut tollgate(["rules", "pull", "--to", &format!("http://{free}")]));
    assert_eq!(unreachable.code, Some(1));
    assert!(unreachable.stderr.starts_with(&format!("error: cannot connect to {free}")), "{unreachable:?}");
    let no_url = run(&mut tollgate(["rules", "pull", "--to", "ftp://user:hunter2@host"]));
    assert_eq!(no_url.code, Some(1));
    assert!(!no_url.stderr.contains("hunter2"), "{no_url:?}");
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let plane = ControlPlane::start();
    let second = plane.file("second.yaml", &FIRST.replace("100/h", "7/h"));
    for arguments in [
        &["rules", "pull"][..],
        &["rules", "diff", &second],
        &["rules", "history"],
        &["token", "list"],
        &["rules", "publish", &second],
        &["rules", "rollback", "1"],
        &["token", "create", "ci"],
    ] {
        for (stdout, code) in [(Stdio::from(closed_pipe()), 141), (Stdio::from(full()), 1)] {
            let mut command = plane.command(arguments);
            let command = command.arg("--token-file").arg(plane.token_file()).stdin(Stdio::null());
            let status = command.stdout(stdout).stderr(Stdio::null()).status().unwrap();
            assert_eq!(status.code(), Some(code), "{arguments:?}");
        }
    }
}
