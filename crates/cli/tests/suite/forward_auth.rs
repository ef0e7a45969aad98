//! Forward-auth with real proxies: nginx and Caddy with the shipped configurations, and the headers that Traefik sends.

use crate::gateway::upstream;
use crate::http_client::{HttpClient, HttpReply};
use crate::process::{TollgateProcess, example, run, tollgate};
use std::net::SocketAddr;
use tempfile::TempDir;
use tollgate_testbed::{CaddyServer, NginxServer, wait_until};

const RULES: &str = "
rules:
  - { id: api, endpoint: '/api/{*rest}', limit: 100/day }
  - { id: few, endpoint: /few, key: ip, limit: 1/day }
  - { id: writes, endpoint: /writes, methods: POST, limit: 1/day }
  - { id: seen, endpoint: /seen, limit: 1/day, on_exceed: { flag: {} } }
deny: [sk_bad]
";

struct ForwardAuthNode {
    folder: TempDir,
    process: TollgateProcess,
}

impl ForwardAuthNode {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
        let process = Self::serve(&folder, "127.0.0.1:0");
        Self { folder, process }
    }

    fn serve(folder: &TempDir, address: &str) -> TollgateProcess {
        let mut command = tollgate(["serve", "--listen", address, "--rules"]);
        TollgateProcess::from(command.arg(folder.path().join("rules.yaml")))
    }

    fn address(&self) -> SocketAddr {
        self.process.address
    }
}

/// The shipped configuration in front of this node and this app.
fn nginx(node: SocketAddr, app: SocketAddr) -> NginxServer {
    let text = std::fs::read_to_string(example("../nginx/nginx.conf")).unwrap();
    let (_, http) = text.split_once("http {").unwrap();
    let http = http.trim_end().strip_suffix('}').unwrap();
    NginxServer::start(&with_addresses(http, "listen 80;", "listen 127.0.0.1:PORT;", node, app))
}

fn caddy(node: SocketAddr, app: SocketAddr) -> CaddyServer {
    let text = std::fs::read_to_string(example("../caddy/Caddyfile")).unwrap();
    CaddyServer::start(&with_addresses(&text, ":80 {", ":PORT {\n\tbind 127.0.0.1", node, app))
}

fn with_addresses(text: &str, listen: &str, with: &str, node: SocketAddr, app: SocketAddr) -> String {
    let mut text = text.to_owned();
    for (shipped, own) in
        [(listen, with), ("127.0.0.1:8080", &node.to_string()), ("127.0.0.1:3000", &app.to_string())]
    {
        assert_eq!(text.matches(shipped).count(), 1, "{shipped}");
        text = text.replace(shipped, own);
    }
    text
}

fn send(proxy: SocketAddr, method: &str, target: &str, headers: &str) -> HttpReply {
    let mut client = HttpClient::connect(proxy);
    client.send(&format!("{method} {target} HTTP/1.1\r\nHost: shop.example\r\n{headers}\r\n"));
    client.reply()
}

/// Which proxy it is: what it can pass on differs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProxyKind {
    Nginx,
    Caddy,
}

/// What holds behind every proxy.
fn enforces_limits(proxy: SocketAddr, node: &ForwardAuthNode, kind: ProxyKind) {
    for left in (0..100).rev() {
        let reply = send(proxy, "GET", "/api/orders?x=1", "X-Api-Key: sk_1\r\n");
        assert_eq!((reply.status, reply.body.as_str()), (200, "hello"));
        assert_eq!(reply.header("x-ratelimit-limit"), "100");
        assert_eq!(reply.header("x-ratelimit-remaining"), left.to_string());
        assert_eq!(reply.header("retry-after"), "");
    }
    let reply = send(proxy, "GET", "/api/orders", "X-Api-Key: sk_1\r\n");
    assert_eq!((reply.status, reply.header("retry-after")), (429, "864"), "{}", reply.body);
    assert_eq!((reply.header("x-ratelimit-limit"), reply.header("x-ratelimit-remaining")), ("100", "0"));
    assert!(reply.header("x-ratelimit-reset").parse::<u64>().is_ok());
    let error = &reply.json()["error"];
    assert_eq!(error["code"], "RATE_LIMIT_EXCEEDED");
    assert_eq!(
        (&error["details"]["limit"], &error["details"]["retry_after_seconds"]),
        (&100.into(), &864.into())
    );
    if kind == ProxyKind::Caddy {
        assert_eq!(error["message"], "Rate limit of 100 requests per 86400 seconds exceeded");
        assert_eq!(reply.header("ratelimit-policy"), r#""api";q=100;w=86400"#);
    }
    // Another client is not affected; a request without a limit has no headers of one.
    assert_eq!(send(proxy, "GET", "/api/x", "X-Api-Key: sk_2\r\n").header("x-ratelimit-remaining"), "99");
    let reply = send(proxy, "GET", "/free", "X-Api-Key: sk_1\r\n");
    assert_eq!((reply.status, reply.header("x-ratelimit-limit")), (200, ""), "{:?}", reply.headers);
    let reply = send(proxy, "GET", "/free", "X-Api-Key: sk_bad\r\n");
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (403, Some("DENIED")));
    let reply = send(proxy, "GET", "/a%2fb", "X-Api-Key: sk_1\r\n");
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (400, Some("BAD_REQUEST")));

    // The method is that of the client.
    let length = "X-Api-Key: sk_1\r\nContent-Length: 0\r\n";
    let statuses = ["POST", "GET", "POST"].map(|method| send(proxy, method, "/writes", length).status);
    assert_eq!(statuses, [200, 200, 429]);

    // Only Tollgate sets flags.
    let flagged = |reply: &HttpReply| {
        let line = reply.body.lines().find(|line| line.to_lowercase().starts_with("x-ratelimit-flag:"));
        line.map(|line| line.split_once(':').unwrap().1.trim().to_owned())
    };
    let forged = "X-Api-Key: sk_1\r\nX-RateLimit-Flag: forged\r\n";
    let replies = [(); 2].map(|()| send(proxy, "GET", "/seen", forged));
    assert_eq!(flagged(&replies[0]), None, "{}", replies[0].body);
    assert_eq!(flagged(&replies[1]).as_deref(), Some("seen"), "{}", replies[1].body);

    // A client cannot have them removed.
    for connection in
        ["X-RateLimit-Flag", "keep-alive, x-ratelimit-flag", "close\r\nConnection: X-RATELIMIT-FLAG"]
    {
        let reply = send(proxy, "GET", "/seen", &format!("X-Api-Key: sk_1\r\nConnection: {connection}\r\n"));
        assert_eq!(flagged(&reply).as_deref(), Some("seen"), "{connection}: {}", reply.body);
    }

    no_header_of_a_client_changes_its_identity(proxy);

    let metrics = node.process.admin().get("/metrics").body;
    let is_counted = |line: &str| {
        line.starts_with("tollgate_decisions_total{")
            && line.contains(r#"door="auth""#)
            && line.contains(r#"outcome="limited""#)
    };
    assert!(metrics.lines().any(is_counted), "{metrics}");
}

/// `/few` is limited by address to one request.
fn no_header_of_a_client_changes_its_identity(proxy: SocketAddr) {
    assert_eq!(send(proxy, "GET", "/few", "").status, 200);
    for forged in [
        "",
        "X-Forwarded-For: 1.2.3.4\r\n",
        "X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 1.2.3.5\r\n",
        "Forwarded: for=1.2.3.4\r\n",
        "X-Real-IP: 1.2.3.4\r\n",
        "X-Original-URI: /free\r\n",
        "X-Original-URL: http://shop.example/free\r\n",
        "X-Original-Method: POST\r\n",
        "X-Forwarded-Uri: /free\r\n",
        "X-Forwarded-Method: POST\r\n",
        "X-Forwarded-Uri: /free\r\nX-Original-URI: /free\r\nX-Forwarded-For: 1.2.3.4\r\n",
        "X-Tollgate-Status: 200\r\nX-RateLimit-Limit: 5\r\n",
        "Connection: X-Forwarded-For, X-Forwarded-Uri, X-Original-URI, keep-alive\r\n",
    ] {
        let reply = send(proxy, "GET", "/few", forged);
        assert_eq!(reply.status, 429, "{forged}: {}", reply.body);
    }
    for target in
        ["/few?deny_status=401", "/few?deny_status=403", "/few?cost=0&x", "//few", "/x/../few", "/%66ew"]
    {
        let reply = send(proxy, "GET", target, "");
        assert_eq!(reply.status, 429, "{target}: {}", reply.body);
    }
}

/// The node ends: the proxy refuses. It comes back: limits hold again.
fn survives_a_restart(proxy: SocketAddr, node: ForwardAuthNode, unavailable: u16) {
    let ForwardAuthNode { folder, process } = node;
    let address = process.address;
    process.signal("KILL");
    process.wait();
    let reply = send(proxy, "GET", "/few", "");
    assert_eq!(reply.status, unavailable, "{}", reply.body);
    let _process = ForwardAuthNode::serve(&folder, &address.to_string());
    let mut admitted = 0;
    wait_until("the proxy finds the node again", || {
        let status = send(proxy, "GET", "/few", "").status;
        admitted += usize::from(status == 200);
        status == 429
    });
    assert_eq!(admitted, 1, "the embedded store of the new process is empty");
}

#[test]
fn nginx_with_auth_request() {
    let (node, app) = (ForwardAuthNode::start(), upstream());
    let nginx = nginx(node.address(), app);
    enforces_limits(nginx.address(), &node, ProxyKind::Nginx);
    survives_a_restart(nginx.address(), node, 500);
}

#[test]
fn caddy_with_forward_auth() {
    let (node, app) = (ForwardAuthNode::start(), upstream());
    let caddy = caddy(node.address(), app);
    enforces_limits(caddy.address(), &node, ProxyKind::Caddy);
    survives_a_restart(caddy.address(), node, 502);
}

/// What Traefik sends with `trustForwardHeader: false`: the client's headers without hop-by-hop ones, and its own.
#[test]
fn the_headers_of_traefik() {
    let node = ForwardAuthNode::start();
    let mut client = node.process.client();
    let mut ask = |method: &str, uri: &str| {
        client.send(&format!(
            "GET /v1/auth HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\nX-Api-Key: sk_1\r\n\
             X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Host: shop.example\r\nX-Forwarded-Method: {method}\r\n\
             X-Forwarded-Port: 443\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Server: edge-1\r\nX-Forwarded-Uri: {uri}\r\n\
             X-Real-Ip: 203.0.113.9\r\nAccept-Encoding: gzip\r\n\r\n"
        ));
        client.reply()
    };
    assert_eq!(ask("POST", "/writes?x").status, 200);
    assert_eq!(ask("GET", "/writes").status, 200);
    let reply = ask("POST", "/writes");
    assert_eq!((reply.status, reply.header("retry-after")), (429, "86400"));
    assert_eq!(reply.json()["error"]["code"], "RATE_LIMIT_EXCEEDED");
    // The configuration names the headers that the door reads.
    let text = std::fs::read_to_string(example("../traefik/dynamic.yaml")).unwrap();
    for name in
        ["address: http://127.0.0.1:8080/v1/auth", "X-Original-URI: \"\"", "trustForwardHeader: false"]
    {
        assert!(text.contains(name), "{name}");
    }
}

#[test]
fn the_settings_say_which_proxies_are_believed() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("rules.yaml", "rules: [{ id: users, key: user, limit: 1/day }]");
    let settings = "listen: 127.0.0.1:0\nrules: rules.yaml\n";
    write("remote.yaml", &format!("{settings}forward_auth: {{ trusted: [10.0.0.0/8] }}\n"));
    write(
        "users.yaml",
        &format!(
            "{settings}forward_auth: {{ deny_status: 401 }}\nidentity: {{ user: {{ header: X-User }} }}\n"
        ),
    );
    write("broken.yaml", &format!("{settings}forward_auth: {{ deny_status: 404 }}\n"));
    let serve =
        |name: &str| TollgateProcess::from(tollgate(["serve", "--config", name]).current_dir(folder.path()));
    let ask = |process: &TollgateProcess| {
        let mut client = process.client();
        client.send(
            "GET /v1/auth HTTP/1.1\r\nHost: a\r\nX-Original-Method: GET\r\nX-Original-URI: /\r\nX-Forwarded-For: 203.0.113.9\r\n\
             X-User: ann\r\n\r\n",
        );
        client.reply()
    };
    let process = serve("remote.yaml");
    process.wait_for_log("requests of forward-auth have no `user` to count by");
    let reply = ask(&process);
    assert_eq!((reply.status, reply.json()["error"]["code"].as_str()), (403, Some("FORBIDDEN")));
    process.wait_for_log("forward-auth refuses a peer that is not in `forward_auth: trusted`");
    let process = serve("users.yaml");
    assert_eq!([ask(&process).status, ask(&process).status], [200, 401]);
    let output = run(tollgate(["serve", "--config", "broken.yaml"]).current_dir(folder.path()));
    assert_eq!(output.code, Some(1), "{output:?}");
    for expected in ["broken.yaml:3:30: error: `404` is not supported here", "write 429, 403, 401 or 503"] {
        assert!(output.stderr.contains(expected), "{}", output.stderr);
    }
}
