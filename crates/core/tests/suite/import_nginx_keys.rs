//! Imported keys of nginx zones: which rules their variables and maps become, and where they differ.

use super::import_nginx::{decides, imported};

/// Imports a limit with this key and one request at once, plays `steps`, and returns the warnings.
fn counts(directives: &str, key: &str, steps: &str) -> String {
    let text = format!(
        "http {{ {directives}\nlimit_req_zone {key} zone=a:10m rate=1r/s;\nserver {{ limit_req zone=a; }} }}"
    );
    decides(&text, &format!("  - {{ name: t, steps: [{steps}] }}\n"))
}

fn warnings(text: &str) -> String {
    imported(text).warnings.iter().map(ToString::to_string).collect()
}

/// The gateway removes these headers before it asks for limits.
#[test]
fn headers_that_do_not_reach_rules_are_named() {
    let zone =
        |key: &str| format!("\nlimit_req_zone {key} zone=a:10m rate=1r/s;\nserver {{ limit_req zone=a; }}");
    for (key, hint) in [
        ("$http_x_forwarded_for", "count by `$remote_addr`, with the proxies in `identity: { client_ip:"),
        ("$http_forwarded", "count by `$remote_addr`, with the proxies in `identity: { client_ip:"),
        ("$http_x_forwarded_proto", "name the proxies in `identity: { client_ip:"),
        ("$http_X_Forwarded_Host", "name the proxies in `identity: { client_ip:"),
        ("$binary_remote_addr$http_x_forwarded_port", "name the proxies in `identity: { client_ip:"),
        ("$http_connection", "count by something else"),
        ("$http_te", "count by something else"),
        ("$http_upgrade", "count by something else"),
        ("$http_proxy_authorization", "count by something else"),
    ] {
        let found = warnings(&zone(key));
        assert!(
            found.contains("nginx.conf:2:16: warning: the gateway removes the header `"),
            "{key}\n{found}"
        );
        assert!(found.contains(hint), "{key}\n{found}");
    }
    for key in ["$http_x_real_ip", "$http_x_forwarded", "$cookie_connection", "$http_cookie"] {
        assert_eq!(warnings(&zone(key)), "", "{key}");
    }
    let map = "map $http_x_forwarded_for $key {\n default $binary_remote_addr;\n a $http_upgrade;\n}";
    let found = warnings(&format!("{map}{}", zone("$key")));
    assert!(
        found.contains("nginx.conf:1:5: warning: the gateway removes the header `x-forwarded-for`"),
        "{found}"
    );
    assert!(found.contains("nginx.conf:3:4: warning: the gateway removes the header `upgrade`"), "{found}");
}

#[test]
fn variables_that_differ_are_named() {
    let path = "{ request: { ip: 192.0.2.1, endpoint: /a }, send: 3, pass: 1 }";
    let found = counts("", "$request_uri", path);
    assert!(found.contains("nginx.conf:2:16: warning: `$request_uri` has the query"), "{found}");
    let host = "{ request: { ip: 192.0.2.1, domain: a.example }, send: 3, pass: 1 }";
    let found = counts("", "$http_host", host);
    assert!(found.contains("nginx.conf:2:16: warning: `$http_host` is as the client wrote it"), "{found}");
    let found = counts("map $request_uri $key { default $binary_remote_addr; /free ''; }", "$key", path);
    assert!(found.contains("nginx.conf:1:12: warning: `$request_uri` has the query"), "{found}");
    assert_eq!(counts("", "$uri", path), "");
    assert_eq!(counts("", "$host", host), "");
}
