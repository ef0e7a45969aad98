//! Rules that ask more of a door than it can do: a warning at the start, with each change, and in `rules check`.

use crate::program::{Server, run, tollgate};

const QUEUED: &str = "rules:\n  - { id: a, limit: 5/s, key: user, on_exceed: queue }\n";
const IN_VAIN: &str = "`queue` has no effect in the check API";
const NO_USER: &str = "requests of the gateway have no `user` to count by";

#[test]
fn the_start_and_each_change_warn_of_what_the_open_doors_cannot_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    std::fs::write(&path, QUEUED).unwrap();
    let mut command = tollgate(["serve", "--listen", "127.0.0.1:0", "--gateway-listen", "127.0.0.1:0"]);
    command.args(["--upstream", "http://127.0.0.1:9", "--rules"]).arg(&path);
    let server = Server::from(&mut command);
    let line = server.until_logged(NO_USER);
    assert!(line.contains("rules.yaml:2:31: warning: "), "{line}");
    server.until_logged(IN_VAIN);
    server.until_logged("revision=1");
    std::fs::write(&path, QUEUED.replace("queue", "tarpit")).unwrap();
    server.until_logged("`tarpit` has no effect in the check API");
    server.until_logged("revision=2");
}

#[test]
fn doors_that_are_closed_are_not_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), QUEUED).unwrap();
    let start = |arguments: &[&str]| {
        let mut command = tollgate(arguments);
        command.args(["--rules", "rules.yaml"]).current_dir(folder.path());
        let server = Server::from(&mut command);
        server.until_logged("revision=1");
        server.signal("TERM");
        server.log_to_the_end()
    };
    let gateway = ["gateway", "--gateway-listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9"];
    let log = start(&gateway);
    assert!(!log.contains("the check API"), "{log}");
    let log = start(&["serve", "--listen", "127.0.0.1:0"]);
    assert!(!log.contains("the gateway"), "{log}");
}

#[test]
fn rules_check_knows_the_doors_from_the_settings() {
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
        let ended = check(more);
        assert_eq!(ended.code, Some(0), "{more:?}: {ended:?}");
        assert_eq!(ended.stderr.contains(IN_VAIN), checks, "{more:?}: {}", ended.stderr);
        assert_eq!(ended.stderr.contains(NO_USER), users, "{more:?}: {}", ended.stderr);
    }
    let ended = check(&["--config", "broken.yaml"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("broken.yaml:1:1: error: unknown field `listn`"), "{}", ended.stderr);
}
