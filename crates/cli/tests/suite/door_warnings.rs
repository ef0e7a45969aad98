//! Warnings about rules with features that a door does not support: at the start, after each change, in `rules check`.

use crate::process::{TollgateProcess, run, tollgate};

const QUEUED: &str = "rules:\n  - { id: a, limit: 5/s, key: user, on_exceed: queue }\n";
const IN_VAIN: &str = "`queue` has no effect in the check API";
const NO_USER: &str = "requests of the gateway have no `user` to count by";

#[test]
fn unsupported_features_are_warned_of_at_the_start_and_after_each_change() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    std::fs::write(&path, QUEUED).unwrap();
    let mut command = tollgate(["serve", "--listen", "127.0.0.1:0", "--gateway-listen", "127.0.0.1:0"]);
    command.args(["--upstream", "http://127.0.0.1:9", "--rules"]).arg(&path);
    let server = TollgateProcess::from(&mut command);
    let line = server.wait_for_log(NO_USER);
    assert!(line.contains("rules.yaml:2:31: warning: "), "{line}");
    server.wait_for_log(IN_VAIN);
    server.wait_for_log("revision=1");
    std::fs::write(&path, QUEUED.replace("queue", "tarpit")).unwrap();
    server.wait_for_log("`tarpit` has no effect in the check API");
    server.wait_for_log("revision=2");
}

#[test]
fn closed_doors_cause_no_warnings() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), QUEUED).unwrap();
    let start = |arguments: &[&str]| {
        let mut command = tollgate(arguments);
        command.args(["--rules", "rules.yaml"]).current_dir(folder.path());
        let server = TollgateProcess::from(&mut command);
        server.wait_for_log("revision=1");
        server.signal("TERM");
        server.rest_of_log()
    };
    let gateway = ["gateway", "--gateway-listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9"];
    let log = start(&gateway);
    assert!(!log.contains("the check API"), "{log}");
    let log = start(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(!log.contains("the gateway"), "{log}");
}

#[test]
fn rules_check_reads_the_doors_from_the_settings() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("rules.yaml", QUEUED);
    write("gateway.yaml", "upstream: http://127.0.0.1:9\n");
    write("users.yaml", "upstream: http://127.0.0.1:9\nidentity: { user: { header: X-User } }\n");
    write("checks.yaml", "listen: 127.0.0.1:0\n");
    write("broken.yaml", "listn: 127.0.0.1:0\n");
    let check =
        |more: &[&str]| run(tollgate(["rules", "check", "rules.yaml"]).args(more).current_dir(folder.path()));
    for (more, checks, users) in [
        (&[][..], false, false),
        (&["--config", "gateway.yaml"], true, true),
        (&["--config", "users.yaml"], true, false),
        (&["--config", "checks.yaml"], true, false),
    ] {
        let output = check(more);
        assert_eq!(output.code, Some(0), "{more:?}: {output:?}");
        assert_eq!(output.stderr.contains(IN_VAIN), checks, "{more:?}: {}", output.stderr);
        assert_eq!(output.stderr.contains(NO_USER), users, "{more:?}: {}", output.stderr);
    }
    let output = check(&["--config", "broken.yaml"]);
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.stderr.contains("broken.yaml:1:1: error: unknown field `listn`"), "{}", output.stderr);
}
