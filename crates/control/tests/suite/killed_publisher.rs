//! A process that is killed right after an acknowledged publish: the revision is there.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use tollgate_control::{PublishOutcome, RevisionDraft, RevisionOrigin, RuleRepository};
use tollgate_limiter::Clock;

const KILLS: usize = 100;
/// Names the data folder to the process that publishes.
const FOLDER: &str = "TOLLGATE_TEST_PUBLISHER";
const THIS_TEST: &str = "killed_publisher::an_acknowledged_publish_survives_a_kill";

fn open(folder: &Path) -> RuleRepository {
    RuleRepository::open_embedded(Some(folder), Clock::system()).unwrap_or_else(|error| panic!("{error}"))
}

/// Publishes until it is killed, and prints the number of each revision when it is acknowledged.
async fn publish_forever(folder: &Path) {
    let repository = open(folder);
    let mut newest = repository.newest().await.unwrap().map(|newest| newest.summary.number);
    loop {
        let draft = RevisionDraft {
            text: format!("# {newest:?}\nrules: []\n"),
            author: "ana".to_owned(),
            message: String::new(),
            origin: RevisionOrigin::Published,
        };
        let PublishOutcome::Published(summary) = repository.publish(newest, draft).await.unwrap() else {
            panic!("there is no other writer")
        };
        println!("published {}", summary.number);
        newest = Some(summary.number);
    }
}

/// This test is also the process that publishes: it starts itself with the folder in a variable.
#[tokio::test]
async fn an_acknowledged_publish_survives_a_kill() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return publish_forever(Path::new(&folder)).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    let mut last = 0;
    for _ in 0..KILLS {
        let mut command = Command::new(&program);
        command.args(["--exact", THIS_TEST, "--nocapture", "--test-threads=1"]).env(FOLDER, folder.path());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut numbers = lines.filter_map(|line| line.rsplit_once("published ")?.1.parse::<u64>().ok());
        let acknowledged = numbers.next().expect("a publish is acknowledged");
        child.kill().unwrap();
        child.wait().unwrap();
        let acknowledged = numbers.last().unwrap_or(acknowledged);
        assert!(acknowledged > last);
        let repository = open(folder.path());
        let newest = repository.newest().await.unwrap().unwrap();
        // One more may have been stored and not acknowledged.
        assert!((acknowledged..=acknowledged + 1).contains(&newest.summary.number), "{acknowledged}");
        let history = repository.history(None, 1_000).await.unwrap();
        assert_eq!(history.len() as u64, newest.summary.number.min(1_000), "no number is missing");
        last = newest.summary.number;
    }
    println!("{KILLS} kills, {last} revisions");
}
