//! The allow and deny lists.

use super::selection::{load, run_file_tests};
use tollgate_core::request::Request;
use tollgate_core::rules::lists::ListVerdict;
use tollgate_core::time::UnixTime;

#[test]
fn entries_are_keys_globs_addresses_and_networks() {
    run_file_tests(
        r#"
rules: [{ id: a, limit: 1/min }]
whitelist: [exact, "glob_*", 203.0.113.9, 10.0.0.0/8, "2001:db8::/32", 007, 12345]
allow: ["::ffff:192.0.2.0/120", ann]
blacklist: ["glob_bad_*", 198.51.100.0/24]
deny: ["::ffff:203.0.113.7", acme, "2001:db8:bad::/48"]
tests:
  - name: allowed clients
    steps:
      - { send: 3, expect: unlimited, request: { key: exact } }
      - { send: 3, expect: unlimited, request: { key: glob_1 } }
      - { send: 3, expect: unlimited, request: { key: "007" } }
      - { send: 3, expect: unlimited, request: { key: "12345" } }
      - { send: 3, expect: unlimited, request: { user: ann } }
      - { send: 3, expect: unlimited, request: { key: x, ip: 10.255.0.1 } }
      - { send: 3, expect: unlimited, request: { key: x, ip: "::ffff:10.0.0.1" } }
      - { send: 3, expect: unlimited, request: { ip: 192.0.2.77 } }
      - { send: 3, expect: unlimited, request: { ip: 203.0.113.9 } }
      - { send: 3, expect: unlimited, request: { ip: "2001:db8:7::1" } }
  - name: deny takes precedence over allow
    steps:
      - { expect: denied, request: { key: glob_bad_1 } }
      - { expect: denied, request: { key: exact, ip: 198.51.100.200 } }
      - { expect: denied, request: { key: exact, tenant: acme } }
      - { expect: denied, request: { ip: 203.0.113.7 } }
      - { expect: denied, request: { ip: "2001:db8:bad::1" } }
  - name: other clients are limited
    steps:
      - { send: 3, pass: 1, request: { key: exactly } }
      - { send: 3, pass: 1, request: { key: "7" } }
      - { send: 3, pass: 1, request: { key: EXACT } }
      - { send: 3, pass: 1, request: { ip: 192.0.3.1 } }
      - { send: 3, pass: 1, request: { key: 10.0.0.1 } }
"#,
    );
}

#[test]
fn entries_expire() {
    run_file_tests(
        r#"
rules: [{ id: a, limit: 1/min }]
deny:
  - { key: k, expires: 2026-01-05T00:00:10Z }
  - { key: "k*", expires: 2026-01-05T00:00:20Z }
  - { key: 10.0.0.0/8, expires: 2026-01-05T00:00:10Z }
  - { key: 10.1.0.0/16, expires: 2026-01-05T00:00:20Z }
allow:
  - { key: k, expires: 2026-01-05T00:00:30Z }
tests:
  - name: the entry that expires last counts, then the other list
    start: 2026-01-05
    request: { key: k }
    steps:
      - { at: 9.999999s, expect: denied }
      - { at: 19.999999s, expect: denied }
      - { at: 20s, send: 3, expect: unlimited }
      - { at: 30s, send: 3, pass: 1 }
  - name: networks within networks
    start: 2026-01-05
    steps:
      - { at: 10s, expect: pass, request: { ip: 10.2.0.1 } }
      - { at: 10s, expect: denied, request: { ip: 10.1.0.1 } }
      - { at: 20s, expect: pass, request: { ip: 10.1.0.1 } }
"#,
    );
}

#[test]
fn a_lookup_is_valid_until_the_next_expiry() {
    let loaded = load(
        r#"
rules: [{ id: a, limit: 1/min }]
deny: [{ key: k, expires: 1970-01-01T00:00:10Z, reason: why }, { key: k, expires: 1970-01-01T00:00:05Z }]
allow: [{ key: k*, expires: 1970-01-01T00:00:20Z }, 10.0.0.0/8]
"#,
    );
    let ip = Some("10.0.0.1".parse().unwrap());
    let request = Request { api_key: Some("k"), ..Request::default() };
    let at = |request: &Request<'_>, now_us| {
        let lookup = loaded.lists.look_up(request, UnixTime::from_us(now_us));
        (lookup.verdict, lookup.until.as_us())
    };
    assert_eq!(at(&request, 0), (Some(ListVerdict::Denied), 10_000_000));
    assert_eq!(at(&request, 9_999_999), (Some(ListVerdict::Denied), 10_000_000));
    assert_eq!(at(&request, 10_000_000), (Some(ListVerdict::Allowed), 20_000_000));
    assert_eq!(at(&request, 20_000_000), (None, u64::MAX));
    assert_eq!(at(&Request { ip, ..request }, 0), (Some(ListVerdict::Denied), 10_000_000));
    assert_eq!(at(&Request { ip, ..request }, 30_000_000), (Some(ListVerdict::Allowed), u64::MAX));
    let (verdict, entry) = loaded.lists.find_entry(&request, UnixTime::from_us(0)).unwrap();
    assert_eq!(
        (verdict, entry.pattern.as_str(), entry.reason.as_deref()),
        (ListVerdict::Denied, "k", Some("why"))
    );
}
