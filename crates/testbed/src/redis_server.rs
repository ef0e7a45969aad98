//! One Redis server in a process of its own.

use crate::certificates::TestCertificates;
use crate::ports;
use crate::server_clock;
use crate::wait::wait_until;
use redis::{Client, Connection, Value};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// How many ports are tried: another process may take a free port first.
const ATTEMPTS: usize = 8;
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long the server's answer to TIME may take; tests move its clock by more.
const CLOCK_TOLERANCE_MS: i64 = 100;

/// The environment variable that names another program than `redis-server`, such as Valkey or another version of Redis.
const PROGRAM: &str = "TOLLGATE_REDIS_SERVER";

/// A `redis-server` with its own port and folder. It is killed when this value is dropped.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    tls: Option<(u16, TestCertificates)>,
    arguments: Vec<String>,
    folder: TempDir,
    child: Option<Child>,
    password: Option<String>,
    /// The preloaded library that moves its clock, if a test needs that.
    clock: Option<PathBuf>,
}

/// Which wall clock a server reads.
#[derive(Clone, Copy, PartialEq)]
enum ServerClock {
    System,
    /// One that a test can move, so many milliseconds ahead of the system time at the start.
    Movable(i64),
}

impl RedisServer {
    /// Starts a server without persistence. `arguments` are added to the command line, such as
    /// `["--maxmemory", "10mb"]`.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, None, None, |_, _| Vec::new())
    }

    /// Starts a server that also listens for TLS, on [`tls_port`](Self::tls_port).
    pub fn start_tls(arguments: &[&str]) -> Self {
        Self::start_with(arguments, Some(TestCertificates::generate()), None, |_, _| Vec::new())
    }

    /// Starts a server whose clock a test can move with [`step_clock`](Self::step_clock).
    pub fn start_with_clock(arguments: &[&str]) -> Self {
        Self::start_with_clock_ahead(0, arguments)
    }

    /// The same with a clock that is `ahead_ms` milliseconds ahead of the system time from the start; a negative number is behind it.
    pub fn start_with_clock_ahead(ahead_ms: i64, arguments: &[&str]) -> Self {
        Self::start_on(ServerClock::Movable(ahead_ms), arguments, None, None, |_, _| Vec::new())
    }

    /// Sets the server's clock to `ahead_ms` milliseconds ahead of the system time; a negative number is behind it. Valkey 9 reads the
    /// system time once a millisecond: waits until the server has the new time.
    pub fn step_clock(&self, ahead_ms: i64) {
        self.write_clock(ahead_ms);
        wait_until("the server has the new time", || {
            let now = clock_gettime(ClockId::Realtime);
            let expected_ms = now.tv_sec * 1_000 + now.tv_nsec / 1_000_000 + ahead_ms;
            let time = self.cli(&["TIME"]);
            let Some((seconds, us)) = time.split_once('\n') else { return false };
            let (Ok(seconds), Ok(us)) = (seconds.parse::<i64>(), us.parse::<i64>()) else { return false };
            (seconds * 1_000 + us / 1_000 - expected_ms).abs() < CLOCK_TOLERANCE_MS
        });
    }

    fn write_clock(&self, ahead_ms: i64) {
        server_clock::step(&self.folder.path().join("clock"), ahead_ms);
    }

    /// Starts a server that requires `password`.
    pub fn start_with_password(password: &str) -> Self {
        Self::start_with(&["--requirepass", password], None, Some(password), |_, _| Vec::new())
    }

    /// Starts a server; `more` returns arguments that depend on the port and the folder.
    pub(crate) fn start_with(
        arguments: &[&str],
        certificates: Option<TestCertificates>,
        password: Option<&str>,
        more: impl Fn(u16, &TempDir) -> Vec<String>,
    ) -> Self {
        Self::start_on(ServerClock::System, arguments, certificates, password, more)
    }

    fn start_on(
        clock: ServerClock,
        arguments: &[&str],
        certificates: Option<TestCertificates>,
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
            if let ServerClock::Movable(ahead_ms) = clock {
                server.clock = Some(server_clock::compile(server.folder.path()));
                server.write_clock(ahead_ms);
            }
            if server.spawn() {
                return server;
            }
        }
        panic!("redis-server did not start on any of {ATTEMPTS} ports with {arguments:?}");
    }

    /// Starts the process and returns whether it came up.
    fn spawn(&mut self) -> bool {
        let mut command = Command::new(program());
        if let Some(library) = &self.clock {
            command.env("LD_PRELOAD", library).env(server_clock::FILE, self.folder.path().join("clock"));
        }
        // The first argument of a Sentinel must be its configuration file.
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
        wait_until("redis-server answers or exits", || {
            if child.try_wait().expect("a child can be waited for").is_some() {
                return true;
            }
            // A server of another process may answer on this port.
            up = self.try_cli(&["INFO", "server"]).is_ok_and(|info| info.contains(&pid));
            up
        });
        if up {
            self.child = Some(child);
        }
        up
    }

    /// The URL for clients, with the password if there is one.
    pub fn url(&self) -> String {
        match &self.password {
            Some(password) => format!("redis://:{password}@127.0.0.1:{}", self.port),
            None => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// The URL for clients that use TLS; the certificate is valid for `localhost` and 127.0.0.1.
    pub fn tls_url(&self) -> String {
        let ca = self.folder.path().join("ca.pem");
        format!("rediss://localhost:{}?ca={}", self.tls_port(), ca.display())
    }

    /// The path of its Unix socket.
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

    /// The process id; the server must be running.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a server that runs").id()
    }

    /// Suspends the process (SIGSTOP): connections stay open and get no reply.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes the process (SIGCONT).
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("the server can be signalled");
    }

    /// Kills the process (SIGKILL), like a crash.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("the server can be killed");
            child.wait().expect("the server can be waited for");
        }
    }

    /// Kills the process and starts it again on the same port, without data.
    pub fn restart_empty(&mut self) {
        self.kill();
        // A folder, after `fail_to_save`, stays.
        let _ = fs::remove_file(self.folder.path().join("dump.rdb"));
        assert!(self.spawn(), "redis-server did not start again on port {}", self.port);
    }

    /// Writes all data to the disk, for [`restart_saved`](Self::restart_saved).
    pub fn save(&self) {
        assert_eq!(self.cli(&["SAVE"]), "OK");
    }

    /// Kills the process and starts it again on the same port with the data of the last [`save`](Self::save): what was
    /// written since is lost.
    pub fn restart_saved(&mut self) {
        assert!(self.folder.path().join("dump.rdb").exists(), "nothing was saved");
        self.kill();
        assert!(self.spawn(), "redis-server did not start again on port {}", self.port);
    }

    /// Makes saving to disk fail; the server then refuses writes with `MISCONF`.
    pub fn fail_to_save(&self) {
        // A file cannot replace a folder, not even for root.
        fs::create_dir(self.folder.path().join("dump.rdb")).expect("a folder is made");
        assert_eq!(self.cli(&["CONFIG", "SET", "save", "3600 1000000"]), "OK");
        self.cli(&["BGSAVE"]);
        wait_until("saving has failed", || {
            self.cli(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:err")
        });
    }

    /// Makes saving to disk succeed again.
    pub fn save_again(&self) {
        fs::remove_dir(self.folder.path().join("dump.rdb")).expect("the folder is removed");
        assert_eq!(self.cli(&["SAVE"]), "OK");
    }

    /// Runs a command and returns the reply as text: an array as lines, an error as `ERR …`.
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

/// Whether the program is Redis 6.2, which lacks `CLUSTER ADDSLOTSRANGE`, `cluster-port` and scripts on several slots.
pub fn is_redis_6() -> bool {
    let version = Command::new(program()).arg("--version").output().expect("redis-server is installed");
    version.stdout.starts_with(b"Redis server v=6.")
}

impl Drop for RedisServer {
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
