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

/// A geo is over addresses: over a text that a client sends, no limit is lost.
#[test]
fn geos_over_other_values_are_named_and_all_of_their_limits_apply() {
    let warning =
        "nginx.conf:1:12: warning: a geo over anything but the address of the client has no equivalent";
    let all = "{ request: { ip: 192.0.2.1, ids: { x_client_ip: 10.0.0.0/8 } }, expect: pass }, { request: { ip: 192.0.2.2 }, expect: limited }";
    let each =
        "{ request: { ip: 192.0.2.1 }, send: 3, pass: 1 }, { request: { ip: 192.0.2.2 }, send: 3, pass: 1 }";
    for (source, entries, key, steps) in [
        ("http_x_client_ip", "default all; 10.0.0.0/8 '';", "$v", all),
        ("http_x_client_ip", "10.0.0.0/8 all;", "$v", all),
        ("proxy_protocol_addr", "default ''; 10.0.0.0/8 a; 11.0.0.0/8 b;", "$v$binary_remote_addr", each),
        ("http_x_forwarded_for", "default 0; 10.0.0.0/8 1;", "$k", each),
    ] {
        let map = "map $v $k { 0 ''; 1 $binary_remote_addr; }";
        let found = counts(&format!("geo ${source} $v {{ {entries} }} {map}"), key, steps);
        assert!(found.contains(warning), "{source}\n{found}");
        assert_eq!(found.matches("warning: ").count(), 1, "{source}\n{found}");
    }
    let limited =
        "{ request: { ip: 192.0.2.1 }, expect: pass }, { request: { ip: 192.0.2.2 }, expect: limited },
         { request: { ip: 10.0.0.1 }, expect: unlimited }";
    for source in ["", "$remote_addr "] {
        let geo = format!("geo {source}$v {{ default $binary_remote_addr; 10.0.0.0/8 ''; }}");
        // The value of a geo is a text, also one that looks like a variable.
        assert_eq!(counts(&geo, "$v", limited), "", "{geo}");
    }
}

/// A map compares texts.
#[test]
fn networks_in_a_map_are_named() {
    let steps =
        "{ request: { ip: 10.0.0.1 }, expect: unlimited }, { request: { ip: 10.0.0.2 }, send: 3, pass: 1 }";
    let map = "map $remote_addr $v { default $binary_remote_addr; 10.0.0.1 ''; 10.0.0.0/8 ''; }";
    let found = counts(map, "$v", steps);
    assert!(found.contains("nginx.conf:1:72: warning: this entry of a map has no equivalent"), "{found}");
}

/// Without a header nginx counts by the rest of the key.
#[test]
fn parts_of_a_key_may_be_absent() {
    for (directives, key, steps) in [
        (
            "",
            "$http_x_user$binary_remote_addr",
            "{ request: { ip: 192.0.2.1, ids: { x_user: ann } }, send: 3, pass: 1 },
             { request: { ip: 192.0.2.1, ids: { x_user: bob } }, send: 3, pass: 1 },
             { request: { ip: 192.0.2.1 }, send: 3, pass: 1 },
             { request: { ip: 192.0.2.1, key: sk_1 }, expect: limited },
             { request: { ip: 192.0.2.2, key: sk_1 }, send: 3, pass: 1 },
             { request: { ip: 192.0.2.2, key: sk_2 }, expect: limited }",
        ),
        (
            "",
            "$http_x_user$cookie_id",
            "{ request: { ip: 192.0.2.1, ids: { x_user: ann } }, send: 3, pass: 1 },
             { request: { ip: 192.0.2.2, ids: { x_user: ann, id: '1' } }, send: 3, pass: 1 },
             { request: { ip: 192.0.2.2, ids: { x_user: ann, id: '2' } }, send: 3, pass: 1 },
             { request: { ip: 192.0.2.2, ids: { id: '2' } }, send: 3, pass: 1 },
             { request: { ip: 192.0.2.3, key: sk_1, ids: { id: '2' } }, expect: limited },
             { request: { ip: 192.0.2.3, key: sk_1 }, expect: unlimited }",
        ),
        (
            "",
            "user-$http_x_user",
            "{ request: { ip: 192.0.2.1, ids: { x_user: ann } }, send: 3, pass: 1 },
             { request: { ip: 192.0.2.1 }, expect: pass }, { request: { ip: 192.0.2.2 }, expect: limited }",
        ),
        (
            "map $http_x_user $key { default $http_x_user$remote_user; '' $http_x_user$binary_remote_addr; staff ''; }",
            "$key",
            "{ request: { ip: 192.0.2.1, ids: { x_user: ann } }, send: 3, pass: 1 },
             { request: { ip: 192.0.2.2, user: a, ids: { x_user: ann } }, send: 3, pass: 1 },
             { request: { ip: 192.0.2.1 }, send: 3, pass: 1 },
             { request: { ip: 192.0.2.1, user: a }, expect: limited },
             { request: { ip: 192.0.2.3, ids: { x_user: staff } }, expect: unlimited }",
        ),
    ] {
        assert_eq!(counts(directives, key, steps), "", "{key}");
    }
    let many: String = (0..7).map(|part| format!("$http_x_part_{part}")).collect();
    let text = format!("limit_req_zone {many} zone=a:10m rate=1r/s;\nserver {{ limit_req zone=a; }}");
    let found = warnings(&text);
    assert!(
        found.contains("nginx.conf:1:16: warning: a key with so many cases has no equivalent"),
        "{found}"
    );
}

/// Bearer tokens are API keys by default, and no part of this variable.
#[test]
fn the_api_key_is_the_header_alone() {
    for (key, expected) in [
        ("$http_x_api_key", "# identity: { api_key: { header: X-Api-Key } }\n"),
        (
            "$http_x_api_key$arg_id",
            "# identity: { api_key: { header: X-Api-Key }, ids: { id: { query: id } } }\n",
        ),
    ] {
        let text = format!("limit_req_zone {key} zone=a:10m rate=1r/s; server {{ limit_req zone=a; }}");
        let found = imported(&text).text;
        assert!(found.contains(expected), "{found}");
    }
}
