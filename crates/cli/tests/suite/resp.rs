//! The RESP door of the binary, with real Redis clients: redis-cli, redis-benchmark, redis-py and the `redis` crate.

use crate::process::{PATIENCE, TollgateProcess, run, tollgate};
use redis::Commands;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;
use tollgate_testbed::{RedisServer, TestCertificates};

const RULES: &str = "rules: [{ id: orders, endpoint: /v1/orders, key: api_key, limit: 3/h }]\n";

/// A server with a RESP door, and its port.
struct RespServer {
    process: TollgateProcess,
    port: u16,
    _folder: TempDir,
}

fn serve(arguments: &[&str], password: Option<&str>) -> RespServer {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("rules.yaml");
    std::fs::write(&rules, RULES).unwrap();
    let mut command = tollgate(["serve", "--listen", "127.0.0.1:0", "--resp-listen", "127.0.0.1:0"]);
    command.arg("--rules").arg(&rules).args(arguments);
    command.envs(password.map(|password| ("TOLLGATE_RESP_PASSWORD", password)));
    let process = TollgateProcess::from(&mut command);
    let (_, address) =
        process.start_message.split_once("  resp    redis://").expect("it names the RESP door");
    let (address, _) = address.split_once('\n').unwrap();
    let (_, port) = address.rsplit_once(':').unwrap();
    RespServer { port: port.parse().unwrap(), process, _folder: folder }
}

fn redis_cli(port: u16, arguments: &[&str]) -> String {
    let output = Command::new("redis-cli").args(["-p", &port.to_string()]).args(arguments).output().unwrap();
    text(&output)
}

fn text(output: &Output) -> String {
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{error}");
    out.trim_end().to_owned()
}

#[test]
fn redis_cli_throttles() {
    let server = serve(&[], None);
    let port = server.port;
    assert_eq!(redis_cli(port, &["PING"]), "PONG");
    let throttle = ["CL.THROTTLE", "user123", "15", "30", "60"];
    assert_eq!(redis_cli(port, &throttle), "0\n16\n15\n-1\n2");
    assert_eq!(redis_cli(port, &["-3", "CL.THROTTLE", "other", "0", "1", "3600"]), "0\n1\n0\n-1\n3600");
    assert_eq!(redis_cli(port, &["CL.THROTTLE", "other", "0", "1", "3600"]), "1\n1\n0\n3600\n3600");
    assert_eq!(redis_cli(port, &["TOLLGATE.CHECK", "sk_1", "/v1/orders"]), "0\n3\n2\n-1\n1200\norders");
    assert!(redis_cli(port, &["INFO"]).contains("tollgate_version:"));
    assert!(redis_cli(port, &["COMMAND"]).contains("cl.throttle"));
    assert_eq!(redis_cli(port, &["GET", "x"]), "ERR unknown command 'GET'");
}

#[test]
fn redis_benchmark_runs_to_its_end() {
    let server = serve(&[], None);
    let port = server.port.to_string();
    let output = Command::new("redis-benchmark")
        .args(["-p", &port, "-n", "40000", "-c", "20", "-P", "16", "-r", "1000", "-q"])
        .args(["CL.THROTTLE", "key:__rand_int__", "10", "100", "60"])
        .output()
        .unwrap();
    let shown = text(&output);
    assert!(shown.contains("requests per second"), "{shown}");
    // Every command was decided once, at this door.
    let metrics = server.process.admin().get("/metrics").body;
    let decided = metrics.lines().filter(|line| {
        line.starts_with("tollgate_decisions_total{") && line.contains(r#"rule="request_limit""#)
    });
    let decided: f64 = { decided }.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
    assert_eq!(decided, 40_000.0, "{metrics}");
    assert!(metrics.contains(r#"door="resp""#));
}

/// The virtual environment that `./check` makes.
fn python() -> PathBuf {
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/redis-py/bin/python");
    match std::env::var_os("TOLLGATE_REDIS_PY") {
        Some(path) => path.into(),
        None if made.exists() => made,
        None => "python3".into(),
    }
}

#[test]
fn redis_py_throttles() {
    let server = serve(&[], Some("hunter2"));
    let port = server.port;
    let script = format!(
        r#"
import redis
for protocol in (2, 3):
    client = redis.Redis(port={port}, password="hunter2", protocol=protocol, client_name="test")
    key = f"py{{protocol}}"
    assert client.ping()
    assert client.execute_command("CL.THROTTLE", key, 1, 1, 3600) == [0, 2, 1, -1, 3600]
    with client.pipeline(transaction=False) as pipeline:
        for _ in range(3):
            pipeline.execute_command("CL.THROTTLE", key, 1, 1, 3600)
        replies = pipeline.execute()
    assert [reply[0] for reply in replies] == [0, 1, 1], replies
    assert client.execute_command("TOLLGATE.CHECK", key, "/v1/orders") == [0, 3, 2, -1, 1200, b"orders"]
    assert client.execute_command("TOLLGATE.CHECK", key, "/") == [0, -1, -1, -1, 0, None]
    assert client.info()["tollgate_version"]
    assert client.command()["cl.throttle"]["arity"] == -5
    try:
        client.get("x")
        raise AssertionError("GET is no command")
    except redis.ResponseError as error:
        assert "unknown command" in str(error)
try:
    redis.Redis(port={port}, password="wrong").ping()
    raise AssertionError("the password is wrong")
except redis.AuthenticationError:
    pass
try:
    redis.Redis(port={port}).ping()
    raise AssertionError("there is no password")
except redis.AuthenticationError:
    pass
print("done")
"#
    );
    let output = Command::new(python()).arg("-c").arg(script).output().unwrap();
    assert_eq!(text(&output), "done", "redis-py is installed by `./check`");
}

fn throttle(connection: &mut redis::Connection, key: &str) -> Vec<i64> {
    redis::cmd("CL.THROTTLE").arg(key).arg(1).arg(1).arg(3_600).query(connection).unwrap()
}

#[test]
fn the_redis_crate_throttles() {
    let server = serve(&[], Some("hunter2"));
    let port = server.port;
    for protocol in ["resp2", "resp3"] {
        let url = format!("redis://:hunter2@127.0.0.1:{port}/?protocol={protocol}");
        let client = redis::Client::open(url).unwrap();
        let mut connection = client.get_connection_with_timeout(PATIENCE).unwrap();
        assert_eq!(throttle(&mut connection, protocol), [0, 2, 1, -1, 3_600]);
        let mut pipeline = redis::pipe();
        for _ in 0..2 {
            pipeline.cmd("CL.THROTTLE").arg(protocol).arg(1).arg(1).arg(3_600);
        }
        let replies: Vec<Vec<i64>> = pipeline.query(&mut connection).unwrap();
        assert_eq!([replies[0][0], replies[1][0]], [0, 1]);
        let error = connection.get::<_, String>("x").unwrap_err();
        assert!(error.to_string().contains("unknown command"), "{error}");
    }
    let client = redis::Client::open(format!("redis://:hunter3@127.0.0.1:{port}/")).unwrap();
    assert!(client.get_connection_with_timeout(PATIENCE).is_err());
    server.process.signal("TERM");
    assert!(server.process.wait().success(), "it stops, and closes idle connections");
}

/// TLS, with redis-cli and redis-py, which verify the certificate. Without TLS nothing is answered.
#[test]
fn clients_over_tls_throttle() {
    let certificates = TestCertificates::generate();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (name, text) in [
        ("authority.pem", &certificates.authority),
        ("certificate.pem", &certificates.certificate),
        ("key.pem", &certificates.key),
        ("tollgate.yaml", &"resp: { tls: { certificate: certificate.pem, key: key.pem } }\n".to_owned()),
    ] {
        std::fs::write(path(name), text).unwrap();
    }
    let mut command = tollgate(["serve", "--listen", "127.0.0.1:0", "--resp-listen", "127.0.0.1:0"]);
    let process = TollgateProcess::from(command.arg("--config").arg(path("tollgate.yaml")));
    let (_, address) = process.start_message.split_once("  resp    rediss://").expect("it has TLS");
    let port = address.split_once('\n').unwrap().0.rsplit_once(':').unwrap().1.to_owned();
    let authority = path("authority.pem");
    let output = Command::new("redis-cli")
        .args(["-p", &port, "--tls", "--cacert"])
        .arg(&authority)
        .args(["CL.THROTTLE", "tls", "1", "1", "3600"])
        .output()
        .unwrap();
    assert_eq!(text(&output), "0\n2\n1\n-1\n3600");
    let script = format!(
        r#"
import redis
client = redis.Redis(host="localhost", port={port}, ssl=True, ssl_ca_certs="{}")
assert client.execute_command("CL.THROTTLE", "tls", 1, 1, 3600) == [0, 2, 0, -1, 7200]
try:
    redis.Redis(port={port}, ssl=True).ping()
    raise AssertionError("the authority is not known")
except redis.ConnectionError as error:
    assert "certificate verify failed" in str(error), error
try:
    redis.Redis(port={port}).ping()
    raise AssertionError("there is no TLS")
except redis.ConnectionError:
    pass
print("done")
"#,
        authority.display()
    );
    let output = Command::new(python()).arg("-c").arg(script).output().unwrap();
    assert_eq!(text(&output), "done");
}

/// Two nodes on one Redis: one limit, and the failure policy when the store is gone.
#[test]
fn nodes_share_the_limits_of_requests() {
    let mut store = RedisServer::start(&[]);
    let arguments = ["--store", &store.url()];
    let nodes = [serve(&arguments, None), serve(&arguments, None)];
    let mut connections = nodes.each_ref().map(|node| {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", node.port)).unwrap();
        client.get_connection_with_timeout(PATIENCE).unwrap()
    });
    let limited: Vec<i64> = (0..4).map(|turn| throttle(&mut connections[turn % 2], "shared")[0]).collect();
    assert_eq!(limited, [0, 0, 1, 1]);
    store.kill();
    let reply = throttle(&mut connections[0], "fresh");
    assert_eq!(reply[..3], [0, 2, -1], "admitted by the failure policy: what remains is not known");
}

#[test]
fn the_settings_of_the_door_are_validated() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty");
    std::fs::write(&empty, "\n").unwrap();
    for (file, expected) in
        [("no-such-file", "cannot be read: No such file"), (empty.to_str().unwrap(), "is empty")]
    {
        let arguments = ["serve", "--resp-listen", "127.0.0.1:0", "--resp-password-file", file];
        let output = run(&mut tollgate(arguments));
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(output.stderr.contains(expected), "{}", output.stderr);
    }
    let file = folder.path().join("password");
    std::fs::write(&file, "hunter2\n").unwrap();
    let server = serve(&["--resp-password-file", file.to_str().unwrap()], None);
    let port = server.port;
    assert_eq!(redis_cli(port, &["PING"]), "NOAUTH Authentication required.");
    let authenticated = Command::new("redis-cli")
        .args(["-p", &port.to_string(), "PING"])
        .env("REDISCLI_AUTH", "hunter2")
        .output()
        .unwrap();
    assert_eq!(text(&authenticated), "PONG");
    let shown = &server.process.start_message;
    assert!(!shown.contains("hunter2"), "{shown}");
}
