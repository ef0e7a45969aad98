//! The last good rules, kept for a restart.

use crate::setting::{Followed, limiter, quota, rules};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tollgate_control::{RuleFile, RuleSource};
use tollgate_limiter::file::MOST_BYTES;
use tollgate_testbed::wait_until;

const KEPT: &str = "last-good-rules.yaml";

/// A machine with a rule file and a folder for data.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new(text: &str) -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap() };
        fs::write(machine.rules(), text).unwrap();
        machine
    }

    fn rules(&self) -> PathBuf {
        self.folder.path().join("rules.yaml")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn kept(&self) -> PathBuf {
        self.data().join(KEPT)
    }

    fn source(&self) -> RuleSource {
        RuleSource { data: Some(self.data()), ..self.rules().into() }
    }

    /// A node that ran until its rules were kept.
    fn has_run(&self) {
        let _file = RuleFile::open(self.source(), limiter()).unwrap();
        self.until_kept(&fs::read_to_string(self.rules()).unwrap());
    }

    fn until_kept(&self, text: &str) {
        wait_until("the rules are kept", || {
            fs::read_to_string(self.kept()).is_ok_and(|kept| kept.ends_with(text))
        });
    }
}

#[test]
fn are_used_at_a_start_without_a_good_file() {
    let machine = Machine::new(&rules(5));
    machine.has_run();
    let broken: [fn(&Path); 6] = [
        |path| fs::remove_file(path).unwrap(),
        |path| fs::write(path, "rules: [").unwrap(),
        |path| fs::write(path, "").unwrap(),
        |path| fs::write(path, "# rules: […]").unwrap(),
        |path| {
            fs::write(path, "rules: [{ id: a, limit: 1/s }]\ntests: [{ name: n, request: { key: a }, steps: [{ expect: denied }] }]").unwrap()
        },
        |path| fs::write(path, b"\xff").unwrap(),
    ];
    for damage in broken {
        damage(&machine.rules());
        let limiter = limiter();
        let file = RuleFile::open(machine.source(), limiter.clone()).unwrap();
        assert_eq!(quota(&limiter, "a"), Some(5));
        let status = file.status().borrow().clone();
        assert!(status.error.is_some() && status.revision == 1, "{status:?}");
    }
    let message = RuleFile::open(machine.rules(), limiter()).unwrap_err().to_string();
    assert!(message.contains("it is not UTF-8 text"), "without a folder it is an error: {message}");
}

#[tokio::test]
async fn give_way_to_a_file_that_is_good_again() {
    let machine = Machine::new(&rules(5));
    machine.has_run();
    fs::remove_file(machine.rules()).unwrap();
    let source = machine.source();
    let mut file = Followed::open(machine.folder, source).unwrap();
    assert!(file.error().is_some());
    file.write(rules(6));
    file.until_quota(6).await;
    assert!(file.error().is_none());
    let kept = file.folder.path().join("data").join(KEPT);
    wait_until("the new rules are kept", || fs::read_to_string(&kept).unwrap().ends_with(&rules(6)));
}

#[test]
fn are_what_was_good_and_are_not_for_everybody() {
    let machine = Machine::new("\u{feff}# by hand\nrules: [{ id: one, limit: 5/s }]\r\n");
    machine.has_run();
    let mode = fs::metadata(machine.kept()).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode & !0o640, 0, "{mode:o}");
    assert_eq!(fs::read_dir(machine.data()).unwrap().count(), 1, "nothing else is left there");
    fs::remove_file(machine.rules()).unwrap();
    let limiter = limiter();
    let _file = RuleFile::open(machine.source(), limiter.clone()).unwrap();
    assert_eq!(quota(&limiter, "a"), Some(5));
}

#[test]
fn of_the_largest_file_can_be_read_again() {
    let mut text = rules(5) + "# ";
    text.extend(std::iter::repeat_n('x', MOST_BYTES as usize - text.len()));
    let machine = Machine::new(&text);
    machine.has_run();
    fs::remove_file(machine.rules()).unwrap();
    RuleFile::open(machine.source(), limiter()).unwrap();
}

#[test]
fn of_another_file_or_damaged_ones_are_not_used() {
    let machine = Machine::new(&rules(5));
    machine.has_run();
    let elsewhere = RuleSource { path: machine.folder.path().join("typo.yaml"), ..machine.source() };
    let message = RuleFile::open(elsewhere, limiter()).unwrap_err().to_string();
    assert!(message.contains("typo.yaml: No such file"), "{message}");
    fs::remove_file(machine.rules()).unwrap();
    let title = fs::read_to_string(machine.kept()).unwrap().lines().next().unwrap().to_owned() + "\n";
    for damaged in ["", "rules: []", &title, &format!("{title}rules: [")] {
        fs::write(machine.kept(), damaged).unwrap();
        let message = RuleFile::open(machine.source(), limiter()).unwrap_err().to_string();
        assert!(message.contains("rules.yaml: No such file"), "{damaged}: {message}");
    }
}

#[tokio::test]
async fn that_cannot_be_kept_keep_nothing_from_running() {
    let machine = Machine::new(&rules(5));
    fs::write(machine.data(), "not a folder").unwrap();
    let source = machine.source();
    let mut file = Followed::open(machine.folder, source).unwrap();
    file.write(rules(6));
    file.until_quota(6).await;
}
