//! Imported nginx configurations: which rules they become, and what has no equivalent.

use regex::Regex;
use tollgate_core::import::ImportedRules;
use tollgate_core::import::nginx::import;
use tollgate_core::rules;

fn no_files(pattern: &str) -> Result<Vec<(String, String)>, String> {
    match pattern {
        "limits.conf" => {
            Ok(vec![("limits.conf".to_owned(), "limit_req zone=a burst=2 nodelay;\n".to_owned())])
        }
        "empty/*.conf" => Ok(Vec::new()),
        "itself" => Ok(vec![("itself".to_owned(), "include itself;".to_owned())]),
        _ => Err("No such file".to_owned()),
    }
}

pub(crate) fn imported(text: &str) -> ImportedRules {
    let imported =
        import("nginx.conf", text, &mut no_files).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
    let loaded = rules::load("imported", &imported.text).unwrap_or_else(|report| panic!("{report}"));
    assert!(loaded.warnings.is_empty(), "{}\n{}", loaded.warnings, imported.text);
    imported
}

/// Imports `text` with these tests appended, which must pass, and returns the warnings.
pub(crate) fn decides(text: &str, tests: &str) -> String {
    let ImportedRules { text: rules_text, warnings } = imported(text);
    let with_tests = format!("{rules_text}tests:\n{tests}");
    let loaded =
        rules::load("imported", &with_tests).unwrap_or_else(|report| panic!("{report}\n{with_tests}"));
    for result in rules::run_tests(&loaded) {
        assert!(result.failures.is_empty(), "{}: {:?}\n{with_tests}", result.name, result.failures);
    }
    warnings.iter().map(ToString::to_string).collect()
}

const ZONE: &str = "limit_req_zone $binary_remote_addr zone=a:10m rate=10r/s;";

#[test]
fn rates_and_bursts() {
    for (rate, uses, tests) in [
        (
            "10r/s",
            "zone=a burst=20 nodelay",
            "{ send: 25, pass: 21, retry_after: 100ms }, { at: 250ms, send: 5, pass: 2 }",
        ),
        (
            "10r/s",
            "zone=a",
            "{ send: 3, pass: 1, retry_after: 100ms }, { at: 99ms, expect: limited }, { at: 100ms, expect: pass }",
        ),
        ("30r/m", "zone=a burst=2 nodelay", "{ send: 5, pass: 3, retry_after: 2s }"),
        // 7 a minute is 0.116 a second in nginx, which counts in thousandths.
        ("7r/m", "zone=a", "{ send: 2, pass: 1, retry_after: 8620.69ms }"),
        // Without delay the rules test what is admitted at once.
        ("10r/s", "zone=a burst=5", "{ send: 3, pass: 1, retry_after: 100ms }"),
        ("10r/s", "zone=a burst=5 delay=3", "{ send: 6, pass: 4, retry_after: 100ms }"),
        ("10r/s", "zone=a burst=5 delay=9", "{ send: 9, pass: 6, retry_after: 100ms }"),
    ] {
        let text = format!(
            "http {{ limit_req_zone $binary_remote_addr zone=a:10m rate={rate}; server {{ limit_req {uses}; }} }}"
        );
        let tests = format!("  - {{ name: t, request: {{ ip: 192.0.2.1 }}, steps: [{tests}] }}\n");
        assert_eq!(decides(&text, &tests), "", "{uses}");
    }
    let shaped = imported(&format!("http {{ {ZONE} server {{ limit_req zone=a burst=20 delay=8; }} }}"));
    assert!(
        shaped.text.contains("on_exceed: { queue: { length: 12, max_wait: 2200ms } }"),
        "{}",
        shaped.text
    );
}

#[test]
fn connections_and_dry_runs() {
    let text = "
http {
  limit_conn_zone $server_name zone=perserver:10m;
  limit_req_zone $binary_remote_addr zone=a:10m rate=1r/s;
  server {
    limit_conn perserver 100;
    limit_req_dry_run on;
    location / { limit_req zone=a burst=5; }
    location /x { limit_req zone=a burst=5; limit_req_dry_run off; limit_conn_dry_run on; }
  }
}";
    let ImportedRules { text, .. } = imported(text);
    assert!(
        text.contains("key: all\n    algorithm: concurrency\n    params: { limit: 100, timeout: 1h }"),
        "{text}"
    );
    assert_eq!(text.matches("on_exceed: shadow").count(), 2, "{text}");
    assert_eq!(text.matches("on_exceed: { queue:").count(), 1, "{text}");
}

/// A block with a limit of its own inherits none.
#[test]
fn locations_inherit_as_in_nginx() {
    let text = "
http {
  limit_req_zone $binary_remote_addr zone=a:10m rate=1r/s;
  limit_req_zone $binary_remote_addr zone=b:10m rate=1r/s;
  limit_req zone=a;
  server {
    location / { }
    location /api/ { limit_req zone=b burst=1 nodelay; location /api/deep/ { } }
    location = /api/exact { limit_req zone=b burst=2 nodelay; }
    location ~ \\.png$ { limit_req zone=b burst=3 nodelay; }
    location ^~ /static/ { limit_req zone=b burst=4 nodelay; }
    location @named { limit_req zone=b burst=5 nodelay; }
  }
}";
    let request = |ip: u8, path: &str, pass: u8| {
        format!("      - {{ request: {{ ip: 192.0.2.{ip}, endpoint: {path} }}, send: 9, pass: {pass} }}\n")
    };
    let steps = [
        request(1, "/", 1),
        request(2, "/api", 1),
        request(3, "/api/x", 2),
        request(4, "/api/deep/x", 2),
        request(5, "/api/exact", 3),
        request(6, "/api/exact/x", 2),
        request(7, "/api/a.png", 4),
        request(8, "/a.png", 4),
        request(9, "/static/a.png", 5),
        request(10, "/API/x", 1),
    ];
    let warnings = decides(text, &format!("  - name: areas\n    steps:\n{}", steps.concat()));
    assert_eq!(
        warnings.matches("in nginx all uses of the zone `b` share their counts").count(),
        3,
        "{warnings}"
    );
}

/// A nested location is for paths that match the outer one as well.
#[test]
fn nested_locations_are_for_paths_that_match_both() {
    let text = "
http {
  limit_req_zone $binary_remote_addr zone=a:10m rate=1r/m;
  limit_req_zone $binary_remote_addr zone=b:10m rate=1r/m;
  server {
    limit_req zone=a;
    location /api/ {
      location ~ /api/v[12]/login { limit_req zone=b burst=1 nodelay; }
      location ~* ^/api/v[12]/reset$ { limit_req zone=b burst=2 nodelay; }
      location ~ (^/api/otp|/mfa$) { limit_req zone=b burst=3 nodelay; }
      location /api/deep/ { location ~ x$ { limit_req zone=b burst=4 nodelay; } }
      location = /api/exact-x { limit_req zone=b burst=5 nodelay; }
    }
    location ~ /img { location ~ /img/x { limit_req zone=b burst=6 nodelay; } location /img/p/ { limit_req zone=b burst=7 nodelay; } }
    location ~ x$ { limit_req zone=b burst=8 nodelay; }
  }
}";
    let paths = [
        ("/", 1),
        ("/api/", 1),
        ("/api/v1/login", 2),
        ("/api/z/api/v2/login", 2),
        ("/api/v2/reset", 3),
        ("/api/V2/RESET", 3),
        ("/API/v2/reset", 1),
        ("/api/otp1", 4),
        ("/api/1/mfa", 4),
        ("/api/mfa", 4),
        ("/mfa", 1),
        ("/api/deep/1x", 5),
        ("/api/exact-x", 6),
        ("/api/1x", 9),
        ("/1x", 9),
        ("/img/x", 7),
        ("/a/img/xx", 7),
        ("/img/p/x", 8),
        ("/img/1x", 1),
    ];
    let steps = paths.iter().zip(1..).map(|((path, pass), ip)| {
        format!("      - {{ request: {{ ip: 192.0.2.{ip}, endpoint: {path} }}, send: 10, pass: {pass} }}\n")
    });
    let warnings = decides(text, &format!("  - name: areas\n    steps:\n{}", steps.collect::<String>()));
    assert!(!warnings.contains("has no equivalent"), "{warnings}");
    // nginx 1.22 takes `location ~ /img` for `/img/p/x`.
    let expected = "nginx.conf:14:79: warning: some versions of nginx do not select this location";
    assert!(warnings.contains(expected), "{warnings}");
}

/// Plays all short paths over a small alphabet to the imported expression and to the two conditions.
#[test]
fn nested_regular_expressions_are_exact() {
    let mut paths = vec!["/".to_owned()];
    let mut last = paths.clone();
    for _ in 0..6 {
        last = last.iter().flat_map(|path| ["/", "a", "B"].map(|c| format!("{path}{c}"))).collect();
        paths.extend(last.iter().cloned());
    }
    for regex in [
        "a",
        "^/a",
        "a$",
        "/a/",
        "a/B",
        "^/a/B$",
        "(^/a|B$)",
        "(?i)^/A/b",
        "(?i)b/A",
        "a*B",
        "(a|/)+B$",
        "a?/+B",
        ".*B",
        "^.*B$",
        "a{2}",
        "(?:/a){1,2}/?$",
        "(/a)*/B",
        "[^a]{3}",
        "$",
        "^",
        "(a|)(B|$)",
        "(^)?B",
        "(^|a)/B",
        "(a?)*B",
        "^/a/(a|B)$",
        "^/B",
        "a+{0,1}B",
    ] {
        let whole = Regex::new(regex).unwrap();
        let (modifier, text) = regex.strip_prefix("(?i)").map_or(("~", regex), |text| ("~*", text));
        for prefix in ["/", "/a", "/a/", "/a/a"] {
            let text = format!(
                "{ZONE} server {{ location {prefix} {{ location {modifier} '{text}' {{ limit_req zone=a; }} }} }}"
            );
            let imported = import("nginx.conf", &text, &mut no_files).unwrap();
            let file = rules::rule_file_json("imported", &imported.text).unwrap();
            let found =
                file["rules"][0]["match"]["endpoint_regex"].as_str().map(|text| Regex::new(text).unwrap());
            assert!(file["rules"][0]["except"].is_null(), "{}", imported.text);
            for path in &paths {
                let is_found = found.as_ref().is_some_and(|found| found.is_match(path));
                let is_both = path.starts_with(prefix) && whole.is_match(path);
                assert_eq!(is_found, is_both, "{path} in {prefix} ~ {regex}: {found:?}");
            }
        }
    }
}

/// A limit applies to more paths than in nginx where its paths have no equivalent.
#[test]
fn nested_locations_without_equivalent_are_named_at_their_line() {
    let text = format!(
        "{ZONE}
limit_req_zone $binary_remote_addr zone=b:10m rate=10r/s;
limit_req zone=b;
server {{
  location ~ \\.php$ {{
    location ~ admin {{ limit_req zone=a; }}
  }}
  location /api/ {{
    location ~ \\bv1 {{ limit_req zone=a; }}
  }}
  location ^~ /s/ {{ }}
  location /s/t/ {{ }}
  location ~ z$ {{ limit_req zone=a; }}
}}
"
    );
    let tests = "  - name: t
    steps:
      - { request: { ip: 192.0.2.1, endpoint: /admin/1.php }, send: 3, pass: 1 }
      - { request: { ip: 192.0.2.2, endpoint: /admin/ }, send: 3, pass: 1 }
      - { request: { ip: 192.0.2.3, endpoint: /api/v1 }, send: 3, pass: 1 }
      - { request: { ip: 192.0.2.4, endpoint: /s/t/z }, send: 3, pass: 1 }
      - { request: { ip: 192.0.2.5, endpoint: /s/z }, send: 3, pass: 1 }
";
    let warnings = decides(&text, tests);
    for expected in [
        "nginx.conf:6:5: warning: the condition of the outer location has no equivalent here",
        "nginx.conf:9:5: warning: the condition of the outer location has no equivalent here",
        "nginx.conf:11:3: warning: that this location precedes regular expressions, and a longer one does not",
    ] {
        assert!(warnings.contains(expected), "{expected}\n{warnings}");
    }
}

#[test]
fn servers_are_domains() {
    let text = "
http {
  limit_req_zone $binary_remote_addr zone=a:10m rate=1r/s;
  server { listen 80; server_name shop.example *.shop.example; return 301 https://$host$request_uri; }
  server { listen 443; server_name shop.example *.shop.example; limit_req zone=a; }
  server { listen 443; server_name .blog.example; limit_req zone=a burst=1 nodelay; }
  server { listen 443 default_server; server_name _; limit_req zone=a burst=2 nodelay; }
  server { listen 443; server_name free.example; }
}";
    let steps = [
        ("shop.example", 1),
        ("a.shop.example", 1),
        ("blog.example", 2),
        ("x.blog.example", 2),
        ("other", 3),
    ];
    let steps = steps.iter().zip(1..).map(|((host, pass), ip)| {
        format!("      - {{ request: {{ ip: 192.0.2.{ip}, domain: {host} }}, send: 5, pass: {pass} }}\n")
    });
    let mut tests = format!("  - name: hosts\n    steps:\n{}", steps.collect::<String>());
    tests += "      - { request: { ip: 192.0.2.9, domain: free.example }, expect: unlimited }\n";
    decides(text, &tests);
}

/// A client cannot choose the server name, as it can the host.
#[test]
fn zones_by_server_have_a_rule_for_each_server() {
    let text = "
http {
  limit_req_zone $server_name zone=a:10m rate=1r/s;
  limit_req zone=a;
  server { server_name one.example *.one.example; }
  server { server_name two.example; }
}";
    let tests = "  - name: t
    steps:
      - { request: { ip: 192.0.2.1, domain: one.example }, expect: pass }
      - { request: { ip: 192.0.2.2, domain: a.one.example }, expect: limited }
      - { request: { ip: 192.0.2.3, domain: unknown.example }, expect: limited }
      - { request: { ip: 192.0.2.4, domain: two.example }, expect: pass }
";
    assert_eq!(decides(text, tests), "");
}

#[test]
fn maps_are_conditions() {
    for (maps, key, tests) in [
        // The allow list of the nginx blog.
        (
            "geo $limited { default 1; 10.0.0.0/8 0; 10.1.0.0/16 1; }
             map $limited $key { 0 ''; 1 $binary_remote_addr; }",
            "$key",
            "{ request: { ip: 192.0.2.1 }, send: 3, pass: 1 }, { request: { ip: 10.2.0.1 }, expect: unlimited },
             { request: { ip: 10.1.0.1 }, send: 3, pass: 1 }",
        ),
        (
            "map $http_x_api_key $key { default $binary_remote_addr; 'internal' ''; ~^partner- ''; }",
            "$key",
            "{ request: { ip: 192.0.2.1 }, send: 3, pass: 1 }, { request: { ip: 192.0.2.2, key: internal }, expect: unlimited },
             { request: { ip: 192.0.2.3, key: partner-7 }, expect: unlimited }, { request: { ip: 192.0.2.4, key: x }, send: 3, pass: 1 }",
        ),
        (
            "map $http_x_api_key $key { '' $binary_remote_addr; default $http_x_api_key; }",
            "$key",
            "{ request: { ip: 192.0.2.1 }, send: 3, pass: 1 }, { request: { ip: 192.0.2.1, key: a }, send: 3, pass: 1 },
             { request: { ip: 192.0.2.1, key: b }, send: 3, pass: 1 }",
        ),
        (
            "map $request_method $key { default ''; POST $binary_remote_addr; ~^PU $binary_remote_addr; }",
            "$key",
            "{ request: { ip: 192.0.2.1, method: POST }, send: 3, pass: 1 }, { request: { ip: 192.0.2.2, method: PUT }, send: 3, pass: 1 },
             { request: { ip: 192.0.2.3, method: GET }, expect: unlimited }",
        ),
        (
            "map $uri $key { default ''; ~^/api/ $binary_remote_addr; /api/free ''; }",
            "$key",
            "{ request: { ip: 192.0.2.1, endpoint: /api/x }, send: 3, pass: 1 }, { request: { ip: 192.0.2.2, endpoint: /api/free }, expect: unlimited },
             { request: { ip: 192.0.2.3, endpoint: / }, expect: unlimited }",
        ),
        // Strings of a map ignore case, regular expressions do not.
        (
            "map $uri $key { default ''; /Login $binary_remote_addr; ~^/api $binary_remote_addr; }",
            "$key",
            "{ request: { ip: 192.0.2.1, endpoint: /login }, send: 3, pass: 1 }, { request: { ip: 192.0.2.2, endpoint: /LOGIN }, send: 3, pass: 1 },
             { request: { ip: 192.0.2.3, endpoint: /login/x }, expect: unlimited }, { request: { ip: 192.0.2.4, endpoint: /API }, expect: unlimited }",
        ),
        // The longest network decides, at any depth.
        (
            "geo $g { default 0; 127.0.0.0/8 1; 127.0.0.0/16 0; 127.0.0.0/24 1; 127.0.0.9 0; 10.0.0.0/8 1; 10.1.0.0/16 0; ::1 1; }
             map $g $key { default ''; 1 $binary_remote_addr; }",
            "$key",
            "{ request: { ip: 127.0.0.1 }, send: 3, pass: 1 }, { request: { ip: 127.0.1.1 }, expect: unlimited },
             { request: { ip: 127.1.0.1 }, send: 3, pass: 1 }, { request: { ip: 127.255.0.1 }, send: 3, pass: 1 },
             { request: { ip: 127.0.0.9 }, expect: unlimited }, { request: { ip: 10.2.0.1 }, send: 3, pass: 1 },
             { request: { ip: 10.1.0.1 }, expect: unlimited }, { request: { ip: '::1' }, send: 3, pass: 1 },
             { request: { ip: 192.0.2.1 }, expect: unlimited }",
        ),
        (
            "geo $g { default 0; 20.0.0.0/8 1; 10.0.0.0/8 1; 10.1.0.0/16 0; } map $g $key { default ''; 1 $binary_remote_addr; }",
            "$key",
            "{ request: { ip: 20.0.0.1 }, send: 3, pass: 1 }, { request: { ip: 10.0.0.1 }, send: 3, pass: 1 },
             { request: { ip: 10.1.0.1 }, expect: unlimited }",
        ),
        ("", "$http_x_tenant", "{ request: { ip: 192.0.2.1, ids: { x_tenant: t } }, send: 3, pass: 1 }, { request: { ip: 192.0.2.1 }, expect: unlimited }"),
        ("", "$binary_remote_addr$uri", "{ request: { ip: 192.0.2.1, endpoint: /a }, send: 3, pass: 1 }, { request: { ip: 192.0.2.1, endpoint: /b }, send: 3, pass: 1 }"),
        ("", "everybody", "{ request: { ip: 192.0.2.1 }, send: 3, pass: 1 }, { request: { ip: 192.0.2.2 }, expect: limited }"),
    ] {
        let text = format!("http {{ {maps} limit_req_zone {key} zone=a:10m rate=1r/s; server {{ limit_req zone=a; }} }}");
        let warnings = decides(&text, &format!("  - {{ name: t, steps: [{tests}] }}\n"));
        assert_eq!(warnings, "", "{text}");
    }
}

#[test]
fn settings_are_listed_for_identities_of_keys_and_conditions() {
    for (maps, key, expected) in [
        ("", "$http_x_tenant", Some("identity: { ids: { x_tenant: { header: x-tenant } } }")),
        (
            "map $http_x_plan $key { default ''; free $binary_remote_addr; }",
            "$key",
            Some("identity: { ids: { x_plan: { header: x-plan } } }"),
        ),
        (
            "map $cookie_plan $key { default $arg_id; free ''; }",
            "$key",
            Some("identity: { ids: { id: { query: id }, plan: { cookie: plan } } }"),
        ),
        (
            "map $remote_user $key { default $binary_remote_addr; admin ''; }",
            "$key",
            Some("a source of the user in tollgate.yaml, such as `identity: { user: { jwt: sub } }`"),
        ),
        ("map $http_x_plan $other { default ''; free x; }", "$binary_remote_addr", None),
    ] {
        let text =
            format!("{maps} limit_req_zone {key} zone=a:10m rate=1r/s; server {{ limit_req zone=a; }}");
        let ImportedRules { text, .. } = imported(&text);
        let heading = text.split("rules:\n").next().unwrap().replace("\n# ", " ");
        assert_eq!(heading.matches("identity: {").count(), usize::from(expected.is_some()), "{text}");
        assert!(heading.contains(expected.unwrap_or_default()), "{text}");
    }
}

/// The other limits are imported.
#[test]
fn limits_that_are_too_large_are_named_at_their_line() {
    let text = "\
limit_req_zone $binary_remote_addr zone=slow:10m rate=1r/m;
limit_req_zone $binary_remote_addr zone=fast:10m rate=9000000000000000000r/s;
limit_req_zone $binary_remote_addr zone=a:10m rate=1r/s;
server {
  location /slow { limit_req zone=slow burst=1000000 nodelay; }
  location /fast { limit_req zone=fast; }
  location /burst { limit_req zone=a burst=9000000000000000000 nodelay; }
  location / { limit_req zone=a burst=2 nodelay; }
}
";
    let tests = "  - { name: t, request: { ip: 192.0.2.1, endpoint: / }, steps: [{ send: 9, pass: 3 }] }\n";
    let warnings = decides(text, tests);
    for expected in [
        "nginx.conf:5:20: warning: this limit has no equivalent: at this rate it takes more than 366 days",
        "nginx.conf:6:20: warning: this limit has no equivalent: ",
        "nginx.conf:7:21: warning: this limit has no equivalent: ",
    ] {
        assert!(warnings.contains(expected), "{expected}\n{warnings}");
    }
    assert!(!warnings.contains("imported rules"), "{warnings}");
}

#[test]
fn files_are_included() {
    let ImportedRules { text, warnings } =
        imported(&format!("{ZONE}\ninclude empty/*.conf;\nserver {{ include limits.conf; }}"));
    assert!(warnings.is_empty());
    assert!(text.contains("# limits.conf:1: limit_req zone=a burst=2 nodelay (the server)\n"), "{text}");
    assert!(
        text.contains("# nginx.conf:1: limit_req_zone $binary_remote_addr zone=a:10m rate=10r/s\n"),
        "{text}"
    );
}

#[test]
fn what_has_no_equivalent_is_named_at_its_line() {
    let text = "\
limit_req_zone $binary_remote_addr zone=a:10m rate=1r/s;
limit_req_zone $ssl_client_s_dn zone=b:10m rate=1r/s;
limit_req_zone $binary_remote_addr zone=unused:10m rate=1r/s;
map $http_user_agent $bot { default ''; '~*(bot|crawl)' $binary_remote_addr; }
limit_req_zone $bot zone=c:10m rate=1r/s;
server {
  server_name ~^www\\d+;
  limit_req_status 503;
  limit_req_log_level info;
  limit_rate 10k;
  limit_req zone=a burst=10000;
  location /b { limit_req zone=b; }
  location /c { limit_req zone=c; }
  location ~ (?!x) { limit_req zone=a burst=3; }
}
stream { limit_conn_zone $binary_remote_addr zone=s:1m; server { limit_conn s 5; } }
";
    let warnings: String = imported(text).warnings.iter().map(ToString::to_string).collect();
    for expected in [
        "nginx.conf:2:16: warning: `$ssl_client_s_dn` as a key has no equivalent",
        "nginx.conf:3:1: warning: no limit uses the zone `unused`",
        "nginx.conf:4:41: warning: this entry of a map has no equivalent",
        "nginx.conf:7:15: warning: the server name `~^www\\d+` has no equivalent",
        "nginx.conf:8:3: warning: the status 503 has no equivalent",
        "nginx.conf:9:3: warning: `limit_req_log_level` has no equivalent",
        "nginx.conf:10:3: warning: `limit_rate` has no equivalent",
        "nginx.conf:11:3: warning: a delay above 10 minutes",
        "nginx.conf:14:3: warning: this regular expression has no equivalent",
        "nginx.conf:16:10: warning: limits of TCP streams have no equivalent",
        "nginx.conf:16:66: warning: limits of TCP streams have no equivalent",
    ] {
        assert!(warnings.contains(expected), "{expected}\n{warnings}");
    }
}

#[test]
fn internal_redirects_are_named_at_their_line() {
    let text = "\
server {
  error_page 404 /missing.html;
  error_page 403 =200 https://example.com/;
  rewrite ^/old/(.*)$ /new/$1;
  rewrite ^/x$ /y last;
  rewrite ^/x$ /y break;
  rewrite ^/x$ /y permanent;
  rewrite ^/x$ https://example.com/y;
  location /new { limit_req zone=a; try_files $uri /index.php; }
  location /files { try_files $uri =404; }
}
";
    let warnings = |text: &str| -> Vec<String> {
        let warnings: String = imported(text).warnings.iter().map(ToString::to_string).collect();
        let named = warnings.lines().filter(|line| line.contains("the internal redirect"));
        named.map(|line| line.split(": ").next().unwrap().to_owned()).collect()
    };
    let places = ["nginx.conf:3:3", "nginx.conf:5:3", "nginx.conf:6:3", "nginx.conf:10:37"];
    assert_eq!(warnings(&format!("{ZONE}\n{text}")), places);
}

#[test]
fn limits_of_named_locations_are_named_at_their_line() {
    let text = format!(
        "{ZONE}
limit_conn_zone $binary_remote_addr zone=c:10m;
server {{
  location / {{ error_page 418 = @limited; return 418; }}
  location @limited {{ limit_req zone=a; limit_conn c 5; }}
  location @free {{ }}
}}
"
    );
    let ImportedRules { text, warnings } = imported(&text);
    assert!(text.contains("# None of its limits was imported.\n"), "{text}");
    let warnings: String = warnings.iter().map(ToString::to_string).collect();
    for expected in [
        "nginx.conf:4:16: warning: the internal redirect of `error_page` has no equivalent",
        "nginx.conf:5:23: warning: a limit of a named location has no equivalent",
        "nginx.conf:5:41: warning: a limit of a named location has no equivalent",
    ] {
        assert!(warnings.contains(expected), "{expected}\n{warnings}");
    }
    assert_eq!(warnings.matches("warning: ").count(), 3, "{warnings}");
}

/// The file of an `index` may be in a location with other limits than the folder.
#[test]
fn index_files_are_named_if_their_location_has_other_limits() {
    for (server, expected) in [
        ("index index.php; location / { } location ~ \\.php$ { limit_req zone=a; }", 1),
        ("location / { index index.html index.php; } location ~ \\.php$ { limit_req zone=a; }", 1),
        ("location /x/ { index /y.html; } location = /y.html { limit_req zone=a; }", 1),
        ("index index.html; location / { } location ~ \\.php$ { limit_req zone=a; }", 0),
        ("index index.html; location / { limit_req zone=a; }", 0),
        ("index index.php; limit_req zone=a; location ~ \\.php$ { }", 0),
        ("index index.php; location / { proxy_pass http://x; } location ~ \\.php$ { limit_req zone=a; }", 0),
    ] {
        let imported = imported(&format!("{ZONE}\nserver {{ {server} }}"));
        let warnings: String = imported.warnings.iter().map(ToString::to_string).collect();
        let found = warnings.matches("the internal redirect of `index` has no equivalent").count();
        assert_eq!(found, expected, "{server}\n{warnings}");
    }
}

#[test]
fn broken_files_are_errors_with_positions() {
    for (text, expected) in [
        ("http {", "nginx.conf:1:7: error: a block is not closed"),
        ("}", "nginx.conf:1:1: error: no block is open here"),
        ("server { limit_req zone=a }", "nginx.conf:1:10: error: the directive `limit_req` does not end"),
        ("server_name 'x", "nginx.conf:1:13: error: this text is not closed"),
        ("include missing.conf;", "nginx.conf:1:9: error: cannot read `missing.conf`: No such file"),
        ("include itself;", "too many files are included"),
        ("limit_req_zone $x zone=a rate=1r/s;", "nginx.conf:1:19: error: a zone needs a name and a size"),
        ("limit_req_zone $x zone=a:1m rate=0r/s;", "nginx.conf:1:29: error: `0r/s` is not a rate"),
        ("limit_req_zone $x zone=a:1m burst=1;", "nginx.conf:1:29: error: unknown parameter `burst=1`"),
        ("limit_req burst=5;", "nginx.conf:1:1: error: a limit needs the name of a zone"),
        ("limit_req zone=a burst=-5;", "nginx.conf:1:18: error: `-5` is not a number from 1"),
        ("limit_req zone=nothing;", "nginx.conf:1:1: error: there is no zone `nothing`"),
        (
            "limit_conn_zone $x zone=a:1m; limit_conn a 70000;",
            "nginx.conf:1:44: error: `70000` is not a number",
        ),
        ("limit_conn_zone $uri zone=a:1m; limit_req zone=a;", "the zone `a` is of the other kind"),
    ] {
        let errors = import("nginx.conf", text, &mut no_files).expect_err(text).to_string();
        assert!(errors.contains(expected), "{text}\n{errors}");
        assert!(errors.contains("hint: "), "{errors}");
    }
}

#[test]
fn fuzz_imports_of_any_text() {
    const SAMPLE: &str = "
http {
  geo $limited { default 1; 10.0.0.0/8 0; }
  map $limited $key { 0 ''; 1 $binary_remote_addr; }
  map $http_x_api_key $by_key { '' $key; ~^p- ''; default $http_x_api_key$uri; }
  limit_req_zone $key zone=a:10m rate=30r/m; # comment
  limit_conn_zone $by_key zone=b:10m;
  limit_req zone=a burst=5 delay=2;
  server { server_name a.example *.b.example; listen 80 default_server;
    location ~* \\.(png|gif)$ { limit_req_dry_run on; include limits.conf; }
    location ^~ /x { limit_conn b 5; location ~ (^/x|y$) { limit_req zone=a; } location = /x/y { limit_req zone=a nodelay; } } }
  server { server_name \"c.example\"; limit_conn b 7; }
}
";
    super::mutations::fuzz_imports(SAMPLE, |text| {
        import("x", text, &mut no_files).ok().map(|imported| imported.text)
    });
}
