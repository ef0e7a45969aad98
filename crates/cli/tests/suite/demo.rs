//! `tollgate demo`, and `tollgate top` looking at it.

use crate::http_client::HttpClient;
use crate::process::{PATIENCE, run, tollgate};
use parking_lot::Mutex;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use tokio::time::Instant;
use tollgate_testbed::wait_until;

/// A demo that is ended with its test.
struct Demo {
    child: Child,
    stdout: BufReader<ChildStdout>,
    admin: SocketAddr,
    token: String,
    folder: PathBuf,
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Demo {
    fn start(temporary: &Path, time: &str) -> Self {
        let mut command = tollgate(["demo", "--for", time]);
        command.env("TMPDIR", temporary).env("TOLLGATE_LOG", "warn");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // A demo takes its usual ports if they are free. Of two that look at the same moment, one would fail.
        static STARTING: Mutex<()> = Mutex::new(());
        let _starting = STARTING.lock();
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut message = String::new();
        while !message.contains("It ends by itself after") {
            assert_ne!(stdout.read_line(&mut message).unwrap(), 0, "it ended: {message}");
        }
        let after = |start: &str| {
            let (_, rest) = message.split_once(start).unwrap_or_else(|| panic!("no `{start}` in {message}"));
            rest.split_whitespace().next().unwrap().to_owned()
        };
        let admin = after("Open the page ");
        let admin = admin.trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
        let folder = Path::new(&after("--token-file ")).ancestors().nth(2).unwrap().to_owned();
        Self { child, stdout, admin, token: after("with the token "), folder }
    }

    fn get(&self, path: &str) -> Value {
        let mut client = HttpClient::connect(self.admin);
        let (admin, token) = (self.admin, &self.token);
        client
            .send(&format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\nAuthorization: Bearer {token}\r\n\r\n"));
        let reply = client.reply();
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()
    }

    fn top(&self, arguments: &[&str]) -> Command {
        let mut command = tollgate(["top", "--to", &format!("http://{}", self.admin)]);
        command.args(arguments).env("TOLLGATE_TOKEN", &self.token);
        command
    }
}

fn sum(live: &Value, outcome: &str) -> u64 {
    live["points"].as_array().unwrap().iter().filter_map(|point| point[outcome].as_u64()).sum()
}

#[test]
fn a_newcomer_sees_limits_at_work() {
    let temporary = tempfile::tempdir().unwrap();
    let mut demo = Demo::start(temporary.path(), "8s");
    assert!(demo.folder.starts_with(temporary.path()));
    let mut live = Value::Null;
    wait_until("requests are allowed, limited and denied", || {
        live = demo.get("/v1/live?range=5m");
        ["allowed", "limited", "denied"].iter().all(|outcome| sum(&live, outcome) > 0)
    });
    wait_until("the guesser is listed", || {
        let top = demo.get("/v1/top?count=5");
        let keys = top["limited"].as_array().unwrap().clone();
        keys.iter().any(|key| key["name"] == "203.0.113.66")
    });

    let output = run(&mut demo.top(&["--once"]));
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    for expected in
        ["1 node\n", "decisions/s", "added p50 / p99", "login", "203.0.113.66", "revision 1 is in force"]
    {
        assert!(output.stdout.contains(expected), "no `{expected}` in {}", output.stdout);
    }
    let picture = run(&mut demo.top(&["--once", "--svg"])).stdout;
    assert!(picture.starts_with("<svg ") && picture.contains("Decisions"), "{picture}");
    let refused = run(demo.top(&["--once"]).env("TOLLGATE_TOKEN", "wrong"));
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.stderr.contains("401") && refused.stderr.contains("TOLLGATE_TOKEN"),
        "{}",
        refused.stderr
    );
    shown_in_a_terminal(&demo);

    // By itself, with all that it wrote.
    let mut rest = String::new();
    demo.stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(demo.child.wait().unwrap().code(), Some(0));
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "the folder is removed");
}

/// Runs `tollgate top` in a pseudo terminal, and ends it with a key.
fn shown_in_a_terminal(demo: &Demo) {
    let size = "stty cols 110 rows 34";
    let program = env!("CARGO_BIN_EXE_tollgate");
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command"]);
    command.arg(format!("{size}; exec {program} top --to http://{}", demo.admin)).arg("/dev/null");
    command.env("TOLLGATE_TOKEN", &demo.token).env("TERM", "xterm-256color");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut shown, start) = (String::new(), Instant::now());
    // Words that are beside each other on the screen may be written apart.
    while !(shown.contains("live") && shown.contains("plan")) {
        assert!(start.elapsed() < PATIENCE, "{shown}");
        let mut bytes = [0; 4096];
        let read = output.read(&mut bytes).unwrap();
        assert_ne!(read, 0, "it ended: {shown}");
        shown += &String::from_utf8_lossy(&bytes[..read]);
    }
    assert!(shown.contains("\u{1b}[?1049h"), "it has a screen of its own");
    input.write_all(b"\tpq").unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\u{1b}[?1049l"), "the terminal is restored: {rest}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn top_says_why_it_shows_nothing() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (arguments, expected) in [
        (
            vec!["--once".to_owned(), "--to".to_owned(), format!("http://{free}")],
            "no live figures: cannot connect to",
        ),
        (
            vec!["--once".to_owned(), "--to".to_owned(), "nonsense".to_owned()],
            "is not the address of a control plane",
        ),
        (vec![], "standard output is not a terminal"),
    ] {
        let output = run(tollgate(["top"]).args(&arguments));
        assert_eq!(output.code, Some(1), "{arguments:?}");
        assert!(output.stderr.contains(expected), "{arguments:?}: {}", output.stderr);
    }
    let output = run(&mut tollgate(["demo", "--for", "soon"]));
    assert_eq!(output.code, Some(1));
    assert!(output.stderr.contains("--for cannot be used"), "{}", output.stderr);
}

/// A signal ends the demo at once, and removes what it wrote.
#[test]
fn a_demo_can_be_stopped() {
    let temporary = tempfile::tempdir().unwrap();
    let mut demo = Demo::start(temporary.path(), "10m");
    let start = Instant::now();
    let pid = demo.child.id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
    assert_eq!(demo.child.wait().unwrap().code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
}
