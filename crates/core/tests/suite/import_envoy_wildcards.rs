//! Wildcards in imported configurations of envoyproxy/ratelimit.

use super::import_envoy::load;
use tollgate_core::decision::Outcome;
use tollgate_core::descriptor::DescriptorFields;
use tollgate_core::import::envoy_ratelimit::import;
use tollgate_core::rules::{RULE_TEST_START, VirtualNode};

/// A wildcard leaves to others only what both match.
#[test]
fn many_wildcards_are_imported() {
    let nodes = |key: &str| -> String {
        let node = |number| {
            format!(
                "  - {{ key: {key}, value: '/api/v1/service{number}/*', rate_limit: {{ unit: day, requests_per_unit: 2 }} }}\n"
            )
        };
        (0..1_000).map(node).collect()
    };
    for key in ["path", "user", "generic_key"] {
        let text = format!(
            "domain: d\ndescriptors:\n{}  - {{ key: {key}, value: '/api/*', rate_limit: {{ unit: day, requests_per_unit: 3 }} }}\n",
            nodes(key)
        );
        let (loaded, _, written) = load(&text);
        assert_eq!(loaded.rules.rules().len(), 1_001);
        assert_eq!(written.matches("except:").count(), 1, "{written}");
        let mut node = VirtualNode::default();
        let mut admitted = |value: &str| {
            let fields = DescriptorFields::decode([(key, value)]).unwrap();
            let admits = |_: &u32| {
                let outcome = node.check(&loaded, &fields.request("d", 1), RULE_TEST_START).unwrap();
                matches!(outcome, Outcome::Admitted(_))
            };
            (0..5).filter(admits).count()
        };
        assert_eq!(admitted("/api/v1/service7/x"), 2);
        assert_eq!(admitted("/api/v1/service77/x"), 2);
        assert_eq!(admitted("/api/v1/service7"), 3);
    }
}

/// Older versions of the original know a star at the end alone.
#[test]
fn stars_inside_of_values_are_named() {
    for (value, is_named) in [
        ("a*b", true),
        ("*b", true),
        ("/a*b*", true),
        ("a**", true),
        ("a*", false),
        ("*", false),
        ("a", false),
    ] {
        for key in ["path", "api_key", "other"] {
            let text = format!(
                "domain: d\ndescriptors:\n  - key: {key}\n    value: '{value}'\n    rate_limit: {{ unit: day, requests_per_unit: 1 }}\n"
            );
            let imported = import(&[("c.yaml", &text)]).unwrap();
            let warnings: String = imported.warnings.iter().map(ToString::to_string).collect();
            let expected = "c.yaml:4:5: warning: a star before the end of a value is a text in versions before March 2026";
            assert_eq!(warnings.starts_with(expected), is_named, "{value}\n{warnings}");
            assert_eq!(warnings.is_empty(), !is_named, "{value}\n{warnings}");
            assert!(key != "api_key" || !is_named || !warnings.contains(value), "{warnings}");
        }
    }
}
