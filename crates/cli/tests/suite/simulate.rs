//! `tollgate simulate`: its report and its errors.

use crate::process::{CommandOutput, example, run, tollgate};

fn simulate(arguments: &[&str]) -> CommandOutput {
    run(tollgate(["simulate"]).args(arguments))
}

/// A small and fast simulation.
const SMALL: [&str; 10] =
    ["--nodes", "4", "--clients", "50", "--rate", "2000", "--seconds", "2", "--checks-per-node", "500000"];

/// The two numbers of a row.
fn row(output: &CommandOutput, name: &str) -> Vec<String> {
    let line = output.stdout.lines().find(|line| line.trim_start().starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no `{name}` in\n{}", output.stdout));
    line.trim_start()[name.len()..]
        .split("  ")
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_report_has_both_routings_and_the_capacity_table() {
    let output = simulate(&[&SMALL[..], &["--limit", "100/s"]].concat());
    assert_eq!((output.code, output.stderr.as_str()), (Some(0), ""), "{}", output.stdout);
    assert_eq!(row(&output, "admitted above a limit, at worst"), ["none", "none"]);
    assert_eq!(row(&output, "from clients within their limits"), ["0.000 %", "0.000 %"]);
    for name in ["checks ", "decided without a Redis call", "charges per second, each primary"] {
        assert_eq!(row(&output, name).len(), 2, "{name}");
    }
    let needs: Vec<&str> = output.stdout.lines().filter(|line| line.trim_start().contains(" M  ")).collect();
    assert_eq!(needs.len(), 3, "{}", output.stdout);
    assert!(needs[2].contains("17.0 M") && needs[2].contains("34"), "{}", needs[2]);
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let run = || simulate(&[&SMALL[..], &["--seed", "7"]].concat()).stdout;
    assert_eq!(run(), run());
}

#[test]
fn a_rule_file_can_be_simulated() {
    let file = example("api-endpoints.yaml");
    let file = file.to_str().unwrap();
    let output = simulate(&[&SMALL[..], &["--rules", file, "--endpoint", "/search"]].concat());
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    assert!(output.stdout.contains(file));
    assert!(!output.stdout.contains("no rule limits"));
}

#[test]
fn windows_are_judged_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    std::fs::write(&file, "rules:\n  - { id: w, key: api_key, limit: 20/s, algorithm: fixed_window }\n")
        .unwrap();
    let output = simulate(&[&SMALL[..], &["--rules", file.to_str().unwrap()]].concat());
    assert_eq!(row(&output, "admitted above a limit, at worst"), ["none", "none"], "{}", output.stderr);
}

#[test]
fn invalid_arguments_are_errors() {
    for (arguments, expected) in [
        (&["--nodes", "0"][..], "0 is not in 1..=1000"),
        (&["--zipf", "-1"], "between 0 and 5"),
        (&["--rtt", "1s"], "between 1us and 40ms"),
        (&["--rtt", "soon"], "is not a duration"),
        (&["--endpoint", "search"], "begins with `/`"),
        (&["--rate", "100000000"], "lower --rate or --seconds"),
        (&["--limit", "many"], "write it like `100/min`"),
        (&["--rules", "nowhere.yaml"], "cannot read nowhere.yaml"),
        (&["--rules", "a.yaml", "--limit", "1/s"], "cannot be used with"),
    ] {
        let output = simulate(arguments);
        assert_ne!(output.code, Some(0), "{arguments:?}");
        assert!(output.stderr.contains(expected), "{arguments:?}: {}", output.stderr);
    }
}
