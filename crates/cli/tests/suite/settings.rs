//! Settings: a flag, else the environment, else the file, else the default.

use crate::process::{CommandOutput, TollgateProcess, run, tollgate};
use std::path::Path;
use tempfile::TempDir;
use tollgate_testbed::wait_until;

fn folder_with(config: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tollgate.yaml"), config).unwrap();
    folder
}

fn serve_with(config: &str) -> CommandOutput {
    let folder = folder_with(config);
    let output = run(tollgate(["serve", "--config", "tollgate.yaml"]).current_dir(folder.path()));
    assert_eq!(output.code, Some(1), "{output:?}");
    output
}

#[test]
fn a_flag_beats_the_environment_beats_the_file() {
    let folder = folder_with("store_memory: 16MB\nlisten: 127.0.0.1:0\n");
    let start_message = |variable: Option<&str>, flag: Option<&str>| {
        let mut command = tollgate(["serve", "--config", "tollgate.yaml"]);
        command.current_dir(folder.path());
        command.envs(variable.map(|value| ("TOLLGATE_STORE_MEMORY", value)));
        command.args(flag.map(|value| ["--store-memory", value]).into_iter().flatten());
        TollgateProcess::from(&mut command).start_message.clone()
    };
    for (variable, flag, expected) in [
        (None, None, "at most 16 MB"),
        (Some("32MB"), None, "at most 32 MB"),
        (None, Some("64MB"), "at most 64 MB"),
        (Some("32MB"), Some("64MB"), "at most 64 MB"),
    ] {
        let start_message = start_message(variable, flag);
        assert!(start_message.contains(expected), "{variable:?}, {flag:?}: {start_message}");
    }
}

#[test]
fn every_flag_has_a_variable() {
    let folder = folder_with("store_memory: 16MB\n");
    std::fs::write(folder.path().join("rules.yaml"), "rules:\n  - { id: mine, limit: 3/min }\n").unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut command = tollgate(["serve"]);
    command.env("TOLLGATE_CONFIG", path("tollgate.yaml")).env("TOLLGATE_RULES", path("rules.yaml"));
    command.env("TOLLGATE_LISTEN", "127.0.0.1:0").env("TOLLGATE_STORE", "memory");
    let server = TollgateProcess::from(&mut command);
    assert!(server.start_message.contains("at most 16 MB"), "{}", server.start_message);
    assert_eq!(server.client().check("a", "/").json()["rule"], "mine");
}

#[test]
fn a_node_has_the_name_of_its_host_or_its_own() {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
    for (flags, expected) in [(&[][..], host.as_str()), (&["--node-name", "edge-1"], "edge-1")] {
        let data = tempfile::tempdir().unwrap();
        let start = ["--data", data.path().to_str().unwrap()];
        let server = TollgateProcess::start(start.iter().chain(flags).copied());
        let token = std::fs::read_to_string(data.path().join("operate.token")).unwrap();
        let mut admin = server.admin();
        wait_until("the node is listed with its name", || {
            let nodes = admin.call("GET", "/v1/nodes", token.trim(), "", "").json();
            nodes["nodes"][0]["name"] == expected
        });
    }
    let output = run(&mut tollgate(["serve", "--node-name", "a\nb"]));
    assert!(output.stderr.contains("the name of a node has at most 100 characters"), "{output:?}");
}

#[test]
fn an_unknown_emergency_value_is_an_error() {
    let output = run(&mut tollgate(["serve", "--emergency", "maybe"]));
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.stderr.contains("`maybe` is not a value of `emergency`; use off, on_outage or on"));
}

#[test]
fn an_empty_variable_counts_as_absent() {
    let mut command = tollgate(["serve", "--listen", "127.0.0.1:0"]);
    for name in [
        "CONFIG",
        "RULES",
        "STORE",
        "STORE_MEMORY",
        "DATA",
        "EMERGENCY",
        "REPOSITORY",
        "CONTROL_PLANE",
        "CONTROL_TOKEN_FILE",
        "RULES_POLL",
        "ADMIN_INSECURE",
        "GATEWAY_LISTEN",
        "UPSTREAM",
        "LOG_FORMAT",
        "OTLP_ENDPOINT",
        "STATSD_ADDRESS",
    ] {
        command.env(format!("TOLLGATE_{name}"), "");
    }
    let server = TollgateProcess::from(&mut command);
    assert!(server.start_message.contains("at most 512 MB"), "{}", server.start_message);
}

#[test]
fn paths_in_the_file_are_relative_to_its_folder() {
    let folder = folder_with("rules: rules.yaml\nlisten: 127.0.0.1:0\n");
    std::fs::write(folder.path().join("rules.yaml"), "rules:\n  - { id: mine, limit: 3/min }\n").unwrap();
    let config = folder.path().join("tollgate.yaml");
    let mut command = tollgate(["serve".as_ref(), "--config".as_ref(), config.as_os_str()]);
    let server = TollgateProcess::from(command.current_dir(Path::new("/")));
    assert_eq!(server.client().check("a", "/").json()["rule"], "mine");
}

#[test]
fn errors_in_the_file_have_positions() {
    for (config, expected) in [
        ("listn: 127.0.0.1:0\n", "tollgate.yaml:1:1: error: unknown field `listn`\n"),
        (
            "store_memory: 16MB\nlisten: here\n",
            "tollgate.yaml:2:9: error: `here` is not an address to listen on; write it like 127.0.0.1:8080\n",
        ),
        (
            "store_memory: 16 pounds\n",
            "tollgate.yaml:1:15: error: `16 pounds` is not a size of at least 1MB; write it like 64MB or 2GB\n",
        ),
        (
            "grpc_listen: there\n",
            "tollgate.yaml:1:14: error: `there` is not an address to listen on; write it like 127.0.0.1:8080\n",
        ),
        ("grpc: { descriptors: some }\ngrpc_listen: 8081\n", "tollgate.yaml:1:22: error: unknown"),
        (
            "resp_listen: there\n",
            "tollgate.yaml:1:14: error: `there` is not an address to listen on; write it like 127.0.0.1:8080\n",
        ),
        ("listen: [\n", "tollgate.yaml:"),
        (
            "redis:\n  lease: { interval: 100ms, horizon: 20s }\n",
            "tollgate.yaml:2:38: error: 20s is out of range; use 1ms to 10s\n",
        ),
        ("redis: { lease: { interval: soon } }\n", "tollgate.yaml:1:29: error: `soon` is not a duration\n"),
        ("redis: { prefix: \"x{q}:\" }\n", "tollgate.yaml:1:18: error: a prefix has no braces"),
    ] {
        let output = serve_with(config);
        assert!(output.stderr.starts_with(expected), "{config}: {}", output.stderr);
        assert!(output.stderr.contains(" | "), "the line is shown: {}", output.stderr);
    }
    let both = serve_with("listen: here\nstore_memory: 1\nlistn: x\n");
    assert!(both.stderr.matches(": error: ").count() >= 2, "all at once: {}", both.stderr);
}

#[test]
fn errors_on_the_command_line_are_reported() {
    for (arguments, expected) in [
        (["--store", "redis//localhost"], "error: the store's address cannot be used: it does not begin"),
        (["--listen", "here"], "error: `here` is not an address to listen on"),
        (["--store-memory", "7 pounds"], "error: `7 pounds` is not a size"),
        (["--repository", "maybe"], "error: `maybe` is not a value of `repository`; use on or off"),
        (
            ["--control-plane", "10.0.0.5:9090"],
            "error: `10.0.0.5:9090` is not the address of a control plane",
        ),
        (["--config", "no-such-file.yaml"], "error: cannot read no-such-file.yaml: No such file"),
    ] {
        let output = run(tollgate(["serve"]).args(arguments));
        assert_eq!(output.code, Some(1), "{arguments:?}");
        assert!(output.stderr.starts_with(expected), "{arguments:?}: {}", output.stderr);
        assert_eq!(output.stdout, "");
    }
    let output = run(&mut tollgate(["serve", "--lissten", "x"]));
    assert_eq!(output.code, Some(2), "{output:?}");
    assert!(output.stderr.contains("--listen"), "{}", output.stderr);
    assert_eq!(run(&mut tollgate([""; 0])).code, Some(2));
}

/// A setting without effect would be relied upon.
#[test]
fn a_setting_without_effect_is_an_error() {
    let gateway = ["gateway", "--upstream", "127.0.0.1:1", "--gateway-listen", "127.0.0.1:0"];
    for (command, flag, value, expected) in [
        (
            &gateway[..],
            "--listen",
            "127.0.0.1:0",
            "error: --listen has no effect: `tollgate gateway` has no check API",
        ),
        (
            &gateway[..],
            "--resp-listen",
            "127.0.0.1:0",
            "error: --resp-listen has no effect: `tollgate gateway` has no RESP door",
        ),
        (
            &gateway[..],
            "--grpc-listen",
            "127.0.0.1:0",
            "error: --grpc-listen has no effect: `tollgate gateway` has no RLS door",
        ),
        (
            &["serve"],
            "--resp-password-file",
            "x",
            "error: --resp-password-file has no effect: `resp_listen` opens no RESP door",
        ),
        (
            &["serve"],
            "--emergency",
            "on_outage",
            "error: --emergency has no effect: `on_outage` applies to a shared store",
        ),
        (
            &["serve"],
            "--rules-poll",
            "1s",
            "error: --rules-poll has no effect: there is neither a shared store nor a control plane to poll",
        ),
        (
            &["serve", "--control-plane", "http://127.0.0.1:1"],
            "--rules",
            "x",
            "error: --rules has no effect: the rules come from the control plane",
        ),
    ] {
        let output = run(tollgate(command).args([flag, value]));
        assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""), "{flag}");
        assert!(output.stderr.starts_with(expected), "{}", output.stderr);
    }
    for (command, config, expected) in [
        (
            "gateway",
            "upstream: x\nlisten: 127.0.0.1:0\n",
            "tollgate.yaml:2:1: error: `listen` has no effect: ",
        ),
        (
            "gateway",
            "upstream: x\nforward_auth: { deny_status: 403 }\n",
            "tollgate.yaml:2:1: error: `forward_auth` has no effect: ",
        ),
        (
            "serve",
            "store: memory\nredis: { timeout: 5ms }\n",
            "tollgate.yaml:2:1: error: `redis` has no effect: ",
        ),
        ("serve", "grpc: { descriptors: independent }\n", "tollgate.yaml:1:1: error: `grpc` has no effect: "),
        (
            "serve",
            "resp: { tls: { certificate: a, key: b } }\n",
            "tollgate.yaml:1:1: error: `resp` has no effect: ",
        ),
        (
            "serve",
            "control_token_file: x\n",
            "tollgate.yaml:1:1: error: `control_token_file` has no effect: ",
        ),
        (
            "serve",
            "repository: off\non_failed_rule_tests: warn\n",
            "tollgate.yaml:2:1: error: `on_failed_rule_tests` has no effect: ",
        ),
    ] {
        let folder = folder_with(config);
        let output = run(tollgate([command, "--config", "tollgate.yaml"]).current_dir(folder.path()));
        assert_eq!(output.code, Some(1), "{config}");
        assert!(output.stderr.starts_with(expected), "{config}: {}", output.stderr);
        assert!(output.stderr.contains("hint: remove it"), "{}", output.stderr);
    }
}

/// Environments are inherited: a variable that is left in one must not prevent a start.
#[test]
fn a_variable_without_effect_is_a_warning() {
    let mut command = tollgate(["gateway", "--upstream", "127.0.0.1:1", "--gateway-listen", "127.0.0.1:0"]);
    for (name, value) in [("LISTEN", "127.0.0.1:0"), ("EMERGENCY", "on_outage"), ("RULES_POLL", "1s")] {
        command.env(format!("TOLLGATE_{name}"), value);
    }
    let server = TollgateProcess::from(&mut command);
    for name in ["LISTEN", "EMERGENCY", "RULES_POLL"] {
        let line = server.wait_for_log(&format!("TOLLGATE_{name} has no effect: "));
        assert!(line.contains("WARN"), "{line}");
    }
}

#[test]
fn errors_in_abuse_settings_are_reported() {
    for (config, expected) in [
        ("abuse: { hot_per_second: 0 }", "every key would be reported"),
        ("abuse: { deny: { lasts: 2days } }", "this is out of range"),
        ("abuse: { deny: { after: 0 } }", "this is out of range"),
        ("abuse: { deny: { last: 1m } }", "did you mean `lasts`?"),
    ] {
        let output = serve_with(config);
        assert!(output.stderr.contains(expected), "{config}: {output:?}");
    }
    let folder =
        folder_with("abuse: { hot_per_second: 500, deny: { after: 5s, lasts: 2m } }\nlisten: 127.0.0.1:0\n");
    let mut command = tollgate(["serve", "--config", "tollgate.yaml"]);
    TollgateProcess::from(command.current_dir(folder.path()));
}
