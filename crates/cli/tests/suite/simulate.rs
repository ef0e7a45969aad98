//! `tollgate simulate`: the shape of what it says, and what it refuses.

use crate::program::{Ended, example, run, tollgate};

fn simulate(arguments: &[&str]) -> Ended {
    run(tollgate(["simulate"]).args(arguments))
}

/// Enough to see everything, and done in a moment.
const SMALL: [&str; 10] =
    ["--nodes", "4", "--clients", "50", "--rate", "2000", "--seconds", "2", "--checks-per-node", "500000"];

/// The two numbers of a row.
fn row(ended: &Ended, name: &str) -> Vec<String> {
    let line = ended.stdout.lines().find(|line| line.trim_start().starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no `{name}` in\n{}", ended.stdout));
    line.trim_start()[name.len()..]
        .split("  ")
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn it_shows_both_routings_and_what_more_would_need() {
    let ended = simulate(&[&SMALL[..], &["--limit", "100/s"]].concat());
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{}", ended.stdout);
    assert_eq!(row(&ended, "admitted above a limit, at worst"), ["none", "none"]);
    assert_eq!(row(&ended, "from clients within their limits"), ["0.000 %", "0.000 %"]);
    for name in ["checks ", "decided without a Redis call", "charges per second, each primary"] {
        assert_eq!(row(&ended, name).len(), 2, "{name}");
    }
    let needs: Vec<&str> = ended.stdout.lines().filter(|line| line.trim_start().contains(" M  ")).collect();
    assert_eq!(needs.len(), 3, "{}", ended.stdout);
    assert!(needs[2].contains("17.0 M") && needs[2].contains("34"), "{}", needs[2]);
}

#[test]
fn the_same_seed_says_the_same() {
    let run = || simulate(&[&SMALL[..], &["--seed", "7"]].concat()).stdout;
    assert_eq!(run(), run());
}

#[test]
fn it_runs_real_rules() {
    let file = example("api-endpoints.yaml");
    let file = file.to_str().unwrap();
    let ended = simulate(&[&SMALL[..], &["--rules", file, "--endpoint", "/search"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains(file));
    assert!(!ended.stdout.contains("no rule limits"));
}

#[test]
fn it_says_what_is_wrong_with_its_arguments() {
    for (arguments, said) in [
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
        let ended = simulate(arguments);
        assert_ne!(ended.code, Some(0), "{arguments:?}");
        assert!(ended.stderr.contains(said), "{arguments:?}: {}", ended.stderr);
    }
}
