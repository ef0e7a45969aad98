//! Attempts to bypass a limit on a path or host: one table that every door is tested with.
//!
//! Each row has a path that [`RULES`] limit to one request a day, and another spelling of it. After that one request,
//! the spelling must be limited too, or refused as a bad request.

/// One request a day for each API key under each rule.
pub const RULES: &str = r#"
rules:
  - { id: root, endpoint: /, limit: 1/day }
  - { id: login, endpoint: /login, limit: 1/day }
  - { id: users, endpoint: "/users/{id}", key: [api_key, route], limit: 1/day }
  - { id: files, endpoint: "/files/{*rest}", limit: 1/day }
  - { id: template, endpoint: "/t1/items:batch", limit: 1/day }
  - { id: regex, match: { endpoint_regex: "^/r1/items:batch$" }, limit: 1/day }
  - { id: report, match: { endpoint_regex: "^/x/[^/]*report$" }, limit: 1/day }
  - { id: any, match: { endpoint_regex: "^/any/.+$" }, limit: 1/day }
  - { id: cafe, endpoint: "/café", limit: 1/day }
  - { id: percent, endpoint: "/100%25", limit: 1/day }
  - { id: shop, domain: shop.example, endpoint: /shop, limit: 1/day }
"#;

/// The domain of the rule `shop` in [`RULES`].
pub const HOST: &str = "shop.example";

/// Another spelling of a limited path or host.
#[derive(Clone, Copy, Debug)]
pub struct Bypass {
    /// The limited path.
    pub limited: &'static str,
    /// What the client sends instead.
    pub spelling: BypassSpelling,
    /// The expected outcome.
    pub outcome: BypassOutcome,
}

/// Which part of a request is spelled differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BypassSpelling {
    /// The path; this applies to every door.
    Path(&'static str),
    /// The request target of HTTP/1.1, in another form than a path.
    Target(&'static str),
    /// `:path` of HTTP/2, in another form than a path.
    PseudoPath(&'static str),
    /// The host: `Host` or `:authority`.
    Host(&'static str),
}

/// The expected outcome of a spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BypassOutcome {
    /// It counts against the limit.
    Limited,
    /// It is refused as a bad request.
    Refused,
}

/// All rows.
pub fn bypasses() -> impl Iterator<Item = Bypass> {
    let paths = PATHS.iter().flat_map(|(limited, spellings)| {
        rows(limited, spellings, BypassSpelling::Path, BypassOutcome::Limited)
    });
    let refused = rows("/login", REFUSED_PATHS, BypassSpelling::Path, BypassOutcome::Refused);
    let targets = TARGETS.iter().flat_map(|(limited, spellings)| {
        rows(limited, spellings, BypassSpelling::Target, BypassOutcome::Limited)
    });
    let refused_targets = rows("/login", REFUSED_TARGETS, BypassSpelling::Target, BypassOutcome::Refused);
    let pseudo_paths =
        rows("/", &["#x", "?x", "#/login", "?#x"], BypassSpelling::PseudoPath, BypassOutcome::Limited);
    let refused_pseudo_paths =
        rows("/login", &["*", "login"], BypassSpelling::PseudoPath, BypassOutcome::Refused);
    let hosts = rows("/shop", HOSTS, BypassSpelling::Host, BypassOutcome::Limited);
    let refused_hosts = rows("/shop", REFUSED_HOSTS, BypassSpelling::Host, BypassOutcome::Refused);
    paths
        .chain(refused)
        .chain(targets)
        .chain(refused_targets)
        .chain(pseudo_paths)
        .chain(refused_pseudo_paths)
        .chain(hosts)
        .chain(refused_hosts)
}

fn rows(
    limited: &'static str,
    spellings: &'static [&'static str],
    form: fn(&'static str) -> BypassSpelling,
    outcome: BypassOutcome,
) -> impl Iterator<Item = Bypass> {
    spellings.iter().map(move |spelling| Bypass { limited, spelling: form(spelling), outcome })
}

const PATHS: &[(&str, &[&str])] = &[
    ("/", &["//", "/.", "/x/..", "/;x", "/;jsessionid=1", "/?x", "/#x"]),
    (
        "/login",
        &[
            "//login",
            "///login",
            "/./login",
            "/x/../login",
            "/%6cogin",
            "/%6Cogin",
            "/l%6Fgin",
            "/login/",
            "/login//",
            "/login/.",
            "/login;x",
            "/login;",
            "/login;x=y/",
            "/login;x;y=%20",
            "/LOGIN",
            "/Login",
            "/.//%2e/LOG%49N;a/",
            "/login?x=y",
            "/login#x",
            "/login#/../x",
            "/login?x#y",
            "/;x/login",
            "/;/login",
            "/login/;x",
            "/login/;",
            "/;x/;y/login/;z",
            "/;x//./login;y",
            "/x;y/../login",
        ],
    ),
    (
        "/users/1",
        &["/users/2", "/USERS/3/", "/users/4;x", "//users/./5", "/users;x/6", "/users/;/7", "/users/%3a"],
    ),
    ("/files/a", &["/files/", "/files/;x", "/files;x/a/b", "/Files/a%20b", "/files/%25", "/files/caf%c3%a9"]),
    (
        "/t1/items:batch",
        &[
            "/t1/items%3Abatch",
            "/t1/items%3abatch",
            "/t1/items:batch;x",
            "/T1/%69tems%3Abatch/",
            "/t1;/items%3abatch;x",
        ],
    ),
    (
        "/r1/items:batch",
        &[
            "/r1/items%3Abatch",
            "/r1/items%3abatch;x",
            "/r1/items:batch;x",
            "/r1;x/items:batch",
            "/r1/;/items%3Abatch",
        ],
    ),
    ("/x/report", &["/x/report;a", "/x/a;report", "/x;y/report", "/x/a%3Areport"]),
    ("/any/x", &["/any/caf%c3%a9", "/any/%E2%82%AC", "/any/%22", "/any/%25", "/any/a;b"]),
    ("/café", &["/caf%c3%a9", "/caf%C3%A9;x", "/CAF%C3%89"]),
    ("/100%25", &["/10%30%25", "/100%25;x", "/100%25/"]),
];

const REFUSED_PATHS: &[&str] = &[
    "/%2e%2e%2flogin",
    "/x%2flogin",
    "/x%2F..%2Flogin",
    "/%5clogin",
    "/x\\login",
    "/login%00",
    "/login%0a",
    "/login%7f",
    "/../login",
    "/;x/../login",
    "/x/..;/login",
    "/x/.;/login",
    "/x/%2e%2e;y/login",
    "/x/..%3b/login",
    "/%3bx/login",
    "/login%3bx",
    "/login%3B",
    "/log%zzin",
    "/login%",
    "/login%2",
    "/%c0%aflogin",
    "/%e0%80%aflogin",
    "/login%ff",
    "/caf%e9",
];

const TARGETS: &[(&str, &[&str])] = &[
    (
        "/",
        &[
            "http://test",
            "http://test#x",
            "http://test?x",
            "http://test/#x",
            "http://test?#x",
            "http://test#/login",
        ],
    ),
    (
        "/login",
        &[
            "http://test/login",
            "http://test//login#x",
            "HTTP://TEST/%6cogin",
            "https://other/login?x#y",
            "http://test/;x/login",
        ],
    ),
];

const REFUSED_TARGETS: &[&str] = &[
    "login",
    "*",
    "#x",
    "?x",
    "http:///login",
    "http://#x/login",
    "http://user@test/login",
    "http://a,b/login",
];

const HOSTS: &[&str] = &[
    "shop.example",
    "SHOP.example",
    "Shop.Example:80",
    "shop.example.",
    "shop.example.:8080",
    "shop.example:",
];

const REFUSED_HOSTS: &[&str] = &[
    "evil.example:x.shop.example",
    "evil.example:80.shop.example",
    "shop.example,evil.example",
    "evil.example,shop.example",
    "shop.example..",
    "shop.example:80:80",
    "user@shop.example",
    "shop.example/x",
    "shop.example;x",
    "*.example",
];
