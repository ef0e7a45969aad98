//! No error shows a secret. Every kind of error is provoked with a marker in place of a password, a secret or an API
//! key.

use crate::process::{CommandOutput, TollgateProcess, run, tollgate};
use std::process::Command;
use tempfile::TempDir;

const MARKER: &str = "hunter2Zq7";

fn folder_with(file: &str, text: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(file), text).unwrap();
    folder
}

/// Runs a command that must fail, and asserts that its output does not contain the marker.
fn assert_no_secret(command: &mut Command, case: &str) -> CommandOutput {
    let output = run(command.env("TOLLGATE_LOG", "trace"));
    assert_ne!(output.code, Some(0), "{case}\n{output:?}");
    assert!(!output.stderr.is_empty(), "{case}");
    let all = format!("{}{}", output.stdout, output.stderr);
    assert!(!all.to_lowercase().contains(&MARKER.to_lowercase()), "{case}\n{all}");
    output
}

/// Settings files with errors; `@` is the marker.
const SETTINGS: &[&str] = &[
    // Invalid store URLs.
    "store: redis://:@\n",
    "store: redis:/:@@host\n",
    "store: redis://user:@@host:port\n",
    "store: redis://user:@\n",
    "store: 'redis://:@@h1,h2'\n",
    "store: redis://:x?@@host\n",
    "store: \"redis-sentinel://:@@h1,h2\"\n",
    "store: redis-sentinel://h/name/x?sentinel_password=@\n",
    "store: rediss://:@@host?@=1\n",
    "store: >-\n  redis://:@@host:x\n",
    "store: [redis://:@@host]\n",
    "store: { url: redis://:@@host }\n",
    "stor: redis://:@@host\n",
    "STORE: redis://:@@host\n",
    "store: redis://host\nstore: redis://:@@host\n",
    "store: &s redis://:@@host:x\nupstream: *s\n",
    "listen: redis://:@@host\n",
    "upstream: http://u:@@host/path\n",
    "upstream: u:@@host/path\n",
    "gateway: { upstreams: { a: { addresses: ['ftp://u:@@h'] } } }\n",
    // Other secrets.
    "redis: { secret: @ }\n",
    "redis:\n  secret: |\n    @\n  lease: { interval: soon }\n",
    "redis: { secret: \"\\u0068unter2Zq7\", timeout: 9h }\n",
    "redis: { secret: [@] }\n",
    "redis: { secret: { @: 1 } }\n",
    "redis: { secret: &x @, prefix: [*x] }\n",
    "redis: { scret: x, secret: @, timeout: 1h }\n",
    "redis: { secret: a, secret: @ }\n",
    "<<: { redis: { secret: @ } }\nredis: { timeout: 1h }\n",
    "redis: { password: @ }\n",
    "redis: { pasword: @ }\n",
    "redis: { auth: @ }\n",
    "redis: { secrt: @ }\n",
    "identity: { jwt: { algorithm: HS256, secrt: @ } }\n",
    "redis: { password: @, # old: @\n timeout: 1h }\n",
    "redis: { timeout: 1h } # secret was @\n",
    "identity: { jwt: { algorithm: HS256, secret: @ } }\n",
    "identity: { jwt: { algorithm: HS256, key: '@' } }\n",
    "identity: { jwt: { algorithm: HS1, secret_files: x, token_secret: @ } }\n",
    "identity: { api_key: @ }\n",
    "identity: { api_key: [@], user: 5 }\n",
    "identity: { api_key: @, heeder: x }\n",
    "{\"store\": \"redis://:@@host\", \"listen\": \"here\"}\n",
    "telemetry: { otlp: { endpoint: 'http://u:@@h' } }\n",
    "telemetry: { otlp: { endpoint: 'u:@@h' } }\n",
    "telemetry: { otlp: { endpoint: 'http://h:1', headers: { authorization: 'Bearer @' }, interval: 0s } }\n",
    "telemetry: { otlp: { endpoint: 'http://h:1', headers: { x-team: [@] } } }\n",
    "telemetry: { otlp: { endpoint: 'http://h:1', headers: { x-team: \"@\\n\" } } }\n",
    "telemetry: { otlp: { endpoint: 'http://h:1', headers: { x bad: @ } } }\n",
    "telemetry: { otlp: { headrs: { x-team: @ } } }\n",
    "telemetry: { oltp: { headers: { x-team: @ } } }\n",
    // Invalid YAML.
    "telemetry: { otlp: { headers: { x-team: @ }\n",
    "store: redis://:@@host\n listen: x\n",
    "store: 'redis://:@@host\nlisten: x\n",
    "store: redis://:@@host: x\n",
    "redis:\n  secret: |\n@\n",
    "redis:\n  secret:\n  - @\n  x\n",
    "redis: { secret: @, listen: [ }\n",
    "redis: { secret: [\n@,\n], ] }\n",
    "secret: \"abc\n@\n",
    "secret: @: x: y\n",
    "\tsecret: @\n",
    "redis:\n\tsecret: @\n",
    "password: @ }\n",
    "{\"secret\": \"@\" \"x\"}\n",
    "x: &a @ ]\nsecret: *a\n",
    "a: *b\nsecret: @\n",
    "--- {}\n--- { secret: @ }\n",
    "secret: @ # ] \n]\n",
];

#[test]
fn no_error_in_the_settings_shows_a_secret() {
    for case in SETTINGS {
        let text = case.replace("@@", "\u{1}").replace('@', MARKER).replace('\u{1}', &format!("{MARKER}@"));
        let folder = folder_with("tollgate.yaml", &text);
        for command in ["serve", "gateway"] {
            let mut command = tollgate([command, "--config", "tollgate.yaml", "--listen", "127.0.0.1:0"]);
            let output = assert_no_secret(command.current_dir(folder.path()), &text);
            assert!(output.stderr.contains("tollgate.yaml"), "{text}\n{}", output.stderr);
        }
    }
}

/// Rule files with errors; `@` is the marker.
const RULES: &[&str] = &[
    "rules: [{ id: a, limit: 5/s }]\nalow: [@]\n",
    "rules: [{ id: a, limit: 5/s }]\ndenny: [@]\n",
    "rules: [{ id: a, limit: 5/s, match: { api_key_patern: '@*' } }]\n",
    "tiers: { pro: { limit: 5/s, kyes: [@] } }\nrules: [{ id: a, limit: 5/s }]\n",
    "rules: [{ id: a, limit: 5/s, overide: { @: { limit: 9/s } } }]\n",
    "deny: [@, 10.0.0/24]\n",
    "deny: [10.0.0/24]\nallow: [{ key: @, expires: tomorrow }]\n",
    "deny:\n  - @\n  - { key: '@', expire: 2027-01-01 }\n",
    "deny: { @: true }\n",
    "deny: @\n",
    "allow: [[@]]\n",
    "whitelist: [@*, x: y]\n",
    "rules:\n  - { id: a, limit: 5/s, override: { @: 5 } }\n",
    "rules:\n  - { id: a, limit: 5/s, override: { '@*': { limit: 5/s } } }\n",
    "rules:\n  - { id: a, limit: 5/s, override: { @: { limit: 0/s } } }\n",
    "rules:\n  - { id: a, limit: 5/s, override: { @: { limit: 5/s }, @: { limit: 6/s } } }\n",
    "rules:\n  - { id: a, limit: 5/s, override: [@] }\n",
    "rules:\n  - { id: a, limit: 5/s, @: { limit: 5/s } }\n",
    "rules:\n  - { id: a, limit: 5/s, match: { api_key_pattern: @, ip: x } }\n",
    "rules:\n  - { id: a, limit: 5/s, match: { api_key_pattern: [@], api_keys: [@] } }\n",
    "rules:\n  - { id: a, limit: 5/s, match: { key: @ } }\n",
    "rules:\n  - { id: a, limit: 5 a second, key: @ }\n",
    "tiers:\n  free: { limit: 5/s, keys: [@] }\n  pro: { limit: 6/s, keys: [@] }\n",
    "tiers:\n  free: { limit: 5/s, keys: { @: 1 } }\n",
    "tiers:\n  free: { limt: 5/s, api_key_pattern: @ }\n",
    "rules: [{ id: a, limit: 5/s }]\ntests:\n  - { name: t, request: { key: @, ip: x }, steps: [] }\n",
    "rules: [{ id: a, limit: 5/s }]\ntests:\n  - { name: t, steps: [{ request: { key: @ }, exp: x }] }\n",
    "tests:\n  - { name: t, request: { key: [@] }, steps: [] }\n",
    "rules: [{ id: a, limt: 5/s }] # not @\n",
    // Invalid YAML.
    "deny:\n- @\n- ]\n",
    "deny: [@,\n@\n: x\n",
    "rules:\n  - id: a\n    override:\n      @: [\n",
    "tiers:\n  free:\n    keys:\n    - @: : x\n   bad\n",
    "rules: [{ id: a, match: { api_key_pattern: @ } ]\n",
    "deny:\n  @\n  - x\n",
];

#[test]
fn no_error_in_the_rules_shows_a_key() {
    for case in RULES {
        let text = case.replace('@', &format!("sk_{MARKER}"));
        let folder = folder_with("rules.yaml", &text);
        for arguments in [
            ["rules", "check", "rules.yaml"].as_slice(),
            &["rules", "test", "rules.yaml"],
            &["rules", "explain", "rules.yaml", "--key", "a"],
            &["simulate", "--rules", "rules.yaml"],
            &["serve", "--listen", "127.0.0.1:0", "--rules", "rules.yaml"],
        ] {
            assert_no_secret(
                tollgate(arguments).current_dir(folder.path()),
                &format!("{arguments:?}\n{text}"),
            );
        }
    }
}

#[test]
fn a_failed_rule_reload_shows_no_key() {
    let folder = folder_with("rules.yaml", "rules: [{ id: a, limit: 5/s }]\n");
    let path = folder.path().join("rules.yaml");
    let server = TollgateProcess::start(["--rules".as_ref(), path.as_os_str()]);
    server.wait_for_log("revision=1");
    std::fs::write(&path, format!("deny: [sk_{MARKER}, 10.0.0/24]\n")).unwrap();
    let line = server.wait_for_log("| deny:");
    assert!(line.contains("deny: [***, 10.0.0/24]"), "{line}");
}

#[test]
fn no_error_of_the_command_line_shows_a_secret() {
    let url = format!("redis://:{MARKER}@127.0.0.1:1/x");
    let flags: &[&[&str]] = &[
        &["serve", "--store", &url],
        &["serve", &url],
        &["serve", &format!("--stor={url}")],
        &["serve", "--listen", &url],
        &["serve", "--upstream", &url],
        &["serve", "--store-memory", &url],
        &["serve", "--emergency", &url],
        &[&url],
        &["rules", "check", "x.yaml", "--store", MARKER],
        &["rules", "explain", "x.yaml", MARKER],
        &["rules", MARKER],
    ];
    for arguments in flags {
        assert_no_secret(&mut tollgate(*arguments), &format!("{arguments:?}"));
    }
    for variable in ["STORE", "LISTEN", "UPSTREAM", "EMERGENCY", "STORE_MEMORY"] {
        let mut command = tollgate(["serve"]);
        assert_no_secret(command.env(format!("TOLLGATE_{variable}"), &url), variable);
        let mut help = tollgate(["serve", "--help"]);
        if variable == "STORE" || variable == "UPSTREAM" {
            let text = run(help.env(format!("TOLLGATE_{variable}"), &url)).stdout;
            assert!(text.contains("TOLLGATE_STORE") && !text.contains(MARKER), "{text}");
        }
    }
}

#[test]
fn a_store_that_cannot_be_reached_is_named_without_its_password() {
    // Nothing listens on the port: the log reports the shard as unavailable.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("redis://user:{MARKER}@127.0.0.1:{port}");
    let mut command = tollgate(["serve", "--listen", "127.0.0.1:0"]);
    command.env("TOLLGATE_LOG", "trace").env("TOLLGATE_STORE", &url);
    let server = TollgateProcess::from(&mut command);
    assert!(
        server.start_message.contains(&format!("redis://user:***@127.0.0.1:{port}")),
        "{}",
        server.start_message
    );
    server.client().check("a", "/");
    server.signal("TERM");
    let log = server.rest_of_log();
    assert!(log.contains(&port.to_string()), "{log}");
    assert!(!log.contains(MARKER), "{log}");
}

#[test]
fn explain_shows_no_key_of_another_client() {
    let text = format!(
        "rules: [{{ id: a, limit: 5/s, match: {{ api_key_pattern: sk_live_{MARKER} }} }}]\n\
         deny: [user_{MARKER}]\n"
    );
    let folder = folder_with("rules.yaml", &text);
    let explain = |arguments: [&str; 2]| {
        let mut command = tollgate(["rules", "explain", "rules.yaml"]);
        run(command.args(arguments).current_dir(folder.path())).stdout
    };
    let text = explain(["--key", "other"]);
    assert!(text.contains("api_key_pattern sk_live_…") && !text.contains(MARKER), "{text}");
    let text = explain(["--user", &format!("user_{MARKER}")]);
    assert!(text.contains("on the deny list by `user_hu…`") && !text.contains(MARKER), "{text}");
}
