//! Edits of rule files as laws, on random files and changes: an edit changes the values that it names and no others, keeps
//! all other lines, or is refused.

use super::edits::{FILE, add, changed_lines, patch, put, remove, tier, unlist};
use serde_json::{Value, json};
use tollgate_core::rules::edit::{RuleEdit, RuleEditError};
use tollgate_core::rules::lists::ListVerdict;
use tollgate_core::rules::rule_file_json;

/// What `edit` does to the values of a file, written down independently of its text.
fn model(value: &Value, edit: &RuleEdit) -> Option<Value> {
    let mut value = value.clone();
    let position = |value: &Value, id: &str| {
        value
            .get("rules")?
            .as_array()?
            .iter()
            .position(|rule| rule.get("id").is_some_and(|known| known == id))
    };
    match edit {
        RuleEdit::PatchRule { id, patch } => {
            let index = position(&value, id)?;
            merge(&mut value["rules"][index], patch);
        }
        RuleEdit::PutRule { id, rule } => {
            let mut rule = rule.clone();
            rule["id"] = id.as_str().into();
            match position(&value, id) {
                Some(index) => value["rules"][index] = rule,
                None if value.get("rules").is_some() => value["rules"].as_array_mut()?.push(rule),
                None => value["rules"] = json!([rule]),
            }
        }
        RuleEdit::RemoveRule { id } => {
            let index = position(&value, id)?;
            value["rules"].as_array_mut()?.remove(index);
        }
        RuleEdit::AddListEntry { list, entry } => {
            let name = if *list == ListVerdict::Allowed { "allow" } else { "deny" };
            let item = match &entry.reason {
                Some(reason) => json!({ "key": entry.key, "reason": reason }),
                None => json!(entry.key),
            };
            match value.get_mut(name).filter(|list| !list.is_null()) {
                Some(list) => list.as_array_mut()?.push(item),
                None => value[name] = json!([item]),
            }
        }
        RuleEdit::RemoveListEntry { .. } | RuleEdit::SetTierNumbers { .. } => return None,
    }
    Some(value)
}

fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    for (name, patch) in fields {
        if patch.is_null() {
            value.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut value[name], patch);
        }
    }
}

/// An edit is refused, or gives the values of the model, and keeps all lines but a few. Returns whether it was done.
pub(super) fn check_law(text: &str, edit: &RuleEdit) -> bool {
    let changed = match edit.apply("x", text) {
        Ok(changed) => changed,
        Err(RuleEditError::Text(report)) => {
            assert!(report.errors() > 0 && report.diagnostics().iter().all(|found| found.hint.is_some()));
            return false;
        }
        Err(_) => return false,
    };
    let before = rule_file_json("x", text).unwrap_or_else(|_| panic!("an invalid text was changed:\n{text}"));
    let after = rule_file_json("x", &changed).unwrap_or_else(|report| panic!("{report}\n{changed}"));
    if let Some(expected) = model(&before, edit) {
        assert_eq!(after, expected, "{edit:?}\n--- from\n{text}\n--- to\n{changed}");
    }
    let touched = changed_lines(text, &changed).len();
    let most = match edit {
        // All lines of the rule.
        RuleEdit::RemoveRule { .. } | RuleEdit::PutRule { .. } | RuleEdit::PatchRule { .. } => 40,
        _ => 6,
    };
    assert!(touched <= most, "{touched} lines changed by {edit:?}\n--- from\n{text}\n--- to\n{changed}");
    true
}

/// Random files in random layouts, with random edits.
#[test]
fn random_edits_change_only_what_they_say() {
    let mut rng = fastrand::Rng::with_seed(16);
    let (mut done, mut tried) = (0, 0);
    for _ in 0..1_500 {
        let mut text = random_file(&mut rng);
        for _ in 0..3 {
            let edit = random_edit(&mut rng);
            let is_there = rule_file_json("x", &text).is_ok_and(|value| model(&value, &edit).is_some());
            tried += usize::from(is_there);
            if check_law(&text, &edit) {
                done += usize::from(is_there);
                text = edit.apply("x", &text).unwrap();
            }
        }
    }
    assert!(done * 100 >= tried * 95, "{done} of {tried} edits were possible");
}

fn random_file(rng: &mut fastrand::Rng) -> String {
    let pick = |rng: &mut fastrand::Rng, choices: &[&'static str]| *rng.choice(choices).unwrap();
    let comment = |rng: &mut fastrand::Rng| pick(rng, &["", "", "", "  # c: [x]", " #é{", "   "]);
    let mut text = String::new();
    text.push_str(pick(rng, &["", "# head\n", "---\n", "\n\n", "\u{feff}"]));
    let dash = pick(rng, &["", "  ", "    "]);
    let rules = rng.usize(1..4);
    text.push_str(&format!("rules:{}\n", comment(rng)));
    for index in 0..rules {
        let between = pick(rng, &["", "", "\n", "  # about the next\n", "# - id: old\n\n"]);
        text.push_str(between);
        let mut fields =
            vec![format!("id: r{index}"), pick(rng, &["limit: 5/s", "limit: '7/min'"]).to_owned()];
        for _ in 0..rng.usize(..3) {
            let field = pick(
                rng,
                &[
                    "endpoint: /x",
                    "methods: [GET,POST]",
                    "match: { ip: 10.0.0.0/8 }",
                    "key: \"user\"",
                    "burst: 9",
                ],
            );
            let name = field.split(':').next().unwrap();
            if !fields.iter().any(|known| known.starts_with(name)) {
                fields.push(field.to_owned());
            }
        }
        if rng.u8(..3) == 0 {
            text.push_str(&format!("{dash}- {{ {} }}{}\n", fields.join(", "), comment(rng)));
            continue;
        }
        if rng.u8(..3) == 0 {
            fields.push(format!(
                "override:\n{dash}      k1:\n{dash}        limit: 3/s\n{dash}      k2: {{ limit: 4/s }}"
            ));
        }
        if rng.u8(..4) == 0 {
            fields.push(format!("description: |\n{dash}      # text\n{dash}      more"));
        } else if rng.u8(..4) == 0 {
            fields.push(format!("limits:\n{dash}  - 5/s\n{dash}  # c\n{dash}  - 9/min"));
        }
        let start = pick(rng, &["- ", "-\n  "]).replace('\n', &format!("\n{dash}"));
        let lines: Vec<String> = fields
            .iter()
            .map(
                |field| if field.contains('\n') { field.clone() } else { format!("{field}{}", comment(rng)) },
            )
            .collect();
        text.push_str(&format!("{dash}{start}{}\n", lines.join(&format!("\n{dash}  "))));
    }
    text.push_str(pick(rng, &["", "\nallow: [a, b]\n", "allow:\n- a # x\n- b\n", "allow: []\n", "# tail\n"]));
    if rng.u8(..4) == 0 {
        text = text.replace('\n', "\r\n");
    }
    if rng.u8(..4) == 0 {
        text.truncate(text.trim_end().len());
    }
    text
}

fn random_edit(rng: &mut fastrand::Rng) -> RuleEdit {
    let id = format!("r{}", rng.u8(..3));
    let value = |rng: &mut fastrand::Rng| match rng.u8(..10) {
        0 => json!("5/s"),
        1 => json!("- x: # y"),
        2 => json!(true),
        3 => json!(1.5),
        4 => json!(["a", "b, c", { "limit": "5/s", "burst": 7 }]),
        5 => json!({ "ip": "10.0.0.0/8", "ids": { "a b": "*" } }),
        6 => json!("é\n\t\"'\\\u{85}\u{1f980}"),
        7 => json!(["/a/very/long/template/{id}/that/fills/a/line", "/and/another/one/{*rest}/that/does/so"]),
        8 => json!("null"),
        _ => json!(rng.u64(..)),
    };
    let names = ["limit", "burst", "match", "description", "override", "limits", "endpoint", "id", "x y"];
    let mut fields = serde_json::Map::new();
    for _ in 0..rng.usize(1..4) {
        let name = names[rng.usize(..names.len())];
        let value = if rng.u8(..3) == 0 { Value::Null } else { value(rng) };
        fields.insert(name.to_owned(), value);
    }
    match rng.u8(..6) {
        0 => remove(&id),
        1 => {
            fields.retain(|name, value| name != "id" && !value.is_null());
            put(&id, Value::Object(fields))
        }
        2 => add(ListVerdict::Allowed, &format!("k{}", rng.u32(..)), None, Some("r")),
        3 => patch(&id, json!({ "override": { "k1": Value::Null, "k3": { "limit": "1/s" } } })),
        _ => patch(&id, Value::Object(fields)),
    }
}

/// Any text, and mutations of a rule file: a change is right or refused.
#[test]
fn fuzz_edits() {
    let edits = [
        patch("login", json!({ "limit": "9/s", "match": { "ip": "10.0.0.0/8" }, "methods": null })),
        patch("search", json!({ "limits": ["1/s", "2/min"], "endpoint": null })),
        put("plan", json!({ "limit": "1/s" })),
        put("new", json!({ "limit": "1/s" })),
        remove("login"),
        add(ListVerdict::Allowed, "new", None, Some("why")),
        unlist(ListVerdict::Denied, "sk_revoked_*"),
        tier("pro", json!({ "limit": 5, "capacity": 9 })),
        tier("gold", json!({ "limit": 5 })),
    ];
    bolero::check!().with_iterations(3_000).with_type::<(u64, u8, String)>().for_each(
        |(seed, choice, noise)| {
            let edit = &edits[usize::from(*choice) % edits.len()];
            check_law(noise, edit);
            let mut rng = fastrand::Rng::with_seed(*seed);
            let mut text = FILE.to_owned();
            for _ in 0..rng.u8(1..=3) {
                text = super::mutations::mutate(&text, &mut rng);
            }
            check_law(&text, edit);
        },
    );
}
