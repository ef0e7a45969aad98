//! The rule repository of a node, as its process shows it.

use crate::process::{TollgateProcess, run, tollgate};
use std::path::Path;
use std::process::Command;
use tollgate_testbed::RedisServer;

fn serve(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = tollgate(["serve", "--listen", "127.0.0.1:0"]);
    command.args(arguments).current_dir(folder);
    command
}

#[test]
fn a_node_says_where_published_rules_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let redis = RedisServer::start(&[]);
    let url = redis.url();
    for (arguments, is_lost) in [
        (&[][..], true),
        (&["--data", "data"], false),
        (&["--store", &url], false),
        (&["--repository", "off"], false),
        (&["--admin-listen", "off"], false),
    ] {
        let server = TollgateProcess::from(&mut serve(folder.path(), arguments));
        let says_lost = server.start_message.contains("published rules and tokens are lost when it stops");
        assert_eq!(says_lost, is_lost, "{arguments:?}: {}", server.start_message);
        assert!(server.start_message.contains("built-in example"), "{}", server.start_message);
    }
    assert!(folder.path().join("data/control.redb").exists());
}

#[test]
fn a_data_folder_has_one_node() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--data", "data"];
    let _first = TollgateProcess::from(&mut serve(folder.path(), &arguments));
    let second = run(&mut serve(folder.path(), &arguments));
    assert_eq!((second.code, second.stdout.as_str()), (Some(1), ""));
    let expected =
        "error: the rule repository data/control.redb cannot be used: another process has it open\n  hint: ";
    assert!(second.stderr.contains(expected), "{}", second.stderr);
}

#[test]
fn a_damaged_repository_is_an_error_that_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    std::fs::write(folder.path().join("data/control.redb"), "not a repository").unwrap();
    let output = run(&mut serve(folder.path(), &["--data", "data"]));
    assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""));
    assert!(output.stderr.contains("data/control.redb cannot be used: "), "{}", output.stderr);
    assert!(output.stderr.contains("hint: "), "{}", output.stderr);
}

#[test]
fn a_start_without_the_control_plane_and_without_kept_rules_fails() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = serve(folder.path(), &["--control-plane", "http://127.0.0.1:1"]);
    let output = run(command.env("TOLLGATE_CONTROL_TOKEN", "tg_secret"));
    assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""));
    assert!(output.stderr.contains("cannot read http://127.0.0.1:1: "), "{}", output.stderr);
    assert!(!output.stderr.contains("tg_secret"), "{}", output.stderr);
}
