//! `tollgate rules import …`: output, files that are included, exit codes.

use crate::process::{CommandOutput, example, run, tollgate};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const ENVOY: &str = "\
domain: edge
descriptors:
  - key: remote_address
    detailed_metric: true
    rate_limit: { unit: second, requests_per_unit: 10 }
";

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn import(folder: &Path, arguments: &[&str]) -> CommandOutput {
    run(tollgate(["rules", "import"]).args(arguments).current_dir(folder))
}

/// Checks the imported rules with the binary.
fn assert_checked(folder: &Path, rules: &str) {
    fs::write(folder.join("rules.yaml"), rules).unwrap();
    let checked = run(tollgate(["rules", "check", "rules.yaml"]).current_dir(folder));
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""), "{rules}");
}

#[test]
fn envoy_configurations_are_rules_on_standard_output() {
    let folder = folder(&[("one.yaml", ENVOY), ("two.yaml", &ENVOY.replace("edge", "inner"))]);
    let output = import(folder.path(), &["envoy-ratelimit", "one.yaml", "two.yaml"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let expected = "one.yaml:4:5: warning: `detailed_metric` has no equivalent, and no effect on limits\n";
    assert!(output.stderr.starts_with(expected), "{}", output.stderr);
    assert!(output.stderr.contains("two.yaml:4:5: warning: "), "{}", output.stderr);
    assert!(
        output.stdout.contains("# one.yaml:3: remote_address\n  - id: edge/remote_address\n"),
        "{}",
        output.stdout
    );
    assert_checked(folder.path(), &output.stdout);
}

#[test]
fn nginx_configurations_are_read_with_their_includes() {
    let folder = folder(&[
        ("nginx.conf", "http { include conf.d/*.conf; include zones; include sites/*/*.conf; }\n"),
        ("zones", "limit_req_zone $binary_remote_addr zone=a:1m rate=5r/s;\n"),
        ("conf.d/b.conf", "server { server_name b.example; limit_req zone=a; }\n"),
        ("conf.d/a.conf", "server { server_name a.example; limit_req zone=a; }\n"),
        ("conf.d/.hidden.conf", "broken {\n"),
        ("conf.d/other.txt", "broken {\n"),
        // Names are relative to the folder of the main file, not to that of the including one.
        ("sites/x/site.conf", "server { server_name x.example; include sites/limits; }\n"),
        ("sites/limits", "limit_req zone=a burst=9;\n"),
    ]);
    let output = import(folder.path(), &["nginx", "nginx.conf"]);
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(
        output.stderr.contains("sites/limits:1:1: warning: in nginx all uses of the zone `a`"),
        "{}",
        output.stderr
    );
    let read = "nginx.conf, conf.d/a.conf, conf.d/b.conf, zones, sites/x/site.conf, sites/limits.";
    let heading = output.stdout.replace("\n#  ", "");
    assert!(heading.starts_with(&format!("# Imported from the nginx configuration {read}\n")), "{heading}");
    assert_checked(folder.path(), &output.stdout);
}

#[test]
fn broken_input_is_an_error_without_output() {
    let folder = folder(&[
        ("envoy.yaml", "domain: d\ndescriptors:\n  - { key: a, rate_limit: { unit: eon } }\n"),
        ("nginx.conf", "http { include missing.conf; }\n"),
    ]);
    for (arguments, expected) in [
        (["envoy-ratelimit", "envoy.yaml"], "envoy.yaml:3:35: error: `eon` is not a unit\n"),
        (
            ["nginx", "nginx.conf"],
            "nginx.conf:1:16: error: cannot read `missing.conf`: No such file or directory",
        ),
        (["nginx", "no-such-file"], "error: cannot read no-such-file: No such file or directory"),
    ] {
        let output = import(folder.path(), &arguments);
        assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""), "{arguments:?}");
        assert!(output.stderr.starts_with(expected), "{}", output.stderr);
    }
}

#[test]
fn a_configuration_without_limits_says_so() {
    let output = run(tollgate(["rules", "import", "nginx"]).arg(example("../sticky-routing/nginx.conf")));
    assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""));
    assert!(output.stdout.contains("# It has no limits.\n\nallow_empty: true\n"), "{}", output.stdout);
}
