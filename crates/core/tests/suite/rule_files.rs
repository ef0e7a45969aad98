//! The shipped rule files, and the JSON Schema of rule files.

use regex::Regex;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::PathBuf;
use tollgate_core::document::Document;
use tollgate_core::rules;

/// A valid file with every field.
pub const EVERYTHING: &str = r#"
defaults:
  tier: anonymous
  key: api_key
  ipv6_prefix: 56
  algorithm: token_bucket
  limit: 50/s
  burst: 60
  ip_safety_net: 10
  on_exceed: reject
  penalty: false
  soft: 90%
  on_store_failure: allow
  consistency: leased
  lease: { interval: 200ms }
tiers:
  anonymous: { params: { limit: 10, window: 1 } }
  free: { api_key_pattern: sk_free_*, limit: 20/s, burst: 30 }
  pro: { keys: [sk_winner, ann], algorithm: gcra, params: { burst: 9, limit: 100/s } }
  big: { api_key_pattern: [sk_big_*, sk_huge_*], limits: [100/s, { limit: 1000/h, burst: 2000 }] }
routes: ["/v1/users/{id}", "/static/{*rest}"]
rules:
  - id: plan
  - id: everything
    version: 3
    tier: free
    domain: edge
    description: for people
    endpoint: ["/v1/users/{id}", /v1/users]
    methods: [GET, POST]
    key: [tenant, route]
    ipv6_prefix: 48
    algorithm: token_bucket
    params: { capacity: 10, refill_rate: 2.5, window: 4 }
    override: { sk_free_vip: { capacity: 20 }, 203.0.113.9: { limit: 7/s } }
    ip_safety_net: 20
    on_exceed: shadow
    on_store_failure: local
    consistency: strict
  - id: excepting
    domain: [shop.example, "*.shop.example"]
    match: { exactly: [user, endpoint] }
    except:
      api_key_pattern: x*
      user_pattern: [root, admin]
      tenant_pattern: t9
      ip: 192.0.2.0/24
      ids: { plan: free }
      endpoint: /open
      endpoint_regex: ^/v3/
      exact: true
      methods: OPTIONS
      domain: free.shop.example
    replaces: everything
    key: [user, endpoint]
    limit: 5/s
  - id: matching
    fallback: true
    lease: { interval: 50ms, horizon: 1s }
    match:
      api_key_pattern: [a*, "?b"]
      user_pattern: u*
      tenant_pattern: t*
      ip: [10.0.0.0/8, 2001:db8::1]
      ids: { invoice: "2026-*" }
      endpoint: /x
      exact: true
      endpoint_regex: ["^/v[12]/.*$"]
      methods: PUT
    limits: [5/s, 100/day]
    penalty: { after: 3, first: 20, longest: 5min, forget: 2h }
  - { id: leaky, algorithm: leaky_bucket, params: { capacity: 5, leak_rate: 10/min } }
  - { id: log, algorithm: sliding_window_log, params: { limit: 5, window: 90s } }
  - { id: listed, params: { limits: [5/s, { limit: 9/min, burst: 3 }] } }
  - { id: shaper, algorithm: leaky_bucket, limit: 10/s, on_exceed: { queue: { max_wait: 5s, length: 50 } } }
  - { id: shed, limit: 10/s, on_exceed: { shed: { in_flight: 50, from: 40%, reserve: 10%, critical: 100 } } }
  - { id: slow, limit: 10/s, on_exceed: { tarpit: { delay: 3s, most: 10 } }, soft: { at: 80%, then: tarpit } }
  - { id: told, limit: 10/s, on_exceed: { flag: { header: X-Captcha } }, soft: { at: 50%, then: flag } }
  - { id: at_once, algorithm: concurrency, params: { limit: 10, timeout: 30s }, soft: 80% }
whitelist: [sk_internal_*]
allow: [{ key: 10.0.0.0/8, expires: 2030-01-01T00:00:00Z, reason: ours }]
blacklist: [sk_revoked_*]
deny: [198.51.100.7, { key: sk_stolen, by: on-call }]
allow_empty: false
tests:
  - name: all fields
    start: 2026-05-01
    request: { key: a, user: u1, tenant: t1, ip: 203.0.113.9, tier: free, ids: { invoice: "7" }, domain: edge }
    steps:
      - { at: 0s, send: 3, expect: pass, request: { endpoint: /v1/users/7, method: GET, cost: 2 } }
      - { at: 1s, pass: 1 }
      - { at: 1s, remaining: 0, retry_after: 100ms, rule: plan, request: { cost: 4 } }
"#;

fn shipped() -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/rules");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |path: &PathBuf| {
        (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read_to_string(path).unwrap())
    };
    files.iter().filter(|path| path.extension().is_some_and(|end| end == "yaml")).map(read).collect()
}

#[test]
fn shipped_files_load_and_their_tests_pass() {
    let files = shipped();
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    for name in ["quickstart.yaml", "saas-tiers.yaml", "api-endpoints.yaml", "b2b-edge.yaml", "orders.yaml"] {
        assert!(names.contains(&name), "{name} is missing among {names:?}");
    }
    for (name, text) in &files {
        let loaded = rules::load(name, text).unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(loaded.warnings.to_string(), "", "{name}");
        assert!(!loaded.tests.is_empty(), "{name} has no tests");
        for result in rules::run_tests(&loaded) {
            assert_eq!(result.failures, [], "{name}:{}: {}", result.line, result.name);
        }
    }
}

#[test]
fn a_file_with_every_field_loads() {
    let loaded = rules::load("everything.yaml", EVERYTHING).unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(loaded.warnings.to_string(), "");
}

#[test]
fn the_schema_accepts_valid_files_and_has_no_other_fields() {
    let schema = rules::schema();
    let mut check = SchemaCheck { schema: &schema, used: BTreeSet::new() };
    let everything = ("everything.yaml".to_owned(), EVERYTHING.to_owned());
    // A limit has three forms, and one place holds one of them.
    let defaults = ("defaults.yaml", "defaults: { params: { limits: [1/s, 2/min] } }\nrules: [{ id: a }]");
    let others = ("others.yaml", "defaults: { limits: [1/s, 2/min] }\nrules: [{ id: a }]");
    let small = [defaults, others].map(|(name, text)| (name.to_owned(), text.to_owned()));
    for (name, text) in shipped().iter().chain([&everything]).chain(&small) {
        rules::load(name, text).unwrap_or_else(|report| panic!("{report}"));
        let value: Value = Document::parse(name, text).unwrap().decode().unwrap();
        check.value(&schema, "RuleFile", &value).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let mut known = BTreeSet::new();
    list_fields(&schema, "RuleFile", &mut known);
    for (name, definition) in schema["$defs"].as_object().unwrap() {
        list_fields(definition, name, &mut known);
    }
    let unused: Vec<_> = known.difference(&check.used).collect();
    assert!(unused.is_empty(), "fields of the schema that no file uses: {unused:?}");
}

#[test]
fn the_schema_refuses_invalid_files() {
    let schema = rules::schema();
    for text in [
        "rules: 5",
        "rules: [{ limit: 5/s }]",
        "rules: [{ id: a, limt: 5/s }]",
        "rules: [{ id: a, limit: many }]",
        "rules: [{ id: a, limit: 5/s, algorithm: magic }]",
        "rules: [{ id: a, limits: [{ limit: 5/s, brst: 3 }] }]",
        "rules: [{ id: a, limit: 5/s, methods: { a: b } }]",
        "allow: [{ key: a, expire: 2030-01-01 }]",
        "rules: [{ id: a, limit: 5/s, penalty: 5 }]",
        "rules: [{ id: a, limit: 5/s, penalty: { after: 0 } }]",
        "rules: [{ id: a, limit: 5/s, penalty: { afterwards: 3 } }]",
    ] {
        let value: Value = Document::parse("x", text).unwrap().decode().unwrap();
        let mut check = SchemaCheck { schema: &schema, used: BTreeSet::new() };
        assert!(check.value(&schema, "RuleFile", &value).is_err(), "the schema accepts {text}");
        assert!(rules::load("x", text).is_err(), "{text} loads");
    }
}

fn list_fields(schema: &Value, name: &str, known: &mut BTreeSet<String>) {
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        known.extend(properties.keys().map(|field| format!("{name}.{field}")));
    }
    for option in schema.get("anyOf").and_then(Value::as_array).into_iter().flatten() {
        list_fields(option, name, known);
    }
}

/// A validator for the part of JSON Schema that ours uses. It records the fields that it met.
struct SchemaCheck<'s> {
    schema: &'s Value,
    used: BTreeSet<String>,
}

impl SchemaCheck<'_> {
    fn value(&mut self, schema: &Value, name: &str, value: &Value) -> Result<(), String> {
        let Some(schema) = schema.as_object() else { return Ok(()) };
        for (keyword, rule) in schema {
            let holds = match keyword.as_str() {
                "$ref" => {
                    let target = rule.as_str().unwrap().trim_start_matches("#/$defs/");
                    let definition = self.schema["$defs"][target].clone();
                    assert!(definition.is_object(), "{target} is not defined");
                    self.value(&definition, target, value)?;
                    true
                }
                "type" => match rule {
                    Value::Array(types) => types.iter().any(|kind| is_of(kind, value)),
                    kind => is_of(kind, value),
                },
                "anyOf" | "oneOf" => self.any(rule, name, value)?,
                "const" => rule == value,
                "enum" => rule.as_array().unwrap().contains(value),
                "pattern" => {
                    let regex = Regex::new(rule.as_str().unwrap()).unwrap();
                    value.as_str().is_none_or(|text| regex.is_match(text))
                }
                "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap()),
                "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap()),
                "exclusiveMinimum" => value.as_f64().is_none_or(|number| number > rule.as_f64().unwrap()),
                "minItems" => value.as_array().is_none_or(|list| list.len() as u64 >= rule.as_u64().unwrap()),
                "items" => {
                    for item in value.as_array().into_iter().flatten() {
                        self.value(rule, name, item)?;
                    }
                    true
                }
                "required" => value.as_object().is_none_or(|map| {
                    rule.as_array().unwrap().iter().all(|field| map.contains_key(field.as_str().unwrap()))
                }),
                "properties" | "additionalProperties" => {
                    self.fields(schema, name, value.as_object().unwrap_or(&Map::new()))?;
                    true
                }
                "$schema" | "$defs" | "title" | "description" | "default" | "format" => true,
                other => panic!("the schema of {name} has the unknown keyword {other}"),
            };
            if !holds {
                return Err(format!("{name}: {value} is not {keyword} {rule}"));
            }
        }
        Ok(())
    }

    fn any(&mut self, options: &Value, name: &str, value: &Value) -> Result<bool, String> {
        let mut reasons = Vec::new();
        for option in options.as_array().unwrap() {
            match self.value(option, name, value) {
                Ok(()) => return Ok(true),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(reasons.join(" and "))
    }

    fn fields(
        &mut self,
        schema: &Map<String, Value>,
        name: &str,
        map: &Map<String, Value>,
    ) -> Result<(), String> {
        for (field, value) in map {
            match schema.get("properties").and_then(|properties| properties.get(field)) {
                Some(known) => {
                    self.used.insert(format!("{name}.{field}"));
                    self.value(known, name, value)?;
                }
                None => match schema.get("additionalProperties") {
                    Some(Value::Bool(false)) => return Err(format!("{name} has no field {field}")),
                    Some(others) => self.value(others, name, value)?,
                    None => {}
                },
            }
        }
        Ok(())
    }
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("an unknown type {other}"),
    }
}
