//! `tollgate gateway`, and `serve` with a gateway.

use crate::http_client::HttpClient;
use crate::process::{TollgateProcess, run, tollgate};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::thread;
use tempfile::TempDir;
use tollgate_testbed::{RedisServer, wait_until};

/// A server that answers one request on each connection with "hello", and never answers requests for `/hold`. At
/// `/tunnel` it switches the protocol, and at `/seen` it answers with the head of the request.
pub fn upstream() -> SocketAddr {
    const CLOSING: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length:";
    const TUNNEL: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let mut seen = Vec::new();
            while !seen.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if stream.read(&mut byte).unwrap_or(0) == 0 {
                    break;
                }
                seen.push(byte[0]);
            }
            let seen = String::from_utf8_lossy(&seen);
            let answer = match seen.split(' ').nth(1) {
                Some("/hold") => String::new(),
                Some("/tunnel") => TUNNEL.to_owned(),
                Some("/seen") => format!("{CLOSING} {}\r\n\r\n{seen}", seen.len()),
                _ => format!("{CLOSING} 5\r\n\r\nhello"),
            };
            let _ = stream.write_all(answer.as_bytes());
            if !answer.starts_with(CLOSING) {
                held.push(stream);
            }
        }
    });
    address
}

#[test]
fn a_gateway_needs_only_an_upstream() {
    let upstream = format!("http://{}", upstream());
    let server = TollgateProcess::from(&mut tollgate([
        "gateway",
        "--upstream",
        &upstream,
        "--gateway-listen",
        "127.0.0.1:0",
    ]));
    assert!(server.start_message.contains(&format!("to {upstream}")), "{}", server.start_message);
    assert!(!server.start_message.contains("/v1/check"), "{}", server.start_message);
    let mut client = server.client();
    for _ in 0..5 {
        assert_eq!(client.get("/x").body, "hello");
    }
    assert_eq!(client.get("/x").status, 429, "the built-in example's rule");
    server.signal("TERM");
    server.wait_for_log("stopped; all requests were drained");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn serve_opens_the_gateway_beside_the_check_api() {
    let mut command = tollgate(["serve", "--listen", "127.0.0.1:0"]);
    command.env("TOLLGATE_UPSTREAM", upstream().to_string()).env("TOLLGATE_GATEWAY_LISTEN", "127.0.0.1:0");
    let server = TollgateProcess::from(&mut command);
    assert_eq!(server.client().check("alice", "/").status, 200);
    assert_eq!(HttpClient::connect(server.gateway_address()).get("/").body, "hello");
}

/// Two requests may be in flight over all gateways. The gateway that holds both slots is killed.
#[test]
fn slots_of_a_killed_gateway_are_released() {
    let (redis, folder) = (RedisServer::start(&[]), tempfile::tempdir().unwrap());
    let (rules, config) = (folder.path().join("rules.yaml"), folder.path().join("tollgate.yaml"));
    std::fs::write(&rules, "rules: [{ id: busy, algorithm: concurrency, limit: 2, on_store_failure: deny }]")
        .unwrap();
    // On a busy machine, replies of the store may be slow.
    std::fs::write(&config, "redis: { timeout: 5s }").unwrap();
    let upstream = upstream().to_string();
    let gateway = || {
        let mut command = tollgate(["gateway", "--gateway-listen", "127.0.0.1:0", "--upstream", &upstream]);
        command.arg("--store").arg(redis.url()).arg("--rules").arg(&rules).arg("--config").arg(&config);
        TollgateProcess::from(&mut command)
    };
    let (dies, lives) = (gateway(), gateway());
    let (mut one, mut two, mut survivor) = (dies.client(), dies.client(), lives.client());
    for client in [&mut survivor, &mut one, &mut two] {
        wait_until("the store is in use", || client.get("/x").status == 200);
    }
    let count_slots = r"
        local taken = 0
        for _, key in ipairs(redis.call('KEYS', '*:f:*')) do taken = taken + redis.call('ZCARD', key) end
        return taken";
    let taken = || redis.cli(&["EVAL", count_slots, "0"]).trim().parse::<u32>().unwrap();
    // The slot of another node's last request may be released with a delay.
    wait_until("no slot is taken", || taken() == 0);
    one.send("GET /hold HTTP/1.1\r\nHost: test\r\n\r\n");
    two.send("GET /hold HTTP/1.1\r\nHost: test\r\n\r\n");
    wait_until("both slots are taken", || taken() == 2);
    assert_eq!((survivor.get("/x").status, survivor.get("/x").status), (429, 429));
    dies.signal("KILL");
    wait_until("the slots are released", || survivor.get("/x").status == 200);
}

#[test]
fn a_gateway_is_configured_by_the_settings_file() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "gateway_listen: 127.0.0.1:0\nidentity: {{ api_key: {{ query: key }} }}\ngateway:\n  header_doubles: pass\n  access_log: access.log\n  upstreams:\n    web:\n      addresses: [{}]\n      retries: 0\n  routes:\n    - {{ hosts: [localhost], paths: [/web], upstream: web }}\n",
        upstream()
    );
    let path = folder.path().join("tollgate.yaml");
    std::fs::write(&path, config).unwrap();
    let server = TollgateProcess::from(tollgate(["gateway", "--config"]).arg(&path));
    let mut client = server.client();
    assert_eq!((client.get("/web/x?key=secret").status, client.get("/other").status), (200, 404));
    drop(client);
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    wait_until("both requests are logged", || {
        let log = std::fs::read_to_string(folder.path().join("access.log")).unwrap();
        log.lines().count() == 2
            && log.contains(r#""target":"/web/x?key=…","protocol":"HTTP/1.1","status":200"#)
    });
    let mode = std::fs::metadata(folder.path().join("access.log")).unwrap().permissions().mode();
    assert_eq!(mode & 0o137, 0, "{mode:o}: not readable by others");
}

/// A gateway with this in its section, and one request an hour for each client.
fn gateway_with(section: &str) -> (TempDir, TollgateProcess) {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "rules: rules.yaml\ngateway_listen: 127.0.0.1:0\ngateway:\n  upstreams: {{ web: {{ addresses: [{}] }} }}\n  {section}\n",
        upstream()
    );
    std::fs::write(folder.path().join("rules.yaml"), "rules: [{ id: one, limit: 1/h }]").unwrap();
    std::fs::write(folder.path().join("tollgate.yaml"), config).unwrap();
    let server =
        TollgateProcess::from(tollgate(["gateway", "--config"]).arg(folder.path().join("tollgate.yaml")));
    (folder, server)
}

#[test]
fn header_doubles_pass_if_configured() {
    for (section, is_there) in [("", false), ("header_doubles: drop", false), ("header_doubles: pass", true)]
    {
        let (_folder, server) = gateway_with(section);
        let mut client = server.client();
        client.send("GET /seen HTTP/1.1\r\nHost: test\r\nX_Forwarded_For: 192.0.2.1\r\nX_Other: x\r\n\r\n");
        let seen = client.reply().body;
        assert_eq!(seen.contains("x_forwarded_for: 192.0.2.1\r\n"), is_there, "{section}: {seen}");
        assert!(seen.contains("x_other: x\r\n"), "{section}: {seen}");
    }
}

#[test]
fn address_is_refused_after_most_rejections() {
    for (section, most) in [("", 1_000), ("most_rejections: 3", 3)] {
        let (_folder, server) = gateway_with(section);
        let (mut client, mut other) = (server.client(), server.client());
        assert_eq!(client.get("/").status, 200);
        for number in 1..=most {
            let reply = client.get("/");
            let expected = if number == most { "close" } else { "" };
            assert_eq!((reply.status, reply.header("connection")), (429, expected), "{number} of {most}");
        }
        assert!(client.closed().is_empty());
        other.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n");
        assert!(other.closed().is_empty(), "another connection, after {most}");
        assert!(server.client().closed().is_empty(), "a new connection, after {most}");
    }
}

#[test]
fn configured_timeouts_apply_to_bodies_and_tunnels() {
    let hold = "GET /hold HTTP/1.1\r\nHost: test\r\n\r\n";
    let slow = "POST /hold HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nx";
    for (section, request, status) in [
        ("bodies: { total_timeout: 300ms }", hold, 504),
        ("routes: [{ upstream: web, bodies: { total_timeout: 300ms } }]", hold, 504),
        ("bodies: { min_rate: 1000, grace: 300ms }", slow, 408),
        ("routes: [{ upstream: web, bodies: { min_rate: 1000, grace: 300ms } }]", slow, 408),
    ] {
        let (_folder, server) = gateway_with(section);
        let mut client = server.client();
        client.send(request);
        assert_eq!(client.reply().status, status, "{section}");
    }
    let (_folder, server) = gateway_with("idle_timeout: 200ms");
    let mut client = server.client();
    client.send("GET /tunnel HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n");
    assert_eq!(client.reply().status, 101);
    assert!(client.closed().is_empty());
}

#[test]
fn errors_in_gateway_settings_have_positions() {
    let folder = tempfile::tempdir().unwrap();
    for (config, expected) in [
        ("gateway:\n  upstrems: {}\n", "tollgate.yaml:2:3: error: unknown field `upstrems`"),
        (
            "gateway:\n  upstreams:\n    web: { addresses: [\"ftp://x\"] }\n",
            "tollgate.yaml:3:24: error: `ftp://x` is not an upstream address: only http and https are supported",
        ),
        (
            "gateway:\n  upstreams:\n    web: { addresses: [\"http://x\"] }\n  routes:\n    - { upstream: wbe }\n",
            "tollgate.yaml:5:19: error: there is no upstream `wbe`; there are: web",
        ),
        (
            "gateway:\n  upstreams: { web: { addresses: [x] } }\n  routes:\n    - { hosts: [a, \"b,c\"], upstream: web }\n",
            "tollgate.yaml:4:20: error: `b,c` is not a host; write it like shop.example or *.example",
        ),
        (
            "gateway:\n  upstreams: { web: { addresses: [x] } }\n  routes:\n    - { paths: [/a, /b%2fc], upstream: web }\n",
            "tollgate.yaml:4:21: error: `/b%2fc` matches nothing: the path has a `%2F`",
        ),
        (
            "upstream: http://x/y\n",
            "tollgate.yaml:1:11: error: `http://x/y` is not an upstream address: it has a path",
        ),
        (
            "upstream: x\nidentity:\n  client_ip: { trusted: [nobody] }\n",
            "tollgate.yaml:3:26: error: `nobody` is not an address or a network",
        ),
        (
            "upstream: x\nidentity:\n  user: { jwt: sub }\n  jwt: { algorithm: RS256, key_file: gone.pem }\n",
            "tollgate.yaml:4:38: error: ",
        ),
        (
            "gateway:\n  upstreams: { a: { addresses: [x], connect_timeout: soon } }\n",
            "tollgate.yaml:2:54: error: `soon` is not a duration",
        ),
        (
            "gateway:\n  upstreams: { a: { addresses: [x], on_client_gone: wait } }\n",
            "tollgate.yaml:2:53: error: ",
        ),
        (
            "gateway:\n  upstreams: { a: { addresses: [x], most_failures: 0 } }\n",
            "tollgate.yaml:2:52: error: `0` is out of range: `most_failures` must be between 1 and 1000",
        ),
        (
            "upstream: x\ngateway:\n  bodies: { min_rate: 5000000 }\n",
            "tollgate.yaml:3:23: error: `5000000` is out of range: `min_rate` is in bytes per second, at most 1000000; 0 for none",
        ),
        ("upstream: x\ngateway:\n  bodies: { rate: 5 }\n", "tollgate.yaml:3:13: error: unknown field `rate`"),
        (
            "gateway:\n  upstreams: { a: { addresses: [x] } }\n  routes: [{ upstream: a, bodies: { total_timeout: never } }]\n",
            "tollgate.yaml:3:52: error: `never` is not a duration",
        ),
        (
            "upstream: x\ngateway: { refuse_for: 2days }\n",
            "tollgate.yaml:2:24: error: `2days` is out of range: `refuse_for` must be between 1ms and 1day",
        ),
    ] {
        std::fs::write(folder.path().join("tollgate.yaml"), config).unwrap();
        let output = run(tollgate(["gateway", "--config", "tollgate.yaml"]).current_dir(folder.path()));
        assert_eq!(output.code, Some(1));
        assert!(output.stderr.starts_with(expected), "{config}: {}", output.stderr);
    }
    let output = run(&mut tollgate(["gateway"]));
    assert!(output.stderr.starts_with("error: a gateway needs an upstream"), "{}", output.stderr);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&mut tollgate(["gateway", "--upstream", "127.0.0.1:1", "--gateway-listen", &address]));
    assert!(
        output.stderr.contains("hint: choose another address with --gateway-listen"),
        "{}",
        output.stderr
    );
}
