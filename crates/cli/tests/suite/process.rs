//! Processes of the real binary: commands that end by themselves, and servers.

use crate::http_client::HttpClient;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::Instant;

/// Only a failing test waits this long.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A command of the binary, without the settings of the environment.
pub fn tollgate<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    for name in [
        "CONFIG",
        "RULES",
        "STORE",
        "STORE_MEMORY",
        "DATA",
        "NODE_NAME",
        "EMERGENCY",
        "EMERGENCY_PER_SECOND",
        "REPOSITORY",
        "CONTROL_PLANE",
        "CONTROL_TOKEN",
        "CONTROL_TOKEN_FILE",
        "RULES_POLL",
        "LISTEN",
        "GRPC_LISTEN",
        "RESP_LISTEN",
        "RESP_PASSWORD",
        "RESP_PASSWORD_FILE",
        "ADMIN_INSECURE",
        "LOG",
        "LOG_FORMAT",
        "GATEWAY_LISTEN",
        "UPSTREAM",
        "OTLP_ENDPOINT",
        "STATSD_ADDRESS",
        "TOKEN",
    ] {
        command.env_remove(format!("TOLLGATE_{name}"));
    }
    command.env_remove("STATE_DIRECTORY");
    // Tests run beside each other, and the default is one port.
    command.env("TOLLGATE_ADMIN_LISTEN", "127.0.0.1:0");
    command.args(arguments);
    command
}

/// A shipped rule file.
pub fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/rules").join(name)
}

/// A FIFO that nothing reads or writes.
pub fn make_fifo(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

/// The output and the exit code of a command.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command until it ends.
pub fn run(command: &mut Command) -> CommandOutput {
    let mut child = KillOnDrop(spawn(command));
    let (stdout, stderr) = (child.0.stdout.take().unwrap(), child.0.stderr.take().unwrap());
    let (stdout, stderr) = (read_all(stdout), read_all(stderr));
    let text = |stream: Receiver<String>| stream.recv_timeout(PATIENCE).expect("the command does not end");
    let (stdout, stderr) = (text(stdout), text(stderr));
    CommandOutput { code: child.0.wait().unwrap().code(), stdout, stderr }
}

fn spawn(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Sends the whole content of a stream when it ends.
fn read_all(mut stream: impl Read + Send + 'static) -> Receiver<String> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        // The test may have timed out.
        let _ = tell.send(text);
    });
    told
}

/// Sends the lines of a stream. It is always drained: a full pipe would block the process.
fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines() {
            let _ = tell.send(line.unwrap());
        }
    });
    told
}

/// A process that is killed at the end of its test.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A running server with its own port.
pub struct TollgateProcess {
    child: KillOnDrop,
    pub address: SocketAddr,
    /// Its standard output until it was ready.
    pub start_message: String,
    log: Receiver<String>,
    /// Holds the files of a process that is killed before it can remove them. Dropped after the process.
    _temporary: TempDir,
}

impl TollgateProcess {
    /// Runs `tollgate serve` with these arguments, on a free port.
    pub fn start<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Self {
        Self::from(tollgate(["serve", "--listen", "127.0.0.1:0"]).args(arguments))
    }

    /// Runs a command without waiting for its start message; the address is not known.
    pub fn without_start_message(command: &mut Command) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        command.env("TMPDIR", temporary.path()).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = KillOnDrop(command.spawn().unwrap());
        let log = lines(child.0.stderr.take().unwrap());
        let address = SocketAddr::from(([0; 4], 0));
        Self { child, address, start_message: String::new(), log, _temporary: temporary }
    }

    /// Runs a command, and waits for its start message.
    pub fn from(command: &mut Command) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let mut child = KillOnDrop(spawn(command.env("TMPDIR", temporary.path())));
        let stdout = lines(child.0.stdout.take().unwrap());
        let log = lines(child.0.stderr.take().unwrap());
        let mut start_message = String::new();
        while !start_message.ends_with("Press Ctrl-C to stop.\n") {
            let Ok(line) = stdout.recv_timeout(PATIENCE) else {
                panic!("it does not serve: {start_message}{}", log.try_iter().collect::<Vec<_>>().join("\n"));
            };
            start_message += &line;
            start_message.push('\n');
        }
        // The rules may come from the address of a control plane.
        let listeners: String = start_message.lines().filter(|line| !line.starts_with("  rules ")).collect();
        let (_, address) = listeners.split_once("http").unwrap();
        let address = address.trim_start_matches(['s', ':', '/']);
        let (address, _) = address.split_once('/').unwrap();
        Self { child, address: address.parse().unwrap(), start_message, log, _temporary: temporary }
    }

    /// A connection to the admin listener.
    pub fn admin(&self) -> HttpClient {
        HttpClient::connect(self.admin_address())
    }

    /// The operate token, from the file that the start message names.
    pub fn operate_token(&self) -> String {
        let (_, rest) = self.start_message.split_once("  token   ").expect("it names the token's file");
        let (path, _) = rest.split_once(" (operate)").unwrap();
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    }

    pub fn admin_address(&self) -> SocketAddr {
        let (_, rest) = self.start_message.split_once("  admin   http://").expect("it has an admin listener");
        rest.split_once('/').unwrap().0.parse().unwrap()
    }

    /// The address of the gateway.
    pub fn gateway_address(&self) -> SocketAddr {
        let (_, rest) = self.start_message.split_once("  gateway http://").expect("it has a gateway");
        rest.split_once('/').unwrap().0.parse().unwrap()
    }

    pub fn client(&self) -> HttpClient {
        HttpClient::connect(self.address)
    }

    /// Waits for a log line with this text, and returns the line. Other lines do not lengthen the wait.
    pub fn wait_for_log(&self, text: &str) -> String {
        let start = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(start.elapsed());
            let line = self.log.recv_timeout(left).unwrap_or_else(|_| panic!("`{text}` is not logged"));
            if line.contains(text) {
                return line;
            }
        }
    }

    /// The rest of the log, when the process has ended.
    pub fn rest_of_log(&self) -> String {
        let mut log = String::new();
        loop {
            match self.log.recv_timeout(PATIENCE) {
                Ok(line) => log.extend([line.as_str(), "\n"]),
                Err(error) => {
                    assert_eq!(error, mpsc::RecvTimeoutError::Disconnected, "it does not end");
                    return log;
                }
            }
        }
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        let pid = self.child.0.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Waits until the process has ended.
    pub fn wait(mut self) -> ExitStatus {
        // The log ends when the process does.
        while self
            .log
            .recv_timeout(PATIENCE)
            .map_err(|error| assert_eq!(error, mpsc::RecvTimeoutError::Disconnected, "it does not end"))
            .is_ok()
        {}
        self.child.0.wait().unwrap()
    }
}
