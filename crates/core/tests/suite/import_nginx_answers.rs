//! Imported nginx configurations with `return` and with code: what is answered before its limits.

use super::import_nginx::{decides, imported};

const ZONE: &str = "limit_req_zone $binary_remote_addr zone=a:10m rate=1r/s;";

fn warnings(text: &str) -> String {
    imported(text).warnings.iter().map(ToString::to_string).collect()
}

/// A step for each path: one request is admitted, or all are.
fn steps(paths: &[(&str, bool)]) -> String {
    let step = |((path, is_limited), ip): (&(&str, bool), u8)| {
        let expected = if *is_limited { "send: 3, pass: 1" } else { "send: 3, expect: unlimited" };
        format!("      - {{ request: {{ ip: 192.0.2.{ip}, endpoint: {path} }}, {expected} }}\n")
    };
    format!("  - name: t\n    steps:\n{}", paths.iter().zip(1..).map(step).collect::<String>())
}

#[test]
fn locations_that_answer_by_themselves_are_not_limited() {
    let text = format!(
        "{ZONE}
server {{
  limit_req zone=a;
  location / {{ proxy_pass http://x; }}
  location = /health {{ access_log off; return 200; }}
  location /old/ {{ return 301 /new/; }}
  location /moved {{ rewrite ^/(.*)$ https://new.example/$1 permanent; }}
  location /left {{ break; return 200; }}
}}
"
    );
    let paths = [
        ("/", true),
        ("/health", false),
        ("/health/x", true),
        ("/old/x", false),
        ("/moved", false),
        ("/left", true),
    ];
    assert_eq!(decides(&text, &steps(&paths)), "");
    // A location inside of it has no `return`.
    let text = format!(
        "{ZONE}\nserver {{ limit_req zone=a; location /old/ {{ return 404; location /old/kept {{ }} }} }}"
    );
    decides(&text, &steps(&[("/old/x", false), ("/old/kept", true), ("/", true)]));
}

#[test]
fn servers_that_answer_by_themselves_are_not_limited() {
    let text = format!(
        "{ZONE}
limit_req zone=a;
server {{ listen 80; server_name other.example; return 444; }}
server {{ listen 80; server_name shop.example; return 301 https://shop.example$request_uri; location / {{ }} }}
server {{ listen 443; server_name shop.example; location / {{ proxy_pass http://x; }} }}
"
    );
    let tests = "  - name: t
    steps:
      - { request: { ip: 192.0.2.1, domain: shop.example }, send: 3, pass: 1 }
      - { request: { ip: 192.0.2.2, domain: other.example }, expect: unlimited }
";
    assert_eq!(decides(&text, tests), "");
}

#[test]
fn limits_that_never_apply_are_named() {
    let text = format!(
        "{ZONE}
server {{
  location / {{ limit_req zone=a;
    return 200 ok; }}
  location /api/ {{ limit_req zone=a; }}
}}
"
    );
    let found = decides(&text, &steps(&[("/", false), ("/api/", true)]));
    assert!(
        found.contains("nginx.conf:4:5: warning: nginx answers with this before it looks at limits"),
        "{found}"
    );
    let found =
        warnings(&format!("{ZONE}\nserver {{\n  return 200;\n  location / {{ limit_req zone=a; }}\n}}"));
    assert!(
        found.contains("nginx.conf:3:3: warning: nginx answers with this before it looks at limits"),
        "{found}"
    );
    assert_eq!(found.matches("warning: ").count(), 1, "{found}");
}

/// The condition of an answer has no equivalent: the limit also applies to what nginx answers.
#[test]
fn answers_to_some_requests_are_named() {
    for (directives, line) in [
        ("if ($request_method = OPTIONS) {\n return 204; }", 3),
        ("rewrite ^/old https://new.example/ permanent;", 2),
        ("if ($x) { break; }\nreturn 204;", 3),
        ("rewrite ^/x /y break;\nreturn 204;", 3),
    ] {
        for server in [
            format!("server {{ {directives} limit_req zone=a; }}"),
            format!("server {{ limit_req zone=a; location / {{ {directives} }} }}"),
        ] {
            let found = warnings(&format!("{ZONE}\n{server}"));
            assert!(found.starts_with(&format!("nginx.conf:{line}:")), "{server}\n{found}");
            assert!(
                found.contains("warning: requests that nginx answers with this are not limited"),
                "{server}\n{found}"
            );
            assert_eq!(found.matches("warning: ").count(), 1, "{server}\n{found}");
        }
    }
    assert_eq!(
        warnings(&format!(
            "{ZONE}\nserver {{ location /x {{ if ($x) {{ return 204; }} }} location / {{ limit_req zone=a; }} }}"
        )),
        ""
    );
}

/// The location of an error page has limits of its own.
#[test]
fn answers_that_are_redirected_are_limited() {
    let text = format!(
        "{ZONE}
server {{
  limit_req zone=a;
  error_page 404 /404.html;
  location /a {{ return 404; }}
  location /b {{ return 404 text; }}
}}
"
    );
    let found = decides(&text, &steps(&[("/a", true), ("/b", false)]));
    assert!(found.contains("nginx.conf:4:3: warning: the internal redirect of `error_page`"), "{found}");
    assert_eq!(found.matches("warning: ").count(), 1, "{found}");
}

/// Braces and quotes in texts and comments of the code are not those of the configuration.
#[test]
fn code_is_skipped_and_named() {
    for code in [
        "ngx.say('}')",
        "ngx.say(\"it's }\")",
        "ngx.say('\\'}')",
        "local t = { a = { 1 } } -- it's a }",
        "ngx.say([[ it's }} ]])",
        "ngx.say([==[ ]] } ]==]) local x = t[1] local y = t[t[1]]",
        "--[[ it's\n } ]] ngx.say(1)",
        "--[==[ ]] } ]==]",
        "--[ }",
        "-- don't",
        "",
    ] {
        let text = format!(
            "{ZONE}\nserver {{ limit_req zone=a;\n  location / {{\n    content_by_lua_block {{\n{code}\n    }}\n  }}\n location /x {{ return 200; }} }}"
        );
        let found = decides(&text, &steps(&[("/", true), ("/x", false)]));
        assert!(
            found.contains("nginx.conf:4:5: warning: the code of `content_by_lua_block` is not understood"),
            "{code}\n{found}"
        );
        assert_eq!(found.matches("warning: ").count(), 1, "{code}\n{found}");
    }
    let set = format!(
        "{ZONE}\nserver {{ set_by_lua_block $x {{ return '{{' }} access_by_lua_file a.lua; limit_req zone=a; }}"
    );
    let found = warnings(&set);
    assert!(found.contains("nginx.conf:2:10: warning: the code of `set_by_lua_block`"), "{found}");
    assert!(found.contains("warning: the code of `access_by_lua_file`"), "{found}");
}
