//! The real binary: run to its end, or served until it is dropped.

use crate::client::Client;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

/// Only a broken test waits this long.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The binary with none of the settings that the one who runs the tests may have.
pub fn tollgate<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    for name in [
        "CONFIG",
        "RULES",
        "STORE",
        "STORE_MEMORY",
        "DATA",
        "EMERGENCY",
        "LISTEN",
        "LOG",
        "GATEWAY_LISTEN",
        "UPSTREAM",
    ] {
        command.env_remove(format!("TOLLGATE_{name}"));
    }
    command.env_remove("STATE_DIRECTORY");
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

/// What a command said, and how it ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command that has to end by itself.
pub fn run(command: &mut Command) -> Ended {
    let mut child = Killed(spawn(command));
    let (stdout, stderr) = (child.0.stdout.take().unwrap(), child.0.stderr.take().unwrap());
    let (stdout, stderr) = (read_all(stdout), read_all(stderr));
    let text = |said: Receiver<String>| said.recv_timeout(PATIENCE).expect("the command does not end");
    let (stdout, stderr) = (text(stdout), text(stderr));
    Ended { code: child.0.wait().unwrap().code(), stdout, stderr }
}

fn spawn(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The whole of a stream, once it has ended.
fn read_all(mut stream: impl Read + Send + 'static) -> Receiver<String> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        // The test may have given up.
        let _ = tell.send(text);
    });
    told
}

/// The lines of a stream as they come. It is always drained: a full pipe would stop the program.
fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stream).lines() {
            let _ = tell.send(line.unwrap());
        }
    });
    told
}

/// A process that does not outlive its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A `tollgate serve` on a port of its own.
pub struct Server {
    child: Killed,
    pub address: SocketAddr,
    /// What it said until it was ready.
    pub start_message: String,
    log: Receiver<String>,
}

impl Server {
    /// Serves with these arguments, on whatever port is free.
    pub fn start<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Self {
        Self::from(tollgate(["serve", "--listen", "127.0.0.1:0"]).args(arguments))
    }

    /// Runs a command that may never serve, or cannot say so: without an address.
    pub fn silent(command: &mut Command) -> Self {
        let mut child = Killed(command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        let log = lines(child.0.stderr.take().unwrap());
        Self { child, address: SocketAddr::from(([0; 4], 0)), start_message: String::new(), log }
    }

    /// Runs a command that serves, and waits until it says where.
    pub fn from(command: &mut Command) -> Self {
        let mut child = Killed(spawn(command));
        let said = lines(child.0.stdout.take().unwrap());
        let log = lines(child.0.stderr.take().unwrap());
        let mut start_message = String::new();
        while !start_message.ends_with("Press Ctrl-C to stop.\n") {
            let Ok(line) = said.recv_timeout(PATIENCE) else {
                panic!("it does not serve: {start_message}{}", log.try_iter().collect::<Vec<_>>().join("\n"));
            };
            start_message += &line;
            start_message.push('\n');
        }
        let (_, address) = start_message.split_once("http").unwrap();
        let address = address.trim_start_matches(['s', ':', '/']);
        let (address, _) = address.split_once('/').unwrap();
        Self { child, address: address.parse().unwrap(), start_message, log }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Waits until it logs a line with this text, and answers the line.
    pub fn until_logged(&self, text: &str) -> String {
        loop {
            let line = self.log.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("`{text}` is not logged"));
            if line.contains(text) {
                return line;
            }
        }
    }

    /// What else it logs, until it ends.
    pub fn log_to_the_end(&self) -> String {
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

    /// Sends it a signal, by its name.
    pub fn signal(&self, name: &str) {
        let pid = self.child.0.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Waits until it has ended by itself.
    pub fn ended(mut self) -> ExitStatus {
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
