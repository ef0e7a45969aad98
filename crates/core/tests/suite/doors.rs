//! Warnings about rules that an open door cannot apply, with their positions.

use std::collections::BTreeSet;
use tollgate_core::rules::{DoorCapability, OpenDoor, load, load_for};

fn check_api() -> OpenDoor {
    let capabilities =
        BTreeSet::from([DoorCapability::Domain, DoorCapability::Tier, DoorCapability::Priority]);
    OpenDoor { name: "the check API", capabilities, identities: None }
}

fn gateway(more: &[DoorCapability], identities: &[&str]) -> OpenDoor {
    let mut capabilities =
        BTreeSet::from([DoorCapability::Delay, DoorCapability::Completion, DoorCapability::Domain]);
    capabilities.extend(more);
    let identities = identities.iter().map(|name| (*name).to_owned()).collect();
    OpenDoor { name: "the gateway", capabilities, identities: Some(identities) }
}

/// The warnings about `text` that these doors add: position and message.
fn warnings(text: &str, doors: &[OpenDoor]) -> Vec<String> {
    let without = load("rules.yaml", text).unwrap().warnings;
    let with = load_for("rules.yaml", text, doors).unwrap().warnings;
    let added = with.diagnostics().iter().filter(|warning| !without.diagnostics().contains(warning));
    added
        .map(|warning| {
            assert!(warning.hint.is_some(), "{warning:?}");
            format!("{}:{} {}", warning.position.line, warning.position.column, warning.message)
        })
        .collect()
}

#[test]
fn each_field_that_a_door_cannot_apply_is_a_warning() {
    let rule = |fields: &str| format!("rules:\n  - {{ id: r, limit: 5/s, {fields} }}\n");
    let nothing: &[&str] = &[];
    let table: &[(&str, &[&str], &[&str])] = &[
        (
            "on_exceed: queue",
            &["2:37 `queue` has no effect in the check API: requests are refused at once, as with `reject`"],
            nothing,
        ),
        (
            "on_exceed: tarpit",
            &["2:37 `tarpit` has no effect in the check API: requests are refused at once, as with `reject`"],
            nothing,
        ),
        (
            "on_exceed: shed",
            &["2:37 `shed` has no effect in the check API: requests are refused at once, as with `reject`"],
            &[
                "2:37 no request is critical in the gateway: without `identity: priority`, all have priority 100",
            ],
        ),
        (
            "on_exceed: { shed: { critical: 100 } }",
            &["2:37 `shed` has no effect in the check API: requests are refused at once, as with `reject`"],
            nothing,
        ),
        ("on_exceed: flag", nothing, nothing),
        ("on_exceed: shadow", nothing, nothing),
        ("soft: 80%", nothing, nothing),
        (
            "soft: { at: 50%, then: tarpit }",
            &["2:32 `tarpit` has no effect in the check API: requests are not delayed there"],
            nothing,
        ),
        ("domain: api.example.com", nothing, nothing),
        ("key: api_key", nothing, nothing),
        ("key: ip", nothing, nothing),
        ("key: [tenant, route]", nothing, &["2:32 requests of the gateway have no `tenant` to count by"]),
        ("key: [ip, invoice]", nothing, &["2:36 requests of the gateway have no `invoice` to count by"]),
        (
            "match: { user_pattern: a* }",
            nothing,
            &["2:49 rule `r` never applies in the gateway: its requests have no `user`"],
        ),
        ("match: { api_key_pattern: a* }", nothing, nothing),
        (
            "match: { ids: { invoice: EU* } }",
            nothing,
            &["2:51 rule `r` never applies in the gateway: its requests have no `invoice`"],
        ),
        ("penalty: true, ip_safety_net: 10, lease: { horizon: 1s }", nothing, nothing),
    ];
    for (fields, check_api_warnings, gateway_warnings) in table {
        let text = rule(fields);
        assert_eq!(warnings(&text, &[check_api()]), *check_api_warnings, "{fields}");
        assert_eq!(warnings(&text, &[gateway(&[], &["api_key"])]), *gateway_warnings, "{fields}");
        let both = warnings(&text, &[check_api(), gateway(&[], &["api_key"])]);
        assert_eq!(both.len(), check_api_warnings.len() + gateway_warnings.len(), "{fields}");
    }
    let all =
        gateway(&[DoorCapability::Priority, DoorCapability::Tier], &["api_key", "user", "tenant", "invoice"]);
    for (fields, _, _) in table {
        assert_eq!(warnings(&rule(fields), std::slice::from_ref(&all)), nothing, "{fields}");
    }
}

#[test]
fn domain_at_a_door_without_hosts_is_a_warning() {
    let text = "rules:\n  - { id: r, limit: 5/s, domain: api.example.com }\n";
    let socket = OpenDoor { name: "the socket", capabilities: BTreeSet::new(), identities: None };
    let expected = "2:34 rule `r` never applies in the socket: its requests have no `domain`";
    assert_eq!(warnings(text, &[socket]), [expected]);
    assert!(warnings(text, &[check_api(), gateway(&[], &["api_key"])]).is_empty());
}

#[test]
fn concurrency_at_a_door_without_completion_is_a_warning() {
    let text = "rules:\n  - id: r\n    algorithm: concurrency\n    limit: 5\n";
    let expected = "3:16 the check API refuses every request that matches rule `r` with an error: it does not see requests end";
    assert_eq!(warnings(text, &[check_api()]), [expected]);
    assert!(warnings(text, &[gateway(&[], &["api_key"])]).is_empty());
}

#[test]
fn inherited_fields_are_reported_once() {
    let text =
        "defaults: { on_exceed: queue, key: user }\nrules: [{ id: a, limit: 1/s }, { id: b, limit: 2/s }]\n";
    let found = warnings(text, &[check_api(), gateway(&[], &["api_key"])]);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("1:24 `queue`") && found[1].starts_with("1:36 "), "{found:?}");
}

#[test]
fn a_tier_without_members_at_a_door_is_a_warning() {
    let text = "tiers:\n  free: { limit: 1/s }\n  pro: { limit: 2/s }\n  gold: { limit: 3/s, keys: [ann] }\n  \
                own: { limit: 4/s }\ndefaults: { tier: free }\nrules:\n  - id: all\n  \
                - { id: mine, tier: own, match: { api_key_pattern: 'sk_*' } }\n";
    let door = gateway(&[], &["api_key"]);
    assert_eq!(warnings(text, &[door]), ["3:3 no client of the gateway can be in tier `pro`"]);
    assert!(warnings(text, &[gateway(&[DoorCapability::Tier], &["api_key"])]).is_empty());
    assert!(warnings(text, &[check_api()]).is_empty());
    let text = "tiers:\n  pro: { limit: 2/s, api_key_pattern: 'sk_*' }\nrules: [{ id: all }]\n";
    let found = warnings(text, &[gateway(&[], &["user"])]);
    let expected = "2:39 no client of the gateway matches this pattern: its requests have no `api_key`";
    assert_eq!(found, [expected]);
}
