//! One Redis server, a process of its own.

use crate::clock;
use crate::ports;
use crate::tls::Certificates;
use crate::wait::wait_until;
use redis::{Client, Connection, Value};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// How often another port is tried when somebody else was faster.
const ATTEMPTS: usize = 8;
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Names another program than `redis-server`, such as a Valkey or another version of Redis.
const PROGRAM: &str = "TOLLGATE_REDIS_SERVER";

/// A `redis-server` on a port and in a folder of its own, which ends with this value.
#[derive(Debug)]
pub struct Server {
    port: u16,
    tls: Option<(u16, Certificates)>,
    arguments: Vec<String>,
    folder: TempDir,
    child: Option<Child>,
    password: Option<String>,
    /// The library through which it reads the time, if a test moves its clock.
    clock: Option<PathBuf>,
}

/// Which time a server has.
#[derive(Clone, Copy, PartialEq)]
enum Clock {
    True,
    /// One that a test moves.
    Moved,
}

impl Server {
    /// A server that keeps nothing on disk; `arguments` go to the command line, such as
    /// `["--maxmemory", "10mb"]`.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, None, None, |_, _| Vec::new())
    }

    /// A server that also listens with TLS, at [`tls_port`](Self::tls_port).
    pub fn start_tls(arguments: &[&str]) -> Self {
        Self::start_with(arguments, Some(Certificates::generate()), None, |_, _| Vec::new())
    }

    /// A server whose clock a test can move, see [`step_clock`](Self::step_clock).
    pub fn start_with_clock(arguments: &[&str]) -> Self {
        Self::start_on(Clock::Moved, arguments, None, None, |_, _| Vec::new())
    }

    /// Moves the server's clock so many milliseconds ahead of the true time, or behind it.
    pub fn step_clock(&self, ahead_ms: i64) {
        clock::step(&self.folder.path().join("clock"), ahead_ms);
    }

    /// A server that wants `password` of everybody.
    pub fn start_with_password(password: &str) -> Self {
        Self::start_with(&["--requirepass", password], None, Some(password), |_, _| Vec::new())
    }

    /// Starts the program; `more` makes arguments that depend on the port and the folder.
    pub(crate) fn start_with(
        arguments: &[&str],
        certificates: Option<Certificates>,
        password: Option<&str>,
        more: impl Fn(u16, &TempDir) -> Vec<String>,
    ) -> Self {
        Self::start_on(Clock::True, arguments, certificates, password, more)
    }

    fn start_on(
        clock: Clock,
        arguments: &[&str],
        certificates: Option<Certificates>,
        password: Option<&str>,
        more: impl Fn(u16, &TempDir) -> Vec<String>,
    ) -> Self {
        for _ in 0..ATTEMPTS {
            let port = ports::free();
            let folder = TempDir::new().expect("a temporary folder");
            let mut all: Vec<String> = more(port, &folder);
            all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
            let tls = certificates.clone().map(|certificates| (ports::free(), certificates));
            let mut server = Self {
                port,
                tls,
                arguments: all,
                folder,
                child: None,
                password: password.map(str::to_owned),
                clock: None,
            };
            if clock == Clock::Moved {
                server.clock = Some(clock::compile(server.folder.path()));
                server.step_clock(0);
            }
            if server.spawn() {
                return server;
            }
        }
        panic!("redis-server did not start on any of {ATTEMPTS} ports with {arguments:?}");
    }

    /// Whether it came up.
    fn spawn(&mut self) -> bool {
        let mut command = Command::new(program());
        if let Some(library) = &self.clock {
            command.env("LD_PRELOAD", library).env(clock::FILE, self.folder.path().join("clock"));
        }
        // A Sentinel's first argument is its file.
        let is_sentinel = self.arguments.iter().any(|argument| argument == "--sentinel");
        if !is_sentinel {
            command.args(["--port", &self.port.to_string(), "--save", "", "--appendonly", "no"]);
            command.args(["--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0"]);
            command.arg("--unixsocket").arg(self.socket());
            command.arg("--dir").arg(self.folder.path());
        }
        if let Some((port, certificates)) = &self.tls {
            let folder = self.folder.path();
            let files = [
                ("ca.pem", &certificates.authority),
                ("cert.pem", &certificates.certificate),
                ("key.pem", &certificates.key),
            ];
            for (name, text) in files {
                fs::write(folder.join(name), text).expect("a certificate is written");
            }
            command.args(["--tls-port", &port.to_string(), "--tls-auth-clients", "no"]);
            command.arg("--tls-ca-cert-file").arg(folder.join("ca.pem"));
            command.arg("--tls-cert-file").arg(folder.join("cert.pem"));
            command.arg("--tls-key-file").arg(folder.join("key.pem"));
        }
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("redis-server is installed");
        let pid = format!("process_id:{}\r", child.id());
        let mut up = false;
        wait_until("redis-server answers or gives up", || {
            if child.try_wait().expect("a child can be waited for").is_some() {
                return true;
            }
            // Somebody else's server may answer at this port.
            up = self.try_cli(&["INFO", "server"]).is_ok_and(|info| info.contains(&pid));
            up
        });
        if up {
            self.child = Some(child);
        }
        up
    }

    /// Where a client finds it.
    pub fn url(&self) -> String {
        match &self.password {
            Some(password) => format!("redis://:{password}@127.0.0.1:{}", self.port),
            None => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// Where a client finds it with TLS; the certificate is for this name and for 127.0.0.1.
    pub fn tls_url(&self) -> String {
        let ca = self.folder.path().join("ca.pem");
        format!("rediss://localhost:{}?ca={}", self.tls_port(), ca.display())
    }

    /// Its unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// The port for plain TCP.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port for TLS.
    pub fn tls_port(&self) -> u16 {
        self.tls.as_ref().expect("a server with TLS").0
    }

    /// `127.0.0.1:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The process, while it runs.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a server that runs").id()
    }

    /// Stops it in the middle of whatever it does: it keeps its connections and answers nobody.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("the server can be signalled");
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("the server can be killed");
            child.wait().expect("the server can be waited for");
        }
    }

    /// Ends it, and starts it at the same port with nothing in it.
    pub fn restart_empty(&mut self) {
        self.kill();
        assert!(self.spawn(), "redis-server did not start again on port {}", self.port);
    }

    /// Lets it fail to save its data, after which it takes no writes (`MISCONF`).
    pub fn fail_to_save(&self) {
        // A file cannot replace a folder, for root neither.
        fs::create_dir(self.folder.path().join("dump.rdb")).expect("a folder is made");
        assert_eq!(self.cli(&["CONFIG", "SET", "save", "3600 1000000"]), "OK");
        self.cli(&["BGSAVE"]);
        wait_until("it has failed to save", || {
            self.cli(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:err")
        });
    }

    /// Lets it save again.
    pub fn save_again(&self) {
        fs::remove_dir(self.folder.path().join("dump.rdb")).expect("the folder is removed");
        assert_eq!(self.cli(&["SAVE"]), "OK");
    }

    /// Runs a command and shows the answer as text: an array by lines, an error as `ERR …`.
    pub fn cli(&self, words: &[&str]) -> String {
        self.try_cli(words).unwrap_or_else(|error| format!("ERR {error}"))
    }

    fn try_cli(&self, words: &[&str]) -> redis::RedisResult<String> {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        Ok(text(&command.query::<Value>(&mut self.connect()?)?))
    }

    fn connect(&self) -> redis::RedisResult<Connection> {
        let connection = Client::open(self.url())?.get_connection_with_timeout(ANSWER_WITHIN)?;
        connection.set_read_timeout(Some(ANSWER_WITHIN))?;
        Ok(connection)
    }
}

fn program() -> String {
    std::env::var(PROGRAM).unwrap_or_else(|_| "redis-server".to_owned())
}

/// Whether the program is a Redis 6.2, whose clusters are put together in another way.
pub(crate) fn is_redis_6() -> bool {
    let version = Command::new(program()).arg("--version").output().expect("redis-server is installed");
    version.stdout.starts_with(b"Redis server v=6.")
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Nil => "(nil)".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Okay => "OK".to_owned(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join("\n"),
        other => format!("{other:?}"),
    }
}
