//! Imported configurations of envoyproxy/ratelimit decide as a model of its documentation does.

use fastrand::Rng;
use serde_json::Value;
use std::collections::HashMap;
use tollgate_core::decision::Outcome;
use tollgate_core::descriptor::DescriptorFields;
use tollgate_core::import::envoy_ratelimit::import;
use tollgate_core::rules::{self, LoadedRules, RULE_TEST_START, VirtualNode};
use tollgate_core::time::UnixTime;

/// The limit that a descriptor meets in the tree: the node with its value, else the first wildcard, else the node without
/// a value. The name of its counter has the values, or the wildcard where the threshold is shared.
fn find_limit<'c>(config: &'c Value, entries: &[(&str, &str)]) -> Option<(&'c Value, String)> {
    let mut nodes = config["descriptors"].as_array()?;
    let mut counter = String::new();
    for (index, (key, value)) in entries.iter().enumerate() {
        let of_key = || nodes.iter().filter(|node| node["key"] == *key);
        let text = |node: &Value| match &node["value"] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let exact = of_key().find(|node| text(node) == *value && !value.is_empty());
        let wildcard = || of_key().find(|node| text(node).contains('*') && matches(&text(node), value));
        let node = exact.or_else(wildcard).or_else(|| of_key().find(|node| text(node).is_empty()))?;
        let is_shared = node["share_threshold"] == true && exact.is_none();
        counter += &format!("{key}={};", if is_shared { text(node) } else { (*value).to_owned() });
        if index + 1 == entries.len() {
            return node
                .get("rate_limit")
                .filter(|limit| limit["unlimited"] != true)
                .map(|_| (node, counter));
        }
        nodes = node["descriptors"].as_array()?;
    }
    None
}

/// Whether `value` matches a pattern with stars, tried in every way.
fn matches(pattern: &str, value: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == value,
        Some((before, after)) => value.strip_prefix(before).is_some_and(|rest| {
            let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
            ends.into_iter().any(|at| matches(after, &rest[at..]))
        }),
    }
}

#[derive(Default)]
struct ModelService {
    counters: HashMap<String, u64>,
}

impl ModelService {
    fn admits(&mut self, config: &Value, entries: &[(&str, &str)], second: u64) -> bool {
        let Some((node, counter)) = find_limit(config, entries) else { return true };
        let limit = &node["rate_limit"];
        let unit = match limit["unit"].as_str().unwrap().to_lowercase().as_str() {
            "second" => 1,
            "minute" => 60,
            "hour" => 3_600,
            "day" => 86_400,
            "week" => 604_800,
            "month" => 2_592_000,
            "year" => 31_536_000,
            other => panic!("{other}"),
        };
        let window = unit * limit["unit_multiplier"].as_u64().unwrap_or(1);
        let count = self.counters.entry(format!("{counter}{}", second / window * window)).or_default();
        *count += 1;
        *count <= limit["requests_per_unit"].as_u64().unwrap() || node["shadow_mode"] == true
    }
}

pub(crate) fn load(text: &str) -> (LoadedRules, Value, String) {
    let imported = import(&[("config.yaml", text)]).unwrap_or_else(|errors| panic!("{errors}"));
    let loaded = rules::load("imported", &imported.text).unwrap_or_else(|report| panic!("{report}"));
    assert!(loaded.warnings.is_empty(), "{}\n{}", loaded.warnings, imported.text);
    (loaded, rules::rule_file_json("config.yaml", text).unwrap(), imported.text)
}

/// Plays random descriptors over these keys and values to the model and to the imported rules.
fn plays_alike(text: &str, keys: &[&str], values: &[&str]) {
    let (loaded, config, written) = load(text);
    let domain = config["domain"].as_str().unwrap();
    let mut rng = Rng::with_seed(7);
    let (mut model, mut node) = (ModelService::default(), VirtualNode::default());
    let start = RULE_TEST_START.as_us() / 1_000_000;
    let (mut second, mut refused) = (start, 0);
    for step in 0..20_000 {
        if rng.u8(..10) == 0 {
            second += *rng.choice(&[1, 7, 61, 601, 4_000, 90_000, 700_000]).unwrap();
        }
        let mut entries: Vec<(&str, &str)> = Vec::new();
        for _ in 0..rng.usize(1..=3) {
            let key = *rng.choice(keys).unwrap();
            if entries.iter().all(|(known, _)| *known != key) {
                entries.push((key, rng.choice(values).unwrap()));
            }
        }
        // The order of entries has no meaning to rules: it is that of the configuration.
        entries.sort_by_key(|(key, _)| keys.iter().position(|known| known == key));
        let expected = model.admits(&config, &entries, second);
        let fields = DescriptorFields::decode(entries.iter().copied()).unwrap();
        let now = RULE_TEST_START + (second - start) * 1_000_000;
        let found = match node.check(&loaded, &fields.request(domain, 1), now).unwrap() {
            Outcome::Limited(_) | Outcome::Denied => false,
            Outcome::Admitted(_) | Outcome::Unlimited => true,
        };
        assert_eq!(found, expected, "step {step}: {entries:?} at {second}\n{written}");
        refused += u32::from(!found);
    }
    assert!(refused > 0, "nothing was refused:\n{written}");
}

#[test]
fn configurations_decide_as_the_model() {
    let plain = ["message_type", "to_number", "database"];
    for (text, keys, values) in [
        (
            "
domain: mongo_cps
descriptors:
  - { key: database, value: users, rate_limit: { unit: second, requests_per_unit: 5 } }
  - { key: database, value: default, rate_limit: { unit: MINUTE, requests_per_unit: 3 } }
",
            &plain[..],
            &["users", "default", "other"][..],
        ),
        (
            "
domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - { key: to_number, rate_limit: { unit: day, requests_per_unit: 5 } }
  - { key: to_number, rate_limit: { unit: day, requests_per_unit: 10 } }
",
            &plain,
            &["marketing", "1", "2"],
        ),
        (
            "
domain: precedence
descriptors:
  - { key: database, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: database, value: '*b*', rate_limit: { unit: minute, requests_per_unit: 7 } }
  - { key: database, value: a*, rate_limit: { unit: minute, requests_per_unit: 4 } }
  - { key: database, value: abc, rate_limit: { unit: hour, requests_per_unit: 9 } }
  - { key: database, value: free, rate_limit: { unlimited: true } }
  - { key: database, value: allowed }
  - { key: database, value: shady, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 1 } }
",
            &plain,
            &["abc", "axx", "xbx", "abx", "free", "allowed", "shady", "zzz"],
        ),
        (
            "
domain: without-going-back
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - { key: to_number, value: 1, rate_limit: { unit: week, requests_per_unit: 3 } }
  - key: message_type
    rate_limit: { unit: month, requests_per_unit: 6 }
    descriptors:
      - key: to_number
        rate_limit: { unit: year, requests_per_unit: 4 }
        descriptors:
          - { key: database, rate_limit: { unit: minute, unit_multiplier: 15, requests_per_unit: 2 } }
",
            &plain,
            &["marketing", "1", "2"],
        ),
        (
            "
domain: shared
descriptors:
  - { key: database, value: 'files/*', share_threshold: true, rate_limit: { unit: hour, requests_per_unit: 10 } }
  - { key: to_number, value: '*/x', rate_limit: { unit: hour, requests_per_unit: 3 } }
  - key: message_type
    value: 'files/*'
    share_threshold: true
    descriptors: [{ key: to_number, rate_limit: { unit: hour, requests_per_unit: 5 } }]
",
            &plain,
            &["files/x", "files/y", "other/x"],
        ),
        (
            "
domain: overlaps
descriptors:
  - { key: database, value: 'a*c', rate_limit: { unit: hour, requests_per_unit: 3 } }
  - { key: database, value: 'ab*', rate_limit: { unit: hour, requests_per_unit: 5 } }
  - { key: database, value: 'b*', rate_limit: { unit: hour, requests_per_unit: 4 } }
  - { key: database, value: '*d', rate_limit: { unit: hour, requests_per_unit: 2 } }
  - { key: database, value: '*', rate_limit: { unit: hour, requests_per_unit: 1 } }
  - { key: path, value: '/a*c', rate_limit: { unit: hour, requests_per_unit: 3 } }
  - { key: path, value: '/ab*', rate_limit: { unit: hour, requests_per_unit: 5 } }
  - { key: path, value: '*d', rate_limit: { unit: hour, requests_per_unit: 2 } }
  - { key: path, value: '*', rate_limit: { unit: hour, requests_per_unit: 1 } }
",
            &["database", "path"],
            &["/abc", "/abd", "/ab", "/xd", "/ac", "/x", "abc", "abd", "bd", "ad", "ac", "x"],
        ),
        (
            "
domain: identities
descriptors:
  - { key: remote_address, rate_limit: { unit: second, requests_per_unit: 3 } }
  - { key: remote_address, value: 192.0.2.7, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: remote_address, value: '10.1.*', rate_limit: { unit: second, requests_per_unit: 2 } }
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 4 }, descriptors: [{ key: tenant, rate_limit: { unit: minute, requests_per_unit: 1 } }] }
  - { key: api_key, value: 10*, rate_limit: { unit: minute, requests_per_unit: 2 } }
",
            &["remote_address", "user", "tenant", "api_key"],
            &["192.0.2.7", "192.0.2.8", "10.1.0.1", "10.2.0.1", "2001:db8::1", "2001:db8::2"],
        ),
        (
            "
domain: paths
descriptors:
  - { key: path, rate_limit: { unit: minute, requests_per_unit: 5 } }
  - { key: path, value: /login, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: path, value: '/api/*/action', rate_limit: { unit: minute, requests_per_unit: 3 } }
  - key: path
    value: '/api/*'
    descriptors:
      - { key: user, rate_limit: { unit: minute, requests_per_unit: 1 } }
      - { key: user, value: /login, rate_limit: { unit: minute, requests_per_unit: 6 } }
",
            &["path", "user"],
            &["/login", "/LOGIN", "/api/1/action", "/api/2/action", "/api/2/other", "/x"],
        ),
        (
            "
domain: methods
descriptors:
  - { key: method, value: POST, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: method, rate_limit: { unit: minute, requests_per_unit: 5 }, descriptors: [{ key: generic_key, value: POST, rate_limit: { unit: minute, requests_per_unit: 1 } }] }
",
            &["method", "generic_key"],
            &["GET", "POST", "PUT"],
        ),
    ] {
        plays_alike(text, keys, values);
    }
}

#[test]
fn a_limit_replaces_another_by_its_name() {
    let (loaded, _, text) = load(
        "
domain: example7
descriptors:
  - { key: user, rate_limit: { name: specific, requests_per_unit: 5, unit: second } }
  - { key: plan, value: gold, rate_limit: { replaces: [{ name: specific }], requests_per_unit: 10, unit: second } }
",
    );
    assert!(text.contains("replaces: example7/user\n"), "{text}");
    assert_eq!(loaded.rules.rules().len(), 2);
}

#[test]
fn what_has_no_equivalent_is_named_at_its_line() {
    let text = "\
domain: d
descriptors:
  - key: a
    detailed_metric: true
    value_to_metric: true
    metadata: { x: 1 }
    rate_limit: { unit: second, requests_per_unit: 0 }
  - key: b
    quota_mode: true
    rate_limit: { unit: year, unit_multiplier: 3, requests_per_unit: 9 }
  - key: c
    rate_limit: { unit: second, requests_per_unit: 1, replaces: [{ name: nothing }] }
    descriptors:
      - key: c
        rate_limit: { unit: second, requests_per_unit: 1 }
      - { key: a, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: a, value: x, descriptors: [{ key: c, rate_limit: { unit: second, requests_per_unit: 1 } }] }
  - { key: ip, value: x, rate_limit: { unit: second, requests_per_unit: 1 } }
";
    let imported = import(&[("c.yaml", text)]).unwrap();
    assert!(rules::load("x", &imported.text).unwrap().warnings.is_empty());
    let warnings = imported.warnings[0].to_string();
    for expected in [
        "c.yaml:4:5: warning: `detailed_metric` has no equivalent",
        "c.yaml:5:5: warning: `value_to_metric` has no equivalent",
        "c.yaml:6:5: warning: `metadata` has no equivalent",
        "c.yaml:7:52: warning: a limit of 0 has no equivalent",
        "c.yaml:9:5: warning: `quota_mode` has no equivalent",
        "c.yaml:10:17: warning: a period above 366 days has no equivalent",
        "c.yaml:12:66: warning: no imported limit of this domain has the name `nothing`",
        "c.yaml:14:9: warning: a descriptor with two entries for the same identity has no equivalent: `c`",
        "c.yaml:17:41: warning: the order of entries has no equivalent",
        "c.yaml:18:7: warning: `x` as `ip` has no equivalent",
    ] {
        assert!(warnings.contains(expected), "{expected}\n{warnings}");
    }
    assert_eq!(imported.warnings[0].diagnostics().len(), 10, "{warnings}");
    assert!(imported.text.contains("limit: 3/365day"), "{}", imported.text);
}

/// The original refuses every request, rules admit at least one: one a year for each value, whatever the unit.
#[test]
fn a_limit_of_zero_becomes_one_a_year() {
    const YEAR_US: u64 = 365 * 86_400_000_000;
    for unit in ["second", "day", "year"] {
        let config = format!(
            "domain: d\ndescriptors: [{{ key: a, rate_limit: {{ unit: {unit}, requests_per_unit: 0 }} }}]"
        );
        let imported = import(&[("c.yaml", &config)]).unwrap();
        let rule = "
rules:
  # c.yaml:2: a
  # 0 in the original: every request is refused there
  - id: d/a
    domain: d
    match: { exactly: [a] }
    key: a
    algorithm: fixed_window
    limit: 1/365day
";
        assert!(format!("\n{}", imported.text).contains(rule), "{}", imported.text);
        let warnings = imported.warnings[0].to_string();
        assert!(warnings.contains("imported as 1 per year and key"), "{warnings}");
        let loaded = rules::load("imported", &imported.text).unwrap();
        let mut node = VirtualNode::default();
        let mut is_admitted = |value, now| {
            let fields = DescriptorFields::decode([("a", value)]).unwrap();
            matches!(node.check(&loaded, &fields.request("d", 1), now).unwrap(), Outcome::Admitted(_))
        };
        let start = RULE_TEST_START;
        let next_year = start + (YEAR_US - start.as_us() % YEAR_US);
        for (value, now, expected) in [
            ("x", start, true),
            ("x", start, false),
            ("y", start, true),
            ("x", start + 2 * 86_400_000_000, false),
            ("x", UnixTime::from_us(next_year.as_us() - 1), false),
            ("x", next_year, true),
            ("x", next_year, false),
        ] {
            assert_eq!(is_admitted(value, now), expected, "{unit}: {value} at {}", now.as_us());
        }
    }
}

/// The other limits are imported.
#[test]
fn limits_that_are_too_large_are_named_at_their_line() {
    let text = "\
domain: d
descriptors:
  - { key: a, rate_limit: { unit: year, requests_per_unit: 100000000 } }
  - { key: b, rate_limit: { unit: day, requests_per_unit: 99999999999 } }
  - { key: c, rate_limit: { unit: second, requests_per_unit: 1 } }
";
    let imported = import(&[("c.yaml", text)]).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(rules::load("x", &imported.text).unwrap().rules.rules().len(), 1, "{}", imported.text);
    let warnings = imported.warnings[0].to_string();
    for expected in [
        "c.yaml:3:60: warning: this limit has no equivalent: a limit of 100000000 in a window of this length",
        "c.yaml:4:59: warning: this limit has no equivalent: 99999999999 is too large",
    ] {
        assert!(warnings.contains(expected), "{expected}\n{warnings}");
    }
}

/// The original compares values as texts.
#[test]
fn values_that_are_no_address_are_named() {
    for (value, expected) in [
        ("10.0.0.0/8", "values are compared as texts, and no address is this text"),
        ("2001:db8::/32", "values are compared as texts, and no address is this text"),
        ("10.1*", "wildcards over addresses are written as `10.1.*`"),
        ("localhost", "it is not an address"),
    ] {
        let text = format!(
            "domain: d\ndescriptors: [{{ key: remote_address, value: '{value}', rate_limit: {{ unit: day, requests_per_unit: 1 }} }}]"
        );
        let warnings = import(&[("c.yaml", &text)]).unwrap().warnings[0].to_string();
        let expected = format!("`{value}` as `remote_address` has no equivalent: {expected}\n");
        assert!(warnings.contains(&expected), "{warnings}");
    }
}

#[test]
fn broken_files_are_errors_with_positions() {
    for (text, expected) in [
        ("domain: [", "c.yaml:"),
        ("descriptors: []", "a configuration needs a domain"),
        ("domain: d\ndescriptors:\n  - value: x", "c.yaml:3:5: error: a descriptor needs a key"),
        ("domain: d\ndescriptors:\n  - { key: a }\n  - { key: a }", "c.yaml:4:12: error: `a` is given twice"),
        (
            "domain: d\ndescriptors:\n  - { key: a, rate_limit: { unit: fortnight } }",
            "`fortnight` is not a unit",
        ),
        (
            "domain: d\ndescriptors:\n  - { key: a, rate_limit: { requests_per_unit: 1 } }",
            "a limit needs a unit",
        ),
        ("domain: d\ndescriptors:\n  - { key: a, ratelimit: 1 }", "3:15: error: unknown field `ratelimit`"),
        ("domain: d\ndescriptors:\n  - { key: a, share_threshold: true }", "only values with a wildcard"),
        ("domain: d\ndescriptors:\n  - { key: a, value: 1.5 }", "put it in quotes"),
    ] {
        let errors = import(&[("c.yaml", text)]).expect_err(text).to_string();
        assert!(errors.contains(expected), "{text}\n{errors}");
        assert!(errors.contains("hint: ") || errors.contains("c.yaml:1:"), "{errors}");
    }
}

/// Neither ids, which are in headers and metrics, nor reports show API keys.
#[test]
fn api_keys_are_not_in_ids_and_reports() {
    let text = "
domain: d
descriptors:
  - { key: api_key, value: sk_live_4711, detailed_metric: true, rate_limit: { unit: second, requests_per_unit: 1 } }
";
    let imported = import(&[("c.yaml", text)]).unwrap();
    assert_eq!(imported.text.matches("sk_live_4711").count(), 1, "{}", imported.text);
    assert!(imported.text.contains("api_key_pattern: sk_live_4711"), "{}", imported.text);
    assert!(!imported.warnings[0].to_string().contains("sk_live"), "{}", imported.warnings[0]);
}

#[test]
fn fuzz_imports_of_any_text() {
    const SAMPLE: &str = "
domain: d
descriptors:
  - key: a
    value: 'b*'
    share_threshold: true
    rate_limit: { unit: second, requests_per_unit: 5, name: x, replaces: [{ name: y }] }
    descriptors: [{ key: path, value: /x/*, rate_limit: { unlimited: true } }, { key: method, value: G* }]
  - { key: remote_address, value: '10.*', shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 1 } }
";
    super::mutations::fuzz_imports(SAMPLE, |text| import(&[("x", text)]).ok().map(|imported| imported.text));
}
